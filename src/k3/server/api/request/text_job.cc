#include "k3/base/json_writer.h"
#include "k3/server/api/request/jobs.h"

namespace k3::server {
namespace {

constexpr size_t kMostPrompts = 64;

// A string, an array of strings, an array of ids, or an array of arrays of ids.
Result<std::vector<std::vector<int32_t>>> parse_prompts(const Context& context, const JsonNode& root) {
  const JsonNode* prompt = root.find_set("prompt");
  if (prompt == nullptr) return fail(Code::invalid_argument, "prompt: is missing");
  const int64_t vocab = context.card.vocab;
  std::vector<std::vector<int32_t>> out;
  if (prompt->is_string()) {
    K3_TRY_ASSIGN(std::vector<int32_t> ids, encode_text(context, root, prompt->text, true));
    out.push_back(std::move(ids));
  } else if (!prompt->is_array()) {
    return fail(Code::invalid_argument, "prompt: must be a string or an array, not {}", json_kind_name(prompt->kind));
  } else if (!prompt->items.empty() && prompt->items[0].is_number()) {
    K3_TRY_ASSIGN(std::vector<int32_t> ids, token_ids(*prompt, vocab, "prompt"));
    out.push_back(std::move(ids));
  } else {
    if (prompt->items.size() > kMostPrompts) return fail(Code::invalid_argument, "prompt: at most {} prompts", kMostPrompts);
    for (size_t i = 0; i < prompt->items.size(); ++i) {
      const JsonNode& item = prompt->items[i];
      const std::string path = fmt::format("prompt[{}]", i);
      if (!item.is_string() && !item.is_array())
        return fail(Code::invalid_argument, "{}: must be a string or an array of ids", path);
      K3_TRY_ASSIGN(std::vector<int32_t> ids,
                    item.is_string() ? encode_text(context, root, item.text, true) : token_ids(item, vocab, path));
      out.push_back(std::move(ids));
    }
  }
  if (out.empty()) return fail(Code::invalid_argument, "prompt: is empty");
  for (const auto& ids : out) {
    if (ids.empty()) return fail(Code::invalid_argument, "prompt: is empty");
  }
  return out;
}

Status check_rest(const JsonNode& root, const Generation& generation) {
  if (const JsonNode* suffix = root.find_set("suffix");
      suffix != nullptr && !(suffix->is_string() && suffix->text.empty())) {
    return fail(Code::invalid_argument, "suffix: is not supported");
  }
  int64_t best_of = generation.choices;
  K3_TRY(Fields(root).integer("best_of", best_of, 1, 128));
  if (best_of < generation.choices)
    return fail(Code::invalid_argument, "best_of: {} is less than n {}", best_of, generation.choices);
  if (best_of > generation.choices) return fail(Code::invalid_argument, "best_of: more than n is not supported");
  bool echo = false;
  return Fields(root).flag("echo", echo);
}

// One of the texts, as a grammar: a literal per choice.
Result<std::string> choices_grammar(const JsonNode& list) {
  std::string rule = "root ::= ";
  for (const JsonNode& item : list.items) {
    if (!item.is_string()) return fail(Code::invalid_argument, "structured_outputs.choice: must hold strings");
    if (&item != &list.items.front()) rule += " | ";
    append_json_string(rule, item.text);
  }
  if (list.items.empty()) return fail(Code::invalid_argument, "structured_outputs.choice: must not be empty");
  return rule + "\n";
}

// structured_outputs {json, regex, grammar, choice} and guided_* (vLLM), grammar and json_schema (llama.cpp): at most one.
Result<std::shared_ptr<const Grammar>> text_grammar(const Context& context, const JsonNode& root) {
  struct Field {
    const JsonNode* node;
    std::string path;
    TextGrammar kind;
  };
  std::vector<Field> given;
  const auto look = [&](const JsonNode& object, const char* name, const std::string& path, TextGrammar kind) {
    if (const JsonNode* node = object.find_set(name)) given.push_back({node, path + name, kind});
  };
  look(root, "guided_json", "", TextGrammar::json_schema);
  look(root, "json_schema", "", TextGrammar::json_schema);
  look(root, "guided_regex", "", TextGrammar::regex);
  look(root, "guided_grammar", "", TextGrammar::ebnf);
  look(root, "grammar", "", TextGrammar::ebnf);
  if (const JsonNode* outputs = root.find_set("structured_outputs")) {
    if (!outputs->is_object()) return fail(Code::invalid_argument, "structured_outputs: must be an object");
    look(*outputs, "json", "structured_outputs.", TextGrammar::json_schema);
    look(*outputs, "regex", "structured_outputs.", TextGrammar::regex);
    look(*outputs, "grammar", "structured_outputs.", TextGrammar::ebnf);
    look(*outputs, "choice", "structured_outputs.", TextGrammar::ebnf);
  }
  if (given.empty()) return std::shared_ptr<const Grammar>();
  if (given.size() > 1) {
    return fail(Code::invalid_argument, "{}: only one of {} and {} can be enforced", given[1].path, given[0].path, given[1].path);
  }
  if (!context.compile_text_grammar) return fail(Code::unsupported, "{}: is not supported here", given[0].path);
  const Field& field = given.front();
  std::string text = field.node->text;
  if (field.node->is_array() && field.kind == TextGrammar::ebnf) {
    K3_TRY_ASSIGN(text, choices_grammar(*field.node));
  } else if (field.kind == TextGrammar::json_schema && !field.node->is_string()) {
    text = std::string(field.node->raw);
  } else if (!field.node->is_string()) {
    return fail(Code::invalid_argument, "{}: must be a string", field.path);
  }
  auto grammar = context.compile_text_grammar(field.kind, text);
  if (!grammar.ok()) return std::move(grammar).take_error().with_context(field.path);
  return grammar;
}

}  // namespace

Result<std::vector<int32_t>> encode_text(const Context& context, const JsonNode& root, std::string_view text,
                                         bool add_specials) {
  const Fields fields(root);
  bool parse_specials = false;
  K3_TRY(fields.flag("add_special_tokens", add_specials));
  K3_TRY(fields.flag("add_special", add_specials));
  K3_TRY(fields.flag("parse_special", parse_specials));
  std::vector<int32_t> ids;
  if (const auto bos = context.tokenizer->special("[BOS]"); add_specials && bos) ids.push_back(*bos);
  K3_TRY(parse_specials ? context.tokenizer->encode_with_specials(text, ids) : context.tokenizer->encode(text, ids));
  return ids;
}

Outcome<AnswerJob> text_job(const Context& context, const JsonNode& root) {
  auto generation = parse_generation(root, Route::text, context);
  if (!generation.ok()) return generation.error();
  if (!is_served(context, generation->model)) return model_not_found(generation->model);
  if (auto status = check_rest(root, *generation); !status.ok()) return status.error();
  auto prompts = parse_prompts(context, root);
  if (!prompts.ok()) return prompts.error();

  auto grammar = text_grammar(context, root);
  if (!grammar.ok()) return api_error(grammar.error());

  AnswerJob job;
  job.generation = *generation;
  (void)Fields(root).flag("echo", job.keep_prompts);  // checked above
  for (std::vector<int32_t>& ids : *prompts) {
    const auto length = static_cast<int64_t>(ids.size());
    if (length + 1 > context.card.ctx_tokens) {
      ApiError error = context_exceeded(length, context.card.ctx_tokens);
      error.param = "prompt";
      return error;
    }
    Request request = engine_request(context, *generation);
    request.stop_ids = context.text_stop_ids;
    request.stop_ids.insert(request.stop_ids.end(), generation->stop_token_ids.begin(), generation->stop_token_ids.end());
    request.prompt_logprobs = job.keep_prompts && generation->logprobs >= 0;
    request.grammar = *grammar;
    request.prompt = std::move(ids);
    job.requests.push_back(std::move(request));
    for (int64_t c = 0; c < generation->choices; ++c) {
      job.choices.emplace_back(*context.tokenizer, std::nullopt, false,
                               ChoiceOptions{.stops = generation->stops,
                                             .logprobs = generation->logprobs >= 0,
                                             .ignore_eos = generation->ignore_eos,
                                             .skip_specials = generation->skip_special_tokens,
                                             .keep = !generation->stream});
    }
  }
  return job;
}

}  // namespace k3::server
