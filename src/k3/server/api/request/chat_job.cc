#include <algorithm>

#include "k3/server/api/request/jobs.h"

namespace k3::server {
namespace {

// Audio is a kind of content that is known and not there, unlike kinds that nobody knows (400).
std::string audio_part(const JsonNode& root) {
  const JsonNode* messages = root.find_set("messages");
  if (messages == nullptr || !messages->is_array()) return {};
  for (size_t m = 0; m < messages->items.size(); ++m) {
    const JsonNode& message = messages->items[m];
    const JsonNode* content = message.is_object() ? message.find_set("content") : nullptr;
    if (content == nullptr || !content->is_array()) continue;
    for (size_t p = 0; p < content->items.size(); ++p) {
      const JsonNode* type = content->items[p].is_object() ? content->items[p].find_set("type") : nullptr;
      if (type != nullptr && (type->text == "input_audio" || type->text == "audio_url")) {
        return fmt::format("messages[{}].content[{}].type", m, p);
      }
    }
  }
  return {};
}

ApiError not_implemented(std::string param, std::string_view what) {
  ApiError error = status_error(501, fmt::format("{}: {}", param, what));
  error.param = std::move(param);
  return error;
}

std::string first_image(const ChatRequest& request) {
  for (size_t m = 0; m < request.messages.size(); ++m) {
    for (size_t p = 0; p < request.messages[m].content.size(); ++p) {
      if (request.messages[m].content[p].kind == ContentPart::Kind::image)
        return fmt::format("messages[{}].content[{}]", m, p);
    }
  }
  return "messages";
}

bool needs_grammar(const ChatRequest& request) {
  const auto strict = [](const ToolSet& set) {
    return std::any_of(set.items.begin(), set.items.end(),
                       [](const ToolDeclaration& t) { return t.strict.value_or(false); });
  };
  return request.response_format.kind != ResponseFormat::Kind::text || request.tool_choice == ToolChoice::required ||
         request.tool_choice == ToolChoice::named || strict(request.tools) ||
         std::any_of(request.messages.begin(), request.messages.end(),
                     [&](const ChatMessage& m) { return strict(m.tools); });
}

// Every message of the prompt ends with the end token, which text can never yield.
std::vector<int64_t> turn_ends(const Context& context, const std::vector<int32_t>& ids) {
  std::vector<int64_t> out;
  const auto end = context.tokenizer->special(context.format->end_token());
  for (size_t i = 0; end && i < ids.size(); ++i) {
    if (ids[i] == *end) out.push_back(static_cast<int64_t>(i) + 1);
  }
  return out;
}

Outcome<std::shared_ptr<const Grammar>> grammar_of(const Context& context, const RenderedChat& chat) {
  if (!context.compile_grammar) {
    if (!needs_grammar(chat.request)) return std::shared_ptr<const Grammar>();
    return not_implemented("response_format", "constrained output is not part of this build");
  }
  auto grammar = context.compile_grammar(chat.request, chat.prompt);
  if (!grammar.ok()) return grammar.error();
  return *std::move(grammar);
}

}  // namespace

Request engine_request(const Context& context, const Generation& g) {
  Request request;
  request.cache_salt = g.cache_salt;
  request.use_cache = g.use_cache;
  if (g.slot >= 0) request.slot = static_cast<int32_t>(g.slot);
  request.sampling = g.sampling;
  request.choices = static_cast<int32_t>(g.choices);
  request.max_tokens = g.max_tokens;
  request.min_tokens = g.min_tokens;
  request.ignore_eos = g.ignore_eos;
  request.logprobs = g.logprobs;
  request.priority = static_cast<int32_t>(g.priority);
  request.stop_ids = context.stop_ids;
  request.stop_ids.insert(request.stop_ids.end(), g.stop_token_ids.begin(), g.stop_token_ids.end());
  return request;
}

bool is_served(const Context& context, std::string_view model) {
  const auto& aliases = context.card.aliases;
  return model == context.card.id || std::find(aliases.begin(), aliases.end(), model) != aliases.end();
}

Outcome<Body> parse_body(std::string text) {
  Body body;
  body.text = std::make_unique<std::string>(std::move(text));
  auto root = parse_json(*body.text);
  if (!root.ok()) return bad_request("", "the body is no valid JSON: " + root.error().message, "invalid_json");
  if (!root->is_object())
    return bad_request("", "the body must be a JSON object, not " + std::string(json_kind_name(root->kind)), "invalid_json");
  body.root = *std::move(root);
  return body;
}

Outcome<RenderedChat> render_chat(const Context& context, const JsonNode& root) {
  if (context.format == nullptr)
    return status_error(501, "this model has no chat format: POST /v1/completions takes plain text");
  if (const std::string audio = audio_part(root); !audio.empty()) return not_implemented(audio, "audio is not supported");
  auto request = parse_chat_request(root);
  if (!request.ok()) return request.error();
  if (request->has_images()) return not_implemented(first_image(*request), "images cannot be looked at yet");
  auto prompt = context.format->render(*request);
  if (!prompt.ok() && prompt.error().code == Code::not_found) {
    return status_error(501, "this checkpoint lacks a sentence that the request needs: " + prompt.error().message);
  }
  if (!prompt.ok()) return prompt.error();
  auto ids = prompt->encode(*context.tokenizer);
  if (!ids.ok()) return ids.error();
  return RenderedChat{*std::move(request), *std::move(prompt), *std::move(ids)};
}

Outcome<AnswerJob> chat_job(const Context& context, const JsonNode& root) {
  auto generation = parse_generation(root, Route::chat, context);
  if (!generation.ok()) return generation.error();
  if (!is_served(context, generation->model)) return model_not_found(generation->model);
  bool parallel = true;
  if (auto status = Fields(root).flag("parallel_tool_calls", parallel); !status.ok()) return status.error();
  auto chat = render_chat(context, root);
  if (!chat.ok()) return chat.error;
  const auto length = static_cast<int64_t>(chat->ids.size());
  if (length + 1 > context.card.ctx_tokens) return context_exceeded(length, context.card.ctx_tokens);
  auto grammar = grammar_of(context, *chat);
  if (!grammar.ok()) return grammar.error;

  AnswerJob job;
  job.generation = *generation;
  job.pending_tokens = chat->prompt.pending_tokens;
  const bool thinking = chat->prompt.thinking && chat->prompt.open != OpenChannel::response;
  for (int64_t c = 0; c < generation->choices; ++c) {
    ParserOptions parser = parser_options(chat->request, chat->prompt);
    parser.strict_tools = context.options.strict_tools;
    job.choices.emplace_back(*context.tokenizer, OutputParser(*context.format, *context.tokenizer, std::move(parser)),
                             thinking,
                             ChoiceOptions{.stops = generation->stops,
                                           .logprobs = generation->logprobs >= 0,
                                           .ignore_eos = generation->ignore_eos,
                                           .one_call = !parallel,
                                           .keep = !generation->stream});
  }
  Request request = engine_request(context, *generation);
  request.turn_ends = turn_ends(context, chat->ids);
  request.prompt = std::move(chat->ids);
  request.grammar = std::move(*grammar);
  job.requests.push_back(std::move(request));
  return job;
}

}  // namespace k3::server
