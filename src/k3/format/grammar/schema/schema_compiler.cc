#include "k3/format/grammar/schema/schema_compiler.h"

#include <fmt/format.h>

#include "k3/base/json_writer.h"

namespace k3::grammar {
namespace {

constexpr int kMaxInline = 100;  // alternatives within alternatives
constexpr size_t kMaxRules = 50'000;
constexpr size_t kMaxNodes = 3'000'000;
constexpr size_t kMaxSchemaBytes = size_t{4} << 20;  // of a request; a byte of a literal or name costs about 200 before states are counted

}  // namespace

SchemaCompiler::SchemaCompiler(Builder& builder, const JsonNode& root, std::string path)
    : b_(builder), root_(&root), path_(std::move(path)) {
  b_.count_source(root.raw.size());
  anything_.kind = JsonNode::Kind::boolean;
  anything_.flag = true;
  nothing_.kind = JsonNode::Kind::boolean;
  std::vector<const JsonNode*> todo = {root_};
  while (!todo.empty()) {
    const JsonNode* parent = todo.back();
    todo.pop_back();
    for (size_t i = 0; i < parent->items.size(); ++i) {
      places_.emplace(&parent->items[i], std::pair(parent, i));
      todo.push_back(&parent->items[i]);
    }
  }
}

std::string SchemaCompiler::path_of(const JsonNode& node) const {
  std::vector<std::string> steps;
  for (const JsonNode* at_node = &node; at_node != root_;) {
    const auto found = places_.find(at_node);
    if (found == places_.end()) break;
    const auto& [parent, index] = found->second;
    steps.push_back(parent->is_object() ? "." + parent->keys[index] : fmt::format("[{}]", index));
    at_node = parent;
  }
  std::string path = path_;
  for (size_t i = steps.size(); i-- > 0;) path += steps[i];
  return path.starts_with('.') ? path.substr(1) : path;
}

Error SchemaCompiler::bad(const JsonNode& node, std::string_view keyword, std::string_view what, Code code) const {
  const std::string path = path_of(node);
  return fail(code, "{}{}{}: {}", path, path.empty() || keyword.empty() ? "" : ".", keyword, what);
}

Error SchemaCompiler::at(const JsonNode& node, std::string_view keyword, Error error) const {
  return bad(node, keyword, error.message, error.code);
}

std::string SchemaCompiler::json_quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// Equal short schemas share a rule, and so the masks of it; longer ones are told apart by where they stand.
Result<RuleId> SchemaCompiler::value_rule(const List& list) {
  constexpr size_t kShort = 400;
  std::string key;
  for (const Item& item : list) {
    if (item.node->raw.size() < kShort) {
      key += fmt::format("{}:{} ", item.done, item.node->raw);
    } else {
      key += fmt::format("{}@{} ", item.done, static_cast<const void*>(item.node));
    }
  }
  if (const auto found = rules_.find(key); found != rules_.end()) return found->second;
  const JsonNode& first = *list.at(0).node;
  if (rules_.size() >= kMaxRules || b_.size() > kMaxNodes) {
    return bad(first, "", "the schema needs too large a grammar", Code::exhausted);
  }
  if (&first == &anything_ && list.size() == 1) return any_value();
  const RuleId rule = b_.rule(path_of(first));
  rules_.emplace(key, rule);
  const int outer = std::exchange(depth_, 0);
  if (++nesting_ > kMaxJsonDepth * 4) return bad(first, "", "is nested too deeply", Code::exhausted);
  K3_TRY_ASSIGN(const Expr body, value(list, kAnyType, {Encoding::json, b_.never()}));
  --nesting_;
  depth_ = outer;
  b_.define(rule, body);
  return rule;
}

Status SchemaCompiler::check_source() const {
  if (b_.source_bytes() <= kMaxSchemaBytes) return {};
  return bad(*root_, "", fmt::format("the schemas of the request have {} bytes so far; at most {}", b_.source_bytes(), kMaxSchemaBytes),
             Code::exhausted);
}

Result<Expr> SchemaCompiler::value(const List& list, unsigned types, const StringStyle& style) {
  K3_TRY(check_source());
  List flat;
  bool never = false;
  for (const Item& item : list) {
    Path path;
    K3_TRY(flatten(item, flat, path, never));
  }
  if (never) return b_.never();
  bool none = false;
  K3_TRY_ASSIGN(const std::vector<List> choices, branches(flat, none));
  if (none) {
    K3_TRY_ASSIGN(const Leaf leaf, leaf_of(flat));
    return leaf_value(leaf, types, style);
  }
  if (++depth_ > kMaxInline) return bad(*list[0].node, "", "has too many alternatives within alternatives", Code::exhausted);
  std::vector<Expr> parts;
  for (const List& choice : choices) {
    K3_TRY_ASSIGN(const Expr part, value(choice, types, style));
    parts.push_back(part);
  }
  --depth_;
  return b_.alt(std::move(parts));
}

RuleId SchemaCompiler::any_value() {
  if (any_value_) return *any_value_;
  any_value_ = b_.rule("any JSON");
  const Expr call = b_.call(*any_value_);
  const Expr number = b_.text(number_text({}).value(), Encoding::raw);
  const Expr items = b_.seq({call, b_.star(b_.seq({comma(), call}))});
  const Expr array = b_.seq({b_.byte('['), b_.optional(items), b_.byte(']')});
  b_.define(*any_value_, b_.alt({b_.literal("null"), b_.literal("true"), b_.literal("false"), number, b_.call(free_string()),
                                 array, b_.call(any_object())}));
  return *any_value_;
}

RuleId SchemaCompiler::any_object() {
  if (any_object_) return *any_object_;
  any_object_ = b_.rule("any object");
  const RuleId value = any_value();
  const Expr key = b_.seq({b_.byte('"'), b_.text(any_text(), Encoding::json), b_.byte('"')});
  const Expr member = b_.seq({key, colon(), b_.call(value)});
  const Expr members = b_.seq({member, b_.star(b_.seq({comma(), member}))});
  b_.define(*any_object_, b_.seq({b_.byte('{'), b_.optional(members), b_.byte('}')}));
  return *any_object_;
}

}  // namespace k3::grammar
