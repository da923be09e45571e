// What a chat request asks for, as a grammar of the assistant's message: special tokens are letters of it, never text.
#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <optional>

#include "k3/format/grammar/constraint.h"
#include "k3/format/grammar/grammar_impl.h"
#include "k3/format/grammar/schema/schema_compiler.h"

namespace k3 {
namespace {

using grammar::Builder;
using grammar::Expr;
using grammar::RuleId;
using grammar::SchemaCompiler;

constexpr size_t kMostCalls = 128, kFewestCalls = 16, kNameBytes = 40'000;  // calls of a message: fewer when many tools
constexpr size_t kMaxSetMembers = 32;

struct Tool {
  const ToolDeclaration* declaration;
  std::string path;
};

std::vector<Tool> declared_tools(const ChatRequest& request) {
  std::vector<Tool> out;
  const auto add = [&](const ToolSet& set, const std::string& path) {
    for (size_t i = 0; i < set.items.size(); ++i) {
      out.push_back({&set.items[i], fmt::format("{}[{}].function.parameters", path, i)});
    }
  };
  add(request.tools, "tools");
  for (size_t m = 0; m < request.messages.size(); ++m) add(request.messages[m].tools, fmt::format("messages[{}].tools", m));
  return out;
}

class ChatGrammar {
 public:
  ChatGrammar(Builder& builder, const ChatRequest& request, int32_t open, int32_t close, int32_t sep)
      : b_(builder), request_(request), open_id_(open), close_id_(close), sep_id_(sep) {}

  Result<RuleId> build(OpenChannel start) {
    tools_ = declared_tools(request_);
    forced_ = request_.tool_choice == ToolChoice::required || request_.tool_choice == ToolChoice::named;
    const bool json = request_.response_format.kind != ResponseFormat::Kind::text;
    std::optional<RuleId> section;
    if (forced_ || (request_.tool_choice == ToolChoice::automatic && !tools_.empty())) {
      K3_TRY_ASSIGN(section, tools_section());
    }
    if (!forced_ && !json) return watched(start, *section);
    Expr from_message = 0, from_response = 0;
    if (forced_) {
      const Expr calls = b_.seq({begin("tools"), b_.call(*section)});
      const Expr text = b_.free_text(false);
      from_message = b_.seq({b_.optional(b_.seq({begin("response"), text, end("response")})), calls});
      from_response = b_.seq({text, b_.optional(end("response")), calls});
    } else {
      K3_TRY_ASSIGN(const Expr answer, response());
      from_message = b_.seq({begin("response"), answer});
      from_response = answer;
      if (section) {
        const Expr calls = b_.seq({begin("tools"), b_.call(*section)});
        from_message = b_.alt({from_message, calls, b_.seq({begin("response"), end("response"), calls})});
        from_response = b_.alt({from_response, b_.seq({end("response"), calls})});
      }
    }
    if (start == OpenChannel::response) return b_.rule("the response", from_response);
    return b_.rule("the message", b_.seq({b_.free_text(false), b_.optional(end("think")), from_message}));
  }

 private:
  Expr open() { return b_.token(open_id_); }
  Expr close() { return b_.token(close_id_); }
  Expr sep() { return b_.token(sep_id_); }
  Expr begin(std::string_view tag) { return b_.seq({open(), b_.literal(tag), sep()}); }
  Expr end(std::string_view tag) { return b_.seq({close(), b_.literal(tag), sep()}); }

  // A schema outlives its compiler, which keeps views of the text.
  Result<SchemaCompiler*> compiler(const std::string& source, const std::string& path) {
    auto parsed = parse_json(source, DuplicateKeys::keep);
    if (!parsed.ok()) return std::move(parsed).with_context(path).take_error();
    schemas_.push_back(*std::move(parsed));
    compilers_.emplace_back(b_, schemas_.back(), path);
    return &compilers_.back();
  }

  // The body of the response after its opener, to the end of the message.
  Result<Expr> response() {
    const ResponseFormat& format = request_.response_format;
    K3_TRY_ASSIGN(SchemaCompiler* const schema, compiler(format.schema_source.empty() ? anything_ : format.schema_source,
                                                         "response_format.json_schema.schema"));
    const bool any = format.kind == ResponseFormat::Kind::json_object || !format.strict;
    RuleId value = 0;
    if (any) {
      value = schema->any_object();
    } else {
      K3_TRY_ASSIGN(value, schema->root_rule());
    }
    return b_.seq({b_.call(value), b_.optional(b_.seq({end("response"), b_.optional(end("message"))}))});
  }

