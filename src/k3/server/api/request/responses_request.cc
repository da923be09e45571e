// A Responses request, rewritten as a chat completion request. Nothing is stored between requests.
#include "k3/base/json_writer.h"
#include "k3/format/chat/request_parts.h"
#include "k3/server/api/request/fields.h"
#include "k3/server/api/request/jobs.h"

namespace k3::server {
namespace {

Status write_content(JsonWriter& w, const JsonNode& content, const std::string& path) {
  if (content.is_string()) {
    w.value(content.text);
    return {};
  }
  if (!content.is_array()) return bad_field(path, "must be a string or an array");
  w.begin_array();
  for (size_t i = 0; i < content.items.size(); ++i) {
    const JsonNode& part = content.items[i];
    const std::string where = fmt::format("{}[{}]", path, i);
    if (!part.is_object()) return bad_field(where, "must be an object");
    K3_TRY_ASSIGN(const std::string type, required_string(part, "type", where));
    if (type == "input_text" || type == "output_text" || type == "text") {
      K3_TRY_ASSIGN(const std::string text, required_string(part, "text", where));
      w.begin_object().field("type", "text").field("text", text).end_object();
    } else if (type == "input_image") {
      w.begin_object().field("type", "image_url").key("image_url").begin_object();
      w.field("url", text_of(part, "image_url")).end_object().end_object();
    } else {
      return bad_field(where + ".type", "unsupported content part '{}'", type);
    }
  }
  w.end_array();
  return {};
}

// Items of one assistant turn (reasoning, message, calls) become one message.
struct Turn {
  std::string reasoning;
  const JsonNode* content = nullptr;
  std::string content_path;
  std::vector<const JsonNode*> calls;
  bool empty() const { return reasoning.empty() && content == nullptr && calls.empty(); }
};

Status flush(JsonWriter& w, Turn& turn) {
  if (turn.empty()) return {};
  w.begin_object().field("role", "assistant").key("content");
  if (turn.content != nullptr) {
    K3_TRY(write_content(w, *turn.content, turn.content_path));
  } else {
    w.null();
  }
  if (!turn.reasoning.empty()) w.field("reasoning_content", turn.reasoning);
  if (!turn.calls.empty()) {
    w.key("tool_calls").begin_array();
    for (const JsonNode* call : turn.calls) {
      w.begin_object().field("id", text_of(*call, "call_id")).field("type", "function").key("function").begin_object();
      w.field("name", text_of(*call, "name")).field("arguments", text_of(*call, "arguments")).end_object().end_object();
    }
    w.end_array();
  }
  w.end_object();
  turn = Turn();
  return {};
}

std::string reasoning_text(const JsonNode& item) {
  std::string out;
  for (const char* key : {"content", "summary"}) {
    const JsonNode* list = item.find_set(key);
    if (list == nullptr || !list->is_array() || !out.empty()) continue;
    for (const JsonNode& part : list->items) out += text_of(part, "text");
  }
  return out;
}

Status write_item(JsonWriter& w, Turn& turn, const JsonNode& item, const std::string& path) {
  if (!item.is_object()) return bad_field(path, "must be an object");
  const std::string_view given = text_of(item, "type");
  const std::string_view type = given.empty() ? "message" : given;
  if (type == "reasoning") {
    if (turn.content != nullptr || !turn.calls.empty()) K3_TRY(flush(w, turn));
    turn.reasoning += reasoning_text(item);
    return {};
  }
  if (type == "function_call") {
    K3_TRY(required_string(item, "call_id", path));
    K3_TRY(required_string(item, "name", path));
    const JsonNode* arguments = item.find_set("arguments");
    if (arguments != nullptr && !arguments->is_string()) return bad_field(path + ".arguments", "must be a string");
    turn.calls.push_back(&item);
    return {};
  }
  if (type != "message" && type != "function_call_output") return bad_field(path + ".type", "unsupported item '{}'", type);
  const std::string field = type == "message" ? "content" : "output", where = path + "." + field;
  const JsonNode* content = item.find_set(field);
  if (content == nullptr) return bad_field(where, "is missing");
  if (type == "message") {
    K3_TRY_ASSIGN(const std::string role, required_string(item, "role", path));
    if (role == "assistant") {
      if (turn.content != nullptr || !turn.calls.empty()) K3_TRY(flush(w, turn));
      turn.content = content;
      turn.content_path = where;
      return {};
    }
    K3_TRY(flush(w, turn));
    w.begin_object().field("role", role).key("content");
    K3_TRY(write_content(w, *content, where));
  } else {
    K3_TRY(flush(w, turn));
    K3_TRY_ASSIGN(const std::string id, required_string(item, "call_id", path));
    w.begin_object().field("role", "tool").field("tool_call_id", id).key("content");
    K3_TRY(write_content(w, *content, where));
  }
  w.end_object();
  return {};
}

Status write_messages(JsonWriter& w, const JsonNode& root) {
  w.key("messages").begin_array();
  std::string instructions;
  K3_TRY(Fields(root).text("instructions", instructions));
  if (!instructions.empty()) w.begin_object().field("role", "system").field("content", instructions).end_object();
  const JsonNode* input = root.find_set("input");
  if (input == nullptr) return bad_field("input", "is missing");
  if (input->is_string()) {
    w.begin_object().field("role", "user").field("content", input->text).end_object();
  } else if (input->is_array() && !input->items.empty()) {
    Turn turn;
    for (size_t i = 0; i < input->items.size(); ++i)
      K3_TRY(write_item(w, turn, input->items[i], fmt::format("input[{}]", i)));
    K3_TRY(flush(w, turn));
  } else {
    return bad_field("input", "must be a string or an array that is not empty");
  }
  w.end_array();
  return {};
}

Status write_tools(JsonWriter& w, const JsonNode& root) {
  if (const JsonNode* tools = root.find_set("tools")) {
    if (!tools->is_array()) return bad_field("tools", "must be an array");
    w.key("tools").begin_array();
    for (size_t i = 0; i < tools->items.size(); ++i) {
      const JsonNode& tool = tools->items[i];
      const std::string path = fmt::format("tools[{}]", i);
      if (!tool.is_object()) return bad_field(path, "must be an object");
      K3_TRY_ASSIGN(const std::string type, required_string(tool, "type", path));
      if (type != "function") return bad_field(path + ".type", "unsupported tool type '{}'; only 'function' exists", type);
      w.begin_object().field("type", "function").key("function").begin_object();
      copy_fields(w, tool, {"name", "description", "strict", "parameters"});
      w.end_object().end_object();
    }
    w.end_array();
  }
  const JsonNode* choice = root.find_set("tool_choice");
  if (choice == nullptr) return {};
  if (choice->is_object() && choice->find_set("name") != nullptr) {
    write_tool_choice(w, text_of(*choice, "name"));
  } else {
    w.key("tool_choice").raw(choice->raw);
  }
  return {};
}

Status write_format(JsonWriter& w, const JsonNode& root) {
  const JsonNode* text = root.find_set("text");
  if (text != nullptr && !text->is_object()) return bad_field("text", "must be an object");
  const JsonNode* format = text != nullptr ? text->find_set("format") : nullptr;
  if (format == nullptr) return {};
  if (!format->is_object()) return bad_field("text.format", "must be an object");
  K3_TRY_ASSIGN(const std::string type, required_string(*format, "type", "text.format"));
  w.key("response_format").begin_object().field("type", type);
  if (type == "json_schema") {
    w.key("json_schema").begin_object();
    copy_fields(w, *format, {"name", "strict", "schema"});
    w.end_object();
  }
  w.end_object();
  return {};
}

Status rewrite(JsonWriter& w, const JsonNode& root) {
  const Fields fields(root);
  for (const char* stored : {"previous_response_id", "conversation"}) {
    if (fields.find(stored) != nullptr) return bad_field(stored, "nothing is stored here; send the whole conversation as input");
  }
  bool background = false;
  K3_TRY(fields.flag("background", background));
  if (background) return bad_field("background", "is not supported");
  w.begin_object();
  copy_fields(w, root, {"model", "stream", "temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "cache_salt"});
  if (const JsonNode* most = fields.find("max_output_tokens")) w.key("max_completion_tokens").raw(most->raw);
  if (const JsonNode* reasoning = fields.find("reasoning")) {
    if (!reasoning->is_object()) return bad_field("reasoning", "must be an object");
    if (const JsonNode* effort = reasoning->find_set("effort")) w.key("reasoning_effort").raw(effort->raw);
  }
  K3_TRY(write_messages(w, root));
  K3_TRY(write_tools(w, root));
  K3_TRY(write_format(w, root));
  w.end_object();
  return {};
}

}  // namespace

Outcome<Body> chat_of_responses(const JsonNode& root) {
  JsonWriter w;
  if (const Status status = rewrite(w, root); !status.ok()) return status.error();
  return parse_body(w.text());
}

}  // namespace k3::server
