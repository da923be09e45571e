#include "k3/server/api/answer/openai_json.h"

#include <cmath>

#include "k3/base/utf8.h"

namespace k3::server {
namespace {

constexpr double kMinusInfinity = -9999.0;

void write_token(JsonWriter& w, const LogprobToken& token) {
  w.field("token", token_text(token)).field("logprob", wire_logprob(token.logprob)).key("bytes");
  if (token.control || !is_utf8(token.bytes)) {
    w.null();
    return;
  }
  w.begin_array();
  for (const char c : token.bytes) w.value(int64_t{static_cast<uint8_t>(c)});
  w.end_array();
}

}  // namespace

double wire_logprob(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : kMinusInfinity; }

std::string token_text(const LogprobToken& token) { return utf8_repair(token.bytes); }

std::string frame(const std::string& json) { return "data: " + json + "\n\n"; }

std::string end_frames(const AnswerState& state, bool normal, void (*begin)(JsonWriter&, const AnswerState&)) {
  if (!normal) return {};
  std::string out;
  if (state.generation.include_usage) {
    JsonWriter w;
    begin(w, state);
    w.key("choices").begin_array().end_array().key("usage");
    write_usage(w, state.total());
    out = frame(w.end_object().text());
  }
  return out + "data: [DONE]\n\n";
}

void write_usage(JsonWriter& w, const Usage& usage) {
  w.begin_object().field("prompt_tokens", usage.prompt_tokens).field("completion_tokens", usage.completion_tokens);
  w.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  w.key("prompt_tokens_details").begin_object().field("cached_tokens", usage.cached_tokens);
  w.field("rendered_tokens", usage.rendered_tokens).end_object();
  w.key("completion_tokens_details").begin_object().field("reasoning_tokens", usage.reasoning_tokens).end_object();
  w.end_object();
}

void write_logprobs(JsonWriter& w, const std::vector<LogprobEntry>& entries) {
  w.begin_object().key("content").begin_array();
  for (const LogprobEntry& entry : entries) {
    w.begin_object();
    write_token(w, entry.token);
    w.key("top_logprobs").begin_array();
    for (const LogprobToken& other : entry.top) {
      w.begin_object();
      write_token(w, other);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().end_object();
}

}  // namespace k3::server
