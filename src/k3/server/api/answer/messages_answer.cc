// Anthropic messages: content blocks and their events.
#include <memory>

#include "k3/server/api/answer/formats.h"
#include "k3/server/api/answer/openai_json.h"

namespace k3::server {
namespace {

std::string event(std::string_view name, const JsonWriter& w) {
  return fmt::format("event: {}\ndata: {}\n\n", name, w.text());
}

std::string stop_reason(const ChoiceStream& choice) {
  if (!choice.matched_stop().empty()) return "stop_sequence";
  if (choice.finish_reason() == "length") return "max_tokens";
  return choice.finish_reason() == "tool_calls" ? "tool_use" : "end_turn";
}

void write_stop(JsonWriter& w, const ChoiceStream* choice) {
  w.key("stop_reason");
  if (choice == nullptr) {
    w.null().key("stop_sequence").null();
    return;
  }
  w.value(stop_reason(*choice)).key("stop_sequence");
  if (choice->matched_stop().empty()) {
    w.null();
  } else {
    w.value(choice->matched_stop());
  }
}

// Tokens read from the cache are counted apart there.
void write_usage_of(JsonWriter& w, const Usage& usage) {
  w.key("usage").begin_object().field("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  w.field("cache_creation_input_tokens", 0).field("cache_read_input_tokens", usage.cached_tokens);
  w.field("output_tokens", usage.completion_tokens).end_object();
}

void write_message_head(JsonWriter& w, const AnswerState& state) {
  w.field("id", "msg_" + state.id).field("type", "message").field("role", "assistant").field("model", state.model);
}

constexpr std::string_view kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

// The stream of one answer: which block is open.
class Blocks {
 public:
  std::string begin(const AnswerState& state) {
    JsonWriter w;
    w.begin_object().field("type", "message_start").key("message").begin_object();
    write_message_head(w, state);
    w.key("content").begin_array().end_array();
    write_stop(w, nullptr);
    write_usage_of(w, state.total());
    w.end_object().end_object();
    return event("message_start", w).append(kPing);
  }

  std::string piece(const Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::reasoning:
        return joined(switch_to(Kind::thinking, piece), [&] { return delta("thinking_delta", "thinking", piece.text); });
      case Piece::Kind::boundary: return open_ == Kind::thinking ? close() : std::string();
      case Piece::Kind::content:
        return joined(switch_to(Kind::text, piece), [&] { return delta("text_delta", "text", piece.text); });
      case Piece::Kind::call_start: return joined(close(), [&] { return open(Kind::tool, piece); });
      case Piece::Kind::call_arguments: return delta("input_json_delta", "partial_json", piece.text);
    }
    return {};
  }

  std::string end(const AnswerState& state) {
    std::string out;
    if (next_ == 0 && open_ == Kind::none) out += open(Kind::text, Piece{});  // an empty answer has one empty block
    out += close();
    const ChoiceStream& choice = state.choices[0];
    if (const std::string& reason = choice.finish_reason();
        reason == "server_interrupted" || reason == "engine_overloaded" || reason == "unexpected_state") {
      JsonWriter w;
      w.begin_object().field("type", "error").key("error").begin_object();
      w.field("type", reason == "unexpected_state" ? "api_error" : "overloaded_error").field("message", reason);
      w.end_object().end_object();
      return out + event("error", w);
    }
    JsonWriter w;
    w.begin_object().field("type", "message_delta").key("delta").begin_object();
    write_stop(w, &choice);
    w.end_object();
    write_usage_of(w, state.total());
    w.end_object();
    return out + event("message_delta", w) + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }

 private:
  enum class Kind { none, thinking, text, tool };

  // The operands of + may be evaluated in any order; these change what is open.
  template <class Next>
  static std::string joined(std::string first, const Next& next) {
    first += next();
    return first;
  }

  std::string switch_to(Kind kind, const Piece& piece) {
    if (open_ == kind) return {};
    return joined(close(), [&] { return open(kind, piece); });
  }

  std::string open(Kind kind, const Piece& piece) {
    open_ = kind;
    JsonWriter w;
    w.begin_object().field("type", "content_block_start").field("index", next_).key("content_block").begin_object();
    if (kind == Kind::thinking) w.field("type", "thinking").field("thinking", "").field("signature", "");
    if (kind == Kind::text) w.field("type", "text").field("text", "");
    if (kind == Kind::tool) {
      w.field("type", "tool_use").field("id", piece.call_id).field("name", piece.call_name);
      w.key("input").begin_object().end_object();
    }
    w.end_object().end_object();
    return event("content_block_start", w);
  }

  std::string delta(std::string_view type, std::string_view key, std::string_view text) {
    JsonWriter w;
    w.begin_object().field("type", "content_block_delta").field("index", next_).key("delta").begin_object();
    w.field("type", type).field(key, text).end_object().end_object();
    return event("content_block_delta", w);
  }

  std::string close() {
    if (open_ == Kind::none) return {};
    std::string out;
    if (open_ == Kind::thinking) out = delta("signature_delta", "signature", "k3");
    open_ = Kind::none;
    JsonWriter w;
    w.begin_object().field("type", "content_block_stop").field("index", next_++).end_object();
    return out + event("content_block_stop", w);
  }

  Kind open_ = Kind::none;
  int64_t next_ = 0;  // index of the open block, or of the next one
};

std::string whole(const AnswerState& state) {
  const ChoiceStream& choice = state.choices[0];
  const AssistantMessage message = choice.message();
  JsonWriter w;
  w.begin_object();
  write_message_head(w, state);
  w.key("content").begin_array();
  if (!message.reasoning.empty()) {
    w.begin_object().field("type", "thinking").field("thinking", message.reasoning).field("signature", "k3").end_object();
  }
  const std::string text = message.content.value_or("");
  if (!text.empty() || (message.calls.empty() && message.reasoning.empty())) {
    w.begin_object().field("type", "text").field("text", text).end_object();
  }
  for (const OutputCall& call : message.calls) {
    w.begin_object().field("type", "tool_use").field("id", call.id).field("name", call.name).key("input");
    const auto input = parse_json(call.arguments, DuplicateKeys::keep);
    if (input.ok() && input->is_object()) {
      w.raw(call.arguments);
    } else {
      w.begin_object().end_object();  // cut in the middle of the arguments
    }
    w.end_object();
  }
  w.end_array();
  write_stop(w, &choice);
  write_usage_of(w, state.total());
  return w.end_object().text();
}

}  // namespace

AnswerFormat messages_format() {
  const auto blocks = std::make_shared<Blocks>();
  AnswerFormat format;
  format.begin = [blocks](const AnswerState& state) { return blocks->begin(state); };
  format.piece = [blocks](const AnswerState&, size_t, const Piece& piece) { return blocks->piece(piece); };
  format.end_choice = [blocks](const AnswerState& state, size_t) { return blocks->end(state); };
  format.end = [](const AnswerState&, bool) { return std::string(); };
  format.whole = whole;
  format.ping = kPing;
  return format;
}

}  // namespace k3::server
