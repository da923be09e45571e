// Chat completions: the frames of api.md 5 and 7.3, and the whole answer of api.md 4.
#include "k3/server/api/answer/formats.h"
#include "k3/server/api/answer/openai_json.h"

namespace k3::server {
namespace {

void begin_frame(JsonWriter& w, const AnswerState& state) {
  w.begin_object().field("id", "chatcmpl-" + state.id).field("object", "chat.completion.chunk");
  w.field("created", state.created).field("model", state.model);
}

// With continuous_usage_stats every frame says how far the answer has come.
std::string end_frame(JsonWriter& w, const AnswerState& state) {
  if (state.generation.continuous_usage) {
    w.key("usage");
    write_usage(w, state.total());
  }
  w.end_object();
  return frame(w.text());
}

std::string begin(const AnswerState& state) {
  std::string out;
  for (size_t c = 0; c < state.choices.size(); ++c) {
    JsonWriter w;
    begin_frame(w, state);
    w.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(c));
    w.key("delta").begin_object().field("role", "assistant").field("content", "").end_object();
    w.key("finish_reason").null().end_object().end_array();
    out += end_frame(w, state);
  }
  return out;
}

void write_delta(JsonWriter& w, const Piece& piece, bool internal) {
  w.key("delta").begin_object();
  switch (piece.kind) {
    case Piece::Kind::reasoning:
    case Piece::Kind::boundary: w.field("reasoning_content", piece.text); break;
    case Piece::Kind::content: w.field("content", piece.text); break;
    case Piece::Kind::call_start:
    case Piece::Kind::call_arguments: {
      const bool first = piece.kind == Piece::Kind::call_start;
      w.key("tool_calls").begin_array().begin_object().field("index", piece.call_index);
      if (first) w.field("id", piece.call_id).field("type", "function");
      w.key("function").begin_object();
      if (first) w.field("name", piece.call_name);
      w.field("arguments", piece.text).end_object().end_object().end_array();
    }
  }
  if (internal) {
    w.key("internal_content").begin_object().key("token_ids").begin_array();
    for (const int32_t id : piece.token_ids) w.value(id);
    w.end_array().end_object();
  }
  w.end_object();
}

std::string piece_frame(const AnswerState& state, size_t choice, const Piece& piece) {
  JsonWriter w;
  begin_frame(w, state);
  w.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(choice));
  write_delta(w, piece, state.generation.internal_content);
  if (!piece.logprobs.empty()) {
    w.key("logprobs");
    write_logprobs(w, piece.logprobs);
  }
  w.key("finish_reason").null().end_object().end_array();
  return end_frame(w, state);
}

std::string end_choice(const AnswerState& state, size_t choice) {
  JsonWriter w;
  begin_frame(w, state);
  w.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(choice));
  w.key("delta").begin_object().end_object().field("finish_reason", state.choices[choice].finish_reason());
  w.key("usage");
  write_usage(w, state.usage_of(choice));
  w.end_object().end_array();
  return end_frame(w, state);
}

std::string end(const AnswerState& state, bool normal) { return end_frames(state, normal, begin_frame); }

void write_message(JsonWriter& w, const ChoiceStream& choice) {
  const AssistantMessage message = choice.message();
  w.key("message").begin_object().field("role", "assistant");
  if (choice.thinking()) w.field("reasoning_content", message.reasoning);
  w.key("content");
  if (message.content) {
    w.value(*message.content);
  } else {
    w.null();
  }
  if (!message.calls.empty()) {
    w.key("tool_calls").begin_array();
    for (const OutputCall& call : message.calls) {
      w.begin_object().field("id", call.id).field("type", "function").key("function").begin_object();
      w.field("name", call.name).field("arguments", call.arguments).end_object().end_object();
    }
    w.end_array();
  }
  w.end_object();
}

std::string whole(const AnswerState& state) {
  JsonWriter w;
  w.begin_object().field("id", "chatcmpl-" + state.id).field("object", "chat.completion");
  w.field("created", state.created).field("model", state.model).key("choices").begin_array();
  for (size_t c = 0; c < state.choices.size(); ++c) {
    const ChoiceStream& choice = state.choices[c];
    w.begin_object().field("index", static_cast<int64_t>(c)).field("finish_reason", choice.finish_reason()).key("logprobs");
    if (state.generation.logprobs >= 0) {
      write_logprobs(w, choice.logprobs());
    } else {
      w.null();
    }
    write_message(w, choice);
    w.end_object();
  }
  w.end_array().key("usage");
  write_usage(w, state.total());
  return w.end_object().text();
}

}  // namespace

AnswerFormat chat_format() {
  return {.begin = begin, .piece = piece_frame, .end_choice = end_choice, .end = end, .whole = whole};
}

}  // namespace k3::server