  // Calls 1, 2, ... after the opener of the section.
  Result<RuleId> tools_section() {
    std::vector<std::pair<std::string, RuleId>> bodies;
    size_t bytes = 1;
    for (const Tool& tool : tools_) {
      const std::string& name = tool.declaration->name;
      if (request_.tool_choice == ToolChoice::named && name != request_.tool_choice_name) continue;
      K3_TRY_ASSIGN(const RuleId body, arguments(tool));
      bodies.emplace_back(name, body);
      bytes += name.size() + 12;
    }
    const size_t most = request_.parallel_tool_calls ? std::clamp(kNameBytes / bytes, kFewestCalls, kMostCalls) : 1;
    Expr rest = b_.empty();
    for (size_t n = most; n > 0; --n) {
      std::vector<Expr> names;
      for (const auto& [name, body] : bodies) {
        names.push_back(b_.seq({b_.literal(fmt::format("{}\" index=\"{}\"", name, n)), sep(), b_.call(body)}));
      }
      const Expr call = b_.seq({open(), b_.literal("call tool=\""), b_.alt(std::move(names)), end("call")});
      rest = b_.seq({b_.call(b_.rule(fmt::format("call {}", n), call)), n == most ? b_.empty() : b_.optional(rest)});
    }
    return b_.rule("the calls", b_.seq({rest, end("tools"), b_.optional(end("message"))}));
  }

  // The argument elements of one tool.
  Result<RuleId> arguments(const Tool& tool) {
    const ToolDeclaration& declaration = *tool.declaration;
    const bool enforced = declaration.strict.value_or(forced_);
    const std::string name = "arguments of " + declaration.name;
    if (declaration.parameters_source.empty() && enforced) return b_.rule(name, b_.empty());
    K3_TRY_ASSIGN(SchemaCompiler* const schema, compiler(enforced ? declaration.parameters_source : anything_, tool.path));
    K3_TRY_ASSIGN(const auto lists, schema->argument_lists());
    std::vector<Expr> choices;
    for (const SchemaCompiler::Members& members : lists) {
      K3_TRY_ASSIGN(const Expr choice, argument_list(*schema, members, name));
      choices.push_back(choice);
    }
    return b_.rule(name, b_.alt(std::move(choices)));
  }

  Result<Expr> argument_list(SchemaCompiler& schema, const SchemaCompiler::Members& members, const std::string& name) {
    std::vector<RuleId> declared;
    std::vector<char> required;
    uint32_t bits = 0;
    for (const SchemaCompiler::Member& member : members.declared) {
      K3_TRY_ASSIGN(const Expr element, argument(schema, grammar::text_of({member.key}), member.list));
      if (member.required && declared.size() < kMaxSetMembers) bits |= 1U << declared.size();
      declared.push_back(b_.rule(name + " '" + member.key + "'", element));
      required.push_back(member.required ? 1 : 0);
    }
    std::vector<Expr> others;
    for (const auto& other : members.others) {
      K3_TRY_ASSIGN(const Expr element, argument(schema, other.keys, other.list));
      others.push_back(element);
    }
    const Expr more = b_.alt(std::move(others));
    if (declared.empty()) return b_.star(more);
    if (declared.size() <= kMaxSetMembers) {
      return b_.seq({b_.call(b_.set(name, std::move(declared), bits)), b_.star(more)});
    }
    std::vector<Expr> items;
    for (const RuleId rule : declared) items.push_back(b_.call(rule));
    return b_.list(std::move(items), std::move(required), more, b_.empty());
  }

