// The Responses dialect: output items (reasoning, message, function_call) and their numbered events.
#include <memory>

#include "k3/server/api/answer/formats.h"
#include "k3/server/api/answer/openai_json.h"

namespace k3::server {
namespace {

// An output item as far as it has come.
struct Item {
  enum class Kind { reasoning, message, call };
  Kind kind = Kind::message;
  std::string id, text, call_id, name;
  bool done = false;
};

void write_text_part(JsonWriter& w, std::string_view type, std::string_view text) {
  w.begin_object().field("type", type).field("text", text);
  if (type == "output_text") w.key("annotations").begin_array().end_array().key("logprobs").begin_array().end_array();
  w.end_object();
}

void write_item(JsonWriter& w, const Item& item) {
  const char* status = item.done ? "completed" : "in_progress";
  w.begin_object().field("id", item.id);
  switch (item.kind) {
    case Item::Kind::reasoning:
      w.field("type", "reasoning").key("summary").begin_array().end_array().key("content").begin_array();
      if (item.done) write_text_part(w, "reasoning_text", item.text);
      w.end_array();
      break;
    case Item::Kind::message:
      w.field("type", "message").field("role", "assistant").key("content").begin_array();
      if (item.done) write_text_part(w, "output_text", item.text);
      w.end_array();
      break;
    case Item::Kind::call:
      w.field("type", "function_call").field("call_id", item.call_id).field("name", item.name);
      w.field("arguments", item.done ? item.text : "");
  }
  w.field("status", status).end_object();
}

void write_usage_of(JsonWriter& w, const Usage& usage) {
  w.key("usage").begin_object().field("input_tokens", usage.prompt_tokens);
  w.key("input_tokens_details").begin_object().field("cached_tokens", usage.cached_tokens).end_object();
  w.field("output_tokens", usage.completion_tokens);
  w.key("output_tokens_details").begin_object().field("reasoning_tokens", usage.reasoning_tokens).end_object();
  w.field("total_tokens", usage.prompt_tokens + usage.completion_tokens).end_object();
}

// What the answer repeats of its request, as JSON on one line.
struct Asked {
  std::string tools = "[]", tool_choice = "\"auto\"", parallel_tool_calls = "true";
};

Asked asked_of(const JsonNode& request) {
  Asked asked;
  for (const auto& [name, out] : {std::pair("tools", &asked.tools), std::pair("tool_choice", &asked.tool_choice),
                                  std::pair("parallel_tool_calls", &asked.parallel_tool_calls)}) {
    const JsonNode* node = request.find_set(name);
    if (node == nullptr) continue;
    out->clear();
    append_json(*out, *node, {.literal = true});
  }
  return asked;
}

// status: in_progress, completed, incomplete or failed.
void write_response(JsonWriter& w, const AnswerState& state, const Asked& asked, std::string_view status,
                    const std::vector<Item>& items) {
  w.begin_object().field("id", "resp_" + state.id).field("object", "response").field("created_at", state.created);
  w.field("status", status).field("model", state.model).key("error");
  if (status == "failed") {
    w.begin_object().field("code", "server_error").field("message", state.choices[0].finish_reason()).end_object();
  } else {
    w.null();
  }
  w.key("incomplete_details");
  if (status == "incomplete") {
    w.begin_object().field("reason", "max_output_tokens").end_object();
  } else {
    w.null();
  }
  w.key("instructions").null().key("metadata").begin_object().end_object();
  w.key("parallel_tool_calls").raw(asked.parallel_tool_calls);
  w.field("temperature", static_cast<double>(state.generation.sampling.temperature));
  w.field("top_p", static_cast<double>(state.generation.sampling.top_p));
  w.key("tool_choice").raw(asked.tool_choice).key("tools").raw(asked.tools).key("output").begin_array();
  for (const Item& item : items) write_item(w, item);
  w.end_array();
  if (status == "in_progress") {
    w.key("usage").null();
  } else {
    write_usage_of(w, state.total());
  }
  w.end_object();
}

std::string_view status_of(const ChoiceStream& choice) {
  const std::string& reason = choice.finish_reason();
  if (reason == "length") return "incomplete";
  return reason == "stop" || reason == "tool_calls" ? "completed" : "failed";
}

class Items {
 public:
  explicit Items(Asked asked) : asked_(std::move(asked)) {}

  std::string begin(const AnswerState& state) {
    std::string out;
    for (const char* type : {"response.created", "response.in_progress"}) {
      JsonWriter w;
      head(w, type).key("response");
      write_response(w, state, asked_, "in_progress", {});
      out += finish(w, type);
    }
    return out;
  }

  std::string piece(const AnswerState& state, const Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::reasoning: return said(state, Item::Kind::reasoning, "response.reasoning_text.delta", piece.text);
      case Piece::Kind::boundary: return close();
      case Piece::Kind::content: return said(state, Item::Kind::message, "response.output_text.delta", piece.text);
      case Piece::Kind::call_start: {
        std::string out = close();
        Item item{.kind = Item::Kind::call,
                  .id = next_id(state, "fc_"),
                  .text = {},
                  .call_id = piece.call_id,
                  .name = piece.call_name};
        out += open(std::move(item));
        return out;
      }
      case Piece::Kind::call_arguments: return delta("response.function_call_arguments.delta", piece.text);
    }
    return {};
  }

