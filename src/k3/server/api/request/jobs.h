// Purpose:  request bodies to jobs for the engine: parse, check, render, tokenize, compile the grammar.
// Shapes:   none.
// Units:    tokens.
// Memory:   a job owns all it needs; the body may go.
// Threads:  pure; several at once.
// Errors:   ApiErrors with status, param and code.
// Source:   api.md 3, 6, 7, 8, 10, 11.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "k3/format/json/json_tree.h"
#include "k3/server/api/answer/answer.h"

namespace k3::server {

// A JSON object and the text that its nodes point into.
struct Body {
  std::unique_ptr<std::string> text;
  JsonNode root;
};
Outcome<Body> parse_body(std::string text);

// A prompt that is ready to be computed.
struct RenderedChat {
  ChatRequest request;
  Prompt prompt;
  std::vector<int32_t> ids;
};
Outcome<RenderedChat> render_chat(const Context& context, const JsonNode& root);

// Everything but the format, the envelope and the label.
Outcome<AnswerJob> chat_job(const Context& context, const JsonNode& root);
Outcome<AnswerJob> text_job(const Context& context, const JsonNode& root);
// Raw text to ids: [BOS] first with add_specials (or as add_special_tokens says), names of specials as tokens with parse_special.
Result<std::vector<int32_t>> encode_text(const Context& context, const JsonNode& root, std::string_view text, bool add_specials);

// Other dialects, rewritten as chat completion requests. Errors of their own fields name these, later ones the chat
// request's.
Outcome<Body> chat_of_messages(const JsonNode& root, bool count_only);  // Anthropic
Outcome<Body> chat_of_responses(const JsonNode& root);

Request engine_request(const Context& context, const Generation& generation);  // without prompt and grammar
bool is_served(const Context& context, std::string_view model);

}  // namespace k3::server