  Result<Expr> argument(SchemaCompiler& schema, const grammar::TextDfa& keys, const SchemaCompiler::List& list) {
    constexpr std::pair<std::string_view, unsigned> kTypes[] = {{"string", grammar::kString},   {"number", grammar::kNumber},
                                                                {"boolean", grammar::kBoolean}, {"null", grammar::kNull},
                                                                {"object", grammar::kObject},   {"array", grammar::kArray}};
    std::vector<Expr> kinds;
    for (const auto& [type, bits] : kTypes) {
      const bool text = bits == grammar::kString;
      const grammar::StringStyle raw = {grammar::Encoding::raw, close()};
      const grammar::StringStyle json = {grammar::Encoding::json, b_.never()};
      K3_TRY_ASSIGN(const Expr value, schema.value(list, bits, text ? raw : json));
      const Expr body = text ? value : b_.seq({value, close()});
      kinds.push_back(b_.seq({b_.literal(type), b_.byte('"'), sep(), body}));
    }
    return b_.seq({open(), b_.literal("argument key=\""), b_.text(keys, grammar::Encoding::attribute),
                   b_.literal("\" type=\""), b_.alt(std::move(kinds)), b_.literal("argument"), sep()});
  }

  // Nothing is asked of the text; only the tools section is: every token may come until it opens. Inside a response and
  // between elements the same may follow.
  RuleId watched(OpenChannel start, RuleId section) {
    const RuleId think = b_.rule("think"), message = b_.rule("message");
    const Expr element = b_.seq({open(), b_.alt({b_.seq({b_.literal("response"), sep(), b_.call(message)}),
                                                 b_.seq({b_.literal("think"), sep(), b_.call(think)}),
                                                 b_.seq({b_.literal("tools"), sep(), b_.call(section)})})});
    const Expr text = b_.free_text(true);
    const Expr over = end("message"), next = b_.call(message);
    b_.define(think, b_.seq({text, b_.alt({b_.seq({end("think"), next}), element, over})}));
    b_.define(message, b_.seq({text, b_.alt({b_.seq({end("response"), next}), element, over})}));
    return start == OpenChannel::think ? think : message;
  }

  Builder& b_;
  const ChatRequest& request_;
  const int32_t open_id_, close_id_, sep_id_;
  const std::string anything_ = "{}";
  bool forced_ = false;
  std::vector<Tool> tools_;
  std::list<JsonNode> schemas_;
  std::list<SchemaCompiler> compilers_;
};

bool asks_nothing(const ChatRequest& request) {
  if (request.response_format.kind != ResponseFormat::Kind::text) return false;
  if (request.tool_choice == ToolChoice::none) return true;
  if (request.tool_choice != ToolChoice::automatic) return false;
  const std::vector<Tool> tools = declared_tools(request);
  return std::none_of(tools.begin(), tools.end(), [](const Tool& tool) { return tool.declaration->strict.value_or(false); });
}

}  // namespace

Result<std::shared_ptr<const Grammar>> Grammar::for_chat(const ChatFormat& format, const Tokenizer& tokenizer,
                                                         std::shared_ptr<const TokenTrie> trie, const ChatRequest& request,
                                                         const Prompt& prompt) {
  if (asks_nothing(request)) return std::shared_ptr<const Grammar>();
  const auto open = tokenizer.special("<|open|>"), close = tokenizer.special("<|close|>"),
             sep = tokenizer.special("<|sep|>");
  if (format.kind() != ChatFormat::Kind::xtml || !open || !close || !sep) {
    return fail(Code::unsupported, "the chat format of this model has no constrained output");
  }
  if (prompt.open == OpenChannel::none) {
    return fail(Code::invalid_argument, "add_generation_prompt: constrained output needs an open assistant message");
  }
  Builder builder;
  ChatGrammar chat(builder, request, *open, *close, *sep);
  K3_TRY_ASSIGN(const RuleId start, chat.build(prompt.open));
  auto program = grammar::compile(builder, start);
  if (!program.ok()) return std::move(program).with_context("response_format or tools").take_error();
  auto impl = std::make_unique<Impl>(std::move(trie), *std::move(program));
  auto out = std::shared_ptr<Grammar>(new Grammar(std::move(impl)));
  if (!request.continue_final_message || prompt.open != OpenChannel::response) return std::shared_ptr<const Grammar>(out);
  std::string given = content_text(request.messages.back());
  Constraint check(out, {-1});
  if (!given.empty() && !check.begin(given)) {
    return fail(Code::invalid_argument, "messages[{}].content: does not begin a text that the constraint allows",
                request.messages.size() - 1);
  }
  out->impl_->given = std::move(given);
  return std::shared_ptr<const Grammar>(out);
}

}  // namespace k3