  std::string end(const AnswerState& state) {
    std::string out = close();
    const std::string_view status = status_of(state.choices[0]);
    const std::string type = "response." + std::string(status);
    JsonWriter w;
    head(w, type).key("response");
    write_response(w, state, asked_, status, items_);
    out += finish(w, type);
    return out;
  }

 private:
  JsonWriter& head(JsonWriter& w, std::string_view type) {
    return w.begin_object().field("type", type).field("sequence_number", sequence_++);
  }
  std::string finish(JsonWriter& w, std::string_view type) {
    w.end_object();
    return fmt::format("event: {}\ndata: {}\n\n", type, w.text());
  }
  std::string next_id(const AnswerState& state, std::string_view prefix) {
    return fmt::format("{}{}{:02d}", prefix, state.id, items_.size());
  }
  bool is_open() const { return !items_.empty() && !items_.back().done; }

  // Statements, not one sum: its operands may be evaluated in any order, and each takes the next number.
  std::string said(const AnswerState& state, Item::Kind kind, std::string_view type, const std::string& text) {
    std::string out = ensure(state, kind);
    out += delta(type, text);
    return out;
  }

  std::string ensure(const AnswerState& state, Item::Kind kind) {
    if (is_open() && items_.back().kind == kind) return {};
    std::string out = close();
    Item item;
    item.kind = kind;
    item.id = next_id(state, kind == Item::Kind::reasoning ? "rs_" : "msg_");
    out += open(std::move(item));
    return out;
  }

  JsonWriter& place(JsonWriter& w) {
    w.field("item_id", items_.back().id).field("output_index", static_cast<int64_t>(items_.size()) - 1);
    if (items_.back().kind != Item::Kind::call) w.field("content_index", 0);
    return w;
  }

  std::string part(std::string_view type, std::string_view text) {
    JsonWriter w;
    place(head(w, type)).key("part");
    write_text_part(w, items_.back().kind == Item::Kind::reasoning ? "reasoning_text" : "output_text", text);
    return finish(w, type);
  }

  std::string whole_item(std::string_view type) {
    JsonWriter w;
    head(w, type).field("output_index", static_cast<int64_t>(items_.size()) - 1).key("item");
    write_item(w, items_.back());
    return finish(w, type);
  }

  std::string open(Item item) {
    items_.push_back(std::move(item));
    std::string out = whole_item("response.output_item.added");
    if (items_.back().kind == Item::Kind::message) out += part("response.content_part.added", "");
    return out;
  }

  std::string delta(std::string_view type, const std::string& text) {
    if (!is_open()) return {};
    items_.back().text += text;
    JsonWriter w;
    place(head(w, type)).field("delta", text);
    if (items_.back().kind == Item::Kind::message) w.key("logprobs").begin_array().end_array();
    return finish(w, type);
  }

  std::string close() {
    if (!is_open()) return {};
    Item& item = items_.back();
    const std::string_view type = item.kind == Item::Kind::reasoning ? "response.reasoning_text.done"
                                  : item.kind == Item::Kind::message ? "response.output_text.done"
                                                                     : "response.function_call_arguments.done";
    JsonWriter w;
    place(head(w, type)).field(item.kind == Item::Kind::call ? "arguments" : "text", item.text);
    if (item.kind == Item::Kind::message) w.key("logprobs").begin_array().end_array();
    if (item.kind == Item::Kind::call) w.field("name", item.name);
    std::string out = finish(w, type);
    if (item.kind == Item::Kind::message) out += part("response.content_part.done", item.text);
    item.done = true;
    out += whole_item("response.output_item.done");
    return out;
  }

  Asked asked_;
  std::vector<Item> items_;
  int64_t sequence_ = 0;
};

std::string whole(const AnswerState& state, const Asked& asked) {
  const AssistantMessage message = state.choices[0].message();
  std::vector<Item> items;
  const auto add = [&](Item::Kind kind, std::string_view prefix, std::string text) -> Item& {
    items.push_back({.kind = kind,
                     .id = fmt::format("{}{}{:02d}", prefix, state.id, items.size()),
                     .text = std::move(text),
                     .call_id = {},
                     .name = {},
                     .done = true});
    return items.back();
  };
  if (!message.reasoning.empty()) add(Item::Kind::reasoning, "rs_", message.reasoning);
  if (message.content && !message.content->empty()) add(Item::Kind::message, "msg_", *message.content);
  for (const OutputCall& call : message.calls) {
    Item& item = add(Item::Kind::call, "fc_", call.arguments);
    item.call_id = call.id;
    item.name = call.name;
  }
  JsonWriter w;
  write_response(w, state, asked, status_of(state.choices[0]), items);
  return w.text();
}

}  // namespace

AnswerFormat responses_format(const JsonNode& request) {
  const Asked asked = asked_of(request);
  const auto items = std::make_shared<Items>(asked);
  AnswerFormat format;
  format.begin = [items](const AnswerState& state) { return items->begin(state); };
  format.piece = [items](const AnswerState& state, size_t, const Piece& piece) { return items->piece(state, piece); };
  format.end_choice = [items](const AnswerState& state, size_t) { return items->end(state); };
  format.end = [](const AnswerState&, bool) { return std::string(); };
  format.whole = [asked](const AnswerState& state) { return whole(state, asked); };
  return format;
}

}  // namespace k3::server
