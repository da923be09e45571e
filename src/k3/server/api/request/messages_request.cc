// Anthropic messages, rewritten as a chat completion request.
#include "k3/base/json_writer.h"
#include "k3/format/chat/request_parts.h"
#include "k3/server/api/request/fields.h"
#include "k3/server/api/request/jobs.h"

namespace k3::server {
namespace {

// Thinking budgets are tokens there and levels here.
constexpr int64_t kHighBudget = 4096, kMaxBudget = 16384;

void write_text_part(JsonWriter& w, std::string_view text) {
  w.begin_object().field("type", "text").field("text", text).end_object();
}

Status write_image_part(JsonWriter& w, const JsonNode& block, const std::string& path) {
  const JsonNode* source = block.find_set("source");
  if (source == nullptr || !source->is_object()) return bad_field(path + ".source", "is missing");
  std::string url(text_of(*source, "url"));
  if (text_of(*source, "type") == "base64")
    url = fmt::format("data:{};base64,{}", text_of(*source, "media_type"), text_of(*source, "data"));
  w.begin_object().field("type", "image_url").key("image_url").begin_object().field("url", url).end_object().end_object();
  return {};
}

// Text and images of a message or of a tool's result, as content parts.
Status write_parts(JsonWriter& w, const JsonNode& content, const std::string& path) {
  w.begin_array();
  if (content.is_string()) {
    write_text_part(w, content.text);
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.items.size(); ++i) {
      const JsonNode& block = content.items[i];
      const std::string where = fmt::format("{}[{}]", path, i);
      if (!block.is_object()) return bad_field(where, "must be an object");
      K3_TRY_ASSIGN(const std::string type, required_string(block, "type", where));
      if (type == "text") {
        K3_TRY_ASSIGN(const std::string text, required_string(block, "text", where));
        write_text_part(w, text);
      } else if (type == "image") {
        K3_TRY(write_image_part(w, block, where));
      } else if (type != "tool_use" && type != "tool_result" && type != "thinking" && type != "redacted_thinking") {
        return bad_field(where + ".type", "unsupported block '{}'", type);
      }
    }
  } else if (!content.is_null()) {
    return bad_field(path, "must be a string or an array, not {}", json_kind_name(content.kind));
  }
  w.end_array();
  return {};
}

bool holds_part(const JsonNode& content) {
  if (!content.is_array()) return true;
  for (const JsonNode& block : content.items) {
    const std::string_view type = block.is_object() ? text_of(block, "type") : "?";
    if (type != "tool_result") return true;
  }
  return content.items.empty();
}

// Results of tools are messages of their own, before what else the user says.
Status write_user(JsonWriter& w, const JsonNode& content, const std::string& path) {
  for (size_t i = 0; content.is_array() && i < content.items.size(); ++i) {
    const JsonNode& block = content.items[i];
    if (!block.is_object() || text_of(block, "type") != "tool_result") continue;
    const std::string where = fmt::format("{}[{}]", path, i);
    K3_TRY_ASSIGN(const std::string id, required_string(block, "tool_use_id", where));
    w.begin_object().field("role", "tool").field("tool_call_id", id).key("content");
    const JsonNode* inner = block.find_set("content");
    if (inner == nullptr) {
      w.value("");
    } else {
      K3_TRY(write_parts(w, *inner, where + ".content"));
    }
    w.end_object();
  }
  if (!holds_part(content)) return {};
  w.begin_object().field("role", "user").key("content");
  K3_TRY(write_parts(w, content, path));
  w.end_object();
  return {};
}

Status write_calls(JsonWriter& w, const JsonNode& content, const std::string& path) {
  bool any = false;
  for (size_t i = 0; content.is_array() && i < content.items.size(); ++i) {
    const JsonNode& block = content.items[i];
    if (!block.is_object() || text_of(block, "type") != "tool_use") continue;
    const std::string where = fmt::format("{}[{}]", path, i);
    K3_TRY_ASSIGN(const std::string id, required_string(block, "id", where));
    K3_TRY_ASSIGN(const std::string name, required_string(block, "name", where));
    const JsonNode* input = block.find_set("input");
    if (input != nullptr && !input->is_object()) return bad_field(where + ".input", "must be an object");
    if (!any) w.key("tool_calls").begin_array();
    any = true;
    w.begin_object().field("id", id).field("type", "function").key("function").begin_object().field("name", name);
    w.key("arguments").raw(input == nullptr ? "{}" : input->raw).end_object().end_object();
  }
  if (any) w.end_array();
  return {};
}

Status write_assistant(JsonWriter& w, const JsonNode& content, const std::string& path) {
  w.begin_object().field("role", "assistant").key("content");
  K3_TRY(write_parts(w, content, path));
  std::string reasoning;
  for (const JsonNode& block : content.items) {
    if (content.is_array() && text_of(block, "type") == "thinking") reasoning += text_of(block, "thinking");
  }
  if (!reasoning.empty()) w.field("reasoning_content", reasoning);
  K3_TRY(write_calls(w, content, path));
  w.end_object();
  return {};
}

Status write_messages(JsonWriter& w, const JsonNode& root) {
  w.key("messages").begin_array();
  if (const JsonNode* system = root.find_set("system")) {
    w.begin_object().field("role", "system").key("content");
    K3_TRY(write_parts(w, *system, "system"));
    w.end_object();
  }
  const JsonNode* messages = root.find_set("messages");
  if (messages == nullptr) return bad_field("messages", "is missing");
  if (!messages->is_array()) return bad_field("messages", "must be an array, not {}", json_kind_name(messages->kind));
  if (messages->items.empty()) return bad_field("messages", "is empty");
  for (size_t i = 0; i < messages->items.size(); ++i) {
    const JsonNode& message = messages->items[i];
    const std::string path = fmt::format("messages[{}]", i);
    if (!message.is_object()) return bad_field(path, "must be an object");
    K3_TRY_ASSIGN(const std::string role, required_string(message, "role", path));
    const JsonNode* content = message.find_set("content");
    if (content == nullptr) return bad_field(path + ".content", "is missing");
    if (role == "user") {
      K3_TRY(write_user(w, *content, path + ".content"));
    } else if (role == "assistant") {
      K3_TRY(write_assistant(w, *content, path + ".content"));
    } else {
      return bad_field(path + ".role", "'{}' is not one of user, assistant", role);
    }
  }
  w.end_array();
  return {};
}

Status write_tools(JsonWriter& w, const JsonNode& root) {
  const JsonNode* tools = root.find_set("tools");
  if (tools != nullptr) {
    if (!tools->is_array()) return bad_field("tools", "must be an array");
    w.key("tools").begin_array();
    for (size_t i = 0; i < tools->items.size(); ++i) {
      const JsonNode& tool = tools->items[i];
      const std::string path = fmt::format("tools[{}]", i);
      if (!tool.is_object()) return bad_field(path, "must be an object");
      const std::string_view type = text_of(tool, "type");
      if (!type.empty() && type != "custom") return bad_field(path + ".type", "unsupported tool type '{}'", type);
      w.begin_object().field("type", "function").key("function").begin_object();
      K3_TRY_ASSIGN(const std::string name, required_string(tool, "name", path));
      w.field("name", name);
      if (const auto text = text_of(tool, "description"); !text.empty()) w.field("description", text);
      if (const JsonNode* strict = tool.find_set("strict")) w.key("strict").raw(strict->raw);
      if (const JsonNode* schema = tool.find_set("input_schema")) w.key("parameters").raw(schema->raw);
      w.end_object().end_object();
    }
    w.end_array();
  }
  return {};
}

Status write_choice(JsonWriter& w, const JsonNode& root) {
  const JsonNode* choice = root.find_set("tool_choice");
  if (choice == nullptr) return {};
  if (!choice->is_object()) return bad_field("tool_choice", "must be an object");
  const std::string_view type = text_of(*choice, "type");
  if (type == "tool") {
    write_tool_choice(w, text_of(*choice, "name"));
  } else if (type == "auto" || type == "none" || type == "any") {
    w.field("tool_choice", type == "any" ? std::string_view("required") : type);
  } else {
    return bad_field("tool_choice.type", "'{}' is not one of auto, any, tool, none", type);
  }
  if (const JsonNode* one = choice->find_set("disable_parallel_tool_use"); one != nullptr && one->is_boolean()) {
    w.field("parallel_tool_calls", !one->flag);
  }
  return {};
}

// Without the field there is no thinking, as clients of this dialect expect.
Status write_thinking(JsonWriter& w, const JsonNode& root) {
  const JsonNode* thinking = root.find_set("thinking");
  std::string_view type = "disabled", effort;
  if (thinking != nullptr) {
    if (!thinking->is_object()) return bad_field("thinking", "must be an object");
    type = text_of(*thinking, "type");
    if (type != "enabled" && type != "disabled" && type != "adaptive") {
      return bad_field("thinking.type", "must be 'enabled' or 'disabled'");
    }
    int64_t budget = kMaxBudget;
    K3_TRY(Fields(*thinking).integer("budget_tokens", budget, 1).with_context("thinking"));
    effort = budget >= kMaxBudget ? "max" : budget >= kHighBudget ? "high" : "low";
  }
  w.key("thinking").begin_object().field("type", type);
  if (type != "disabled") w.field("effort", effort);
  w.end_object();
  return {};
}

Status write_rest(JsonWriter& w, const JsonNode& root, bool count_only) {
  const Fields fields(root);
  int64_t most = 0;
  K3_TRY(fields.integer("max_tokens", most, 1));
  if (most == 0 && !count_only) return bad_field("max_tokens", "is missing");
  if (most > 0) w.field("max_tokens", most);
  copy_fields(w, root, {"model", "stream", "temperature", "top_p", "top_k", "seed", "cache_salt"});
  if (const JsonNode* stops = fields.find("stop_sequences")) w.key("stop_sequences").raw(stops->raw);
  return {};
}

Status rewrite(JsonWriter& w, const JsonNode& root, bool count_only) {
  w.begin_object();
  K3_TRY(write_rest(w, root, count_only));
  K3_TRY(write_messages(w, root));
  K3_TRY(write_tools(w, root));
  K3_TRY(write_choice(w, root));
  K3_TRY(write_thinking(w, root));
  w.end_object();
  return {};
}

}  // namespace

Outcome<Body> chat_of_messages(const JsonNode& root, bool count_only) {
  JsonWriter w;
  if (const Status status = rewrite(w, root, count_only); !status.ok()) return status.error();
  return parse_body(w.text());
}

}  // namespace k3::server
