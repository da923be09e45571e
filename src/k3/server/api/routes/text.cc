// Text to ids and back, and a chat request to its prompt; the field names of vLLM and of llama.cpp.
#include <algorithm>

#include "k3/base/json_writer.h"
#include "k3/base/utf8.h"
#include "k3/server/api/request/jobs.h"
#include "k3/server/api/routes/routes.h"

namespace k3::server {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    const size_t have = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) word = word << 8 | (j < have ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) out.push_back(j <= have ? kAlphabet[word >> (18 - 6 * j) & 63] : '=');
  }
  return out;
}

// "text" or [bytes].
void write_piece(JsonWriter& w, std::string_view bytes) {
  if (is_utf8(bytes)) {
    w.value(bytes);
    return;
  }
  w.begin_array();
  for (const char c : bytes) w.value(int64_t{static_cast<uint8_t>(c)});
  w.end_array();
}

Outcome<std::vector<int32_t>> tokens_of(const Context& context, const JsonNode& root) {
  if (root.find_set("messages") != nullptr) {
    auto chat = render_chat(context, root);
    if (!chat.ok()) return chat.error;
    return std::move(chat->ids);
  }
  const Fields fields(root);
  std::string text;
  const char* name = fields.find("prompt") != nullptr ? "prompt" : "content";
  if (fields.find(name) == nullptr)
    return bad_request("prompt", "is missing (or content, or messages)", "missing_required_parameter");
  if (const Status status = fields.text(name, text); !status.ok()) return status.error();
  auto ids = encode_text(context, root, text, false);
  if (!ids.ok()) return ids.error();
  return *std::move(ids);
}

}  // namespace

void tokenize(Call call) {
  const Context& context = *call.context;
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error);
  bool pieces = false;
  if (const Status status = Fields(body->root).flag("with_pieces", pieces); !status.ok())
    return call.fail(api_error(status.error()));
  auto ids = tokens_of(context, body->root);
  if (!ids.ok()) return call.fail(ids.error);
  JsonWriter w;
  w.begin_object().key("tokens").begin_array();
  for (const int32_t id : *ids) {
    if (!pieces) {
      w.value(id);
      continue;
    }
    w.begin_object().field("id", id).key("piece");
    write_piece(w, context.tokenizer->bytes(id));
    w.end_object();
  }
  w.end_array().field("count", static_cast<int64_t>(ids->size())).field("max_model_len", context.card.ctx_tokens);
  call.answer(w.end_object().text());
}

void detokenize(Call call) {
  const Context& context = *call.context;
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error);
  bool as_bytes = false;
  if (const Status status = Fields(body->root).flag("as_bytes", as_bytes); !status.ok())
    return call.fail(api_error(status.error()));
  const JsonNode* tokens = body->root.find_set("tokens");
  if (tokens == nullptr || !tokens->is_array()) return call.fail(bad_request("tokens", "must be an array of token ids"));
  const auto ids = token_ids(*tokens, context.tokenizer->vocab_size(), "tokens");
  if (!ids.ok()) return call.fail(api_error(ids.error()));
  const auto text = context.tokenizer->decode(*ids);
  if (!text.ok()) return call.fail(api_error(text.error()));
  const std::string shown = as_bytes ? base64(*text) : utf8_repair(*text);
  call.answer(JsonWriter().begin_object().field("prompt", shown).field("content", shown).end_object().text());
}

void apply_template(Call call) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error);
  auto chat = render_chat(*call.context, body->root);
  if (!chat.ok()) return call.fail(chat.error);
  JsonWriter w;
  w.begin_object().field("prompt", chat->prompt.text()).key("tokens").begin_array();
  for (const int32_t id : chat->ids) w.value(id);
  call.answer(w.end_array().end_object().text());
}

}  // namespace k3::server
