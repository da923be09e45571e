// The body of a chat completion request to a ChatRequest (api.md 3, 3.1).
#include <algorithm>

#include "k3/format/chat/request_parts.h"

namespace k3 {
namespace {

Result<ContentPart> parse_part(const JsonNode& part, const std::string& path) {
  if (!part.is_object()) return bad_field(path, "must be an object, not {}", json_kind_name(part.kind));
  K3_TRY_ASSIGN(const std::string type, required_string(part, "type", path));
  if (type == "text") {
    ContentPart out;
    K3_TRY_ASSIGN(out.text, required_string(part, "text", path));
    return out;
  }
  if (type == "image_url") return parse_image_part(part, path);
  return bad_field(path + ".type", "unsupported content part '{}'; text and image_url exist", type);
}

Status parse_content(const JsonNode& node, const std::string& path, std::vector<ContentPart>& out) {
  if (node.is_null()) return {};
  if (node.is_string()) {
    out.push_back({ContentPart::Kind::text, node.text, {}, {}});
    return {};
  }
  if (!node.is_array()) return bad_field(path, "must be a string, null or an array, not {}", json_kind_name(node.kind));
  for (size_t i = 0; i < node.items.size(); ++i) {
    K3_TRY_ASSIGN(ContentPart part, parse_part(node.items[i], fmt::format("{}[{}]", path, i)));
    out.push_back(std::move(part));
  }
  return {};
}

Result<Role> parse_role(const JsonNode& message, const std::string& path) {
  K3_TRY_ASSIGN(const std::string role, required_string(message, "role", path));
  if (role == "user") return Role::user;
  if (role == "system" || role == "developer") return Role::system;
  if (role == "assistant") return Role::assistant;
  if (role == "tool") return Role::tool;
  return bad_field(path + ".role", "'{}' is not one of system, user, assistant, tool", role);
}

Status optional_string(const JsonNode& message, std::string_view key, const std::string& path, std::string& out) {
  const JsonNode* node = message.find_set(key);
  if (node == nullptr) return {};
  if (!node->is_string())
    return bad_field(fmt::format("{}.{}", path, key), "must be a string, not {}", json_kind_name(node->kind));
  out = node->text;
  return {};
}

bool has_content(const ChatMessage& message) {
  const auto filled = [](const ContentPart& part) { return part.kind == ContentPart::Kind::image || !part.text.empty(); };
  return std::any_of(message.content.begin(), message.content.end(), filled);
}

Status parse_dynamic_tools(const JsonNode& node, const std::string& path, ChatMessage& message,
                           std::set<std::string>& names) {
  const JsonNode* tools = node.find_set("tools");
  if (tools == nullptr) return {};
  if (message.role != Role::system) return bad_field(path + ".tools", "only a system message may declare tools");
  K3_TRY_ASSIGN(message.tools, parse_tools(*tools, path + ".tools", names));
  if (!message.tools.empty() && has_content(message)) {
    return bad_field(path + ".content", "a system message that declares tools must have no content");
  }
  return {};
}

Status parse_assistant(const JsonNode& node, const std::string& path, ChatMessage& message) {
  K3_TRY(optional_string(node, "reasoning", path, message.reasoning));
  K3_TRY(optional_string(node, "reasoning_content", path, message.reasoning));
  if (const JsonNode* calls = node.find_set("tool_calls")) {
    if (!calls->is_array()) return bad_field(path + ".tool_calls", "must be an array, not {}", json_kind_name(calls->kind));
    for (size_t i = 0; i < calls->items.size(); ++i) {
      K3_TRY_ASSIGN(ToolCall call, parse_tool_call(calls->items[i], fmt::format("{}.tool_calls[{}]", path, i)));
      message.tool_calls.push_back(std::move(call));
    }
  }
  return {};
}

Result<ChatMessage> parse_message(const JsonNode& node, const std::string& path, std::set<std::string>& names) {
  if (!node.is_object()) return bad_field(path, "must be an object, not {}", json_kind_name(node.kind));
  ChatMessage message;
  K3_TRY_ASSIGN(message.role, parse_role(node, path));
  const JsonNode* content = node.find("content");
  const bool may_lack = message.role == Role::assistant || message.role == Role::system;
  if (content == nullptr && !may_lack) return bad_field(path + ".content", "is missing");
  if (content != nullptr) K3_TRY(parse_content(*content, path + ".content", message.content));
  K3_TRY(optional_string(node, "name", path, message.name));
  K3_TRY(parse_dynamic_tools(node, path, message, names));
  if (message.role == Role::assistant) K3_TRY(parse_assistant(node, path, message));
  if (message.role == Role::tool) {
    K3_TRY_ASSIGN(message.tool_call_id, required_string(node, "tool_call_id", path));
  }
  if (const JsonNode* partial = node.find_set("partial")) {
    if (!partial->is_boolean()) return bad_field(path + ".partial", "must be a boolean");
    message.partial = partial->flag;
  }
  return message;
}

Status optional_flag(const JsonNode& root, const std::string& key, std::optional<bool>& out) {
  const JsonNode* node = root.find_set(key);
  if (node == nullptr) return {};
  if (!node->is_boolean()) return bad_field(key, "must be a boolean");
  out = node->flag;
  return {};
}

// Whether the last message is left open (partial, continue_final_message) or a new one is opened.
Status parse_continuation(const JsonNode& root, ChatRequest& request) {
  std::optional<bool> open_new, carry_on;
  K3_TRY(optional_flag(root, "add_generation_prompt", open_new));
  K3_TRY(optional_flag(root, "continue_final_message", carry_on));
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    if (!message.partial) continue;
    const std::string path = fmt::format("messages[{}].partial", i);
    if (message.role != Role::assistant) return bad_field(path, "only an assistant message can be continued");
    if (i + 1 != request.messages.size()) return bad_field(path, "only the last message can be continued");
    carry_on = true;
  }
  request.continue_final_message = carry_on.value_or(false);
  request.add_generation_prompt = open_new.value_or(!request.continue_final_message);
  if (!request.continue_final_message) return {};
  const ChatMessage& last = request.messages.back();
  const std::string path = fmt::format("messages[{}]", request.messages.size() - 1);
  if (request.add_generation_prompt)
    return bad_field("add_generation_prompt", "cannot be true when the last message is continued");
  if (last.role != Role::assistant) return bad_field(path, "only an assistant message can be continued");
  if (!last.tool_calls.empty()) return bad_field(path + ".tool_calls", "a message with tool calls cannot be continued");
  return {};
}

// A header of 33 bytes can claim 16,384 tokens: the sum is bounded before the prompt is written out.
Status check_image_tokens(const ChatRequest& request) {
  int64_t tokens = 0;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    for (size_t p = 0; p < request.messages[i].content.size(); ++p) {
      const ContentPart& part = request.messages[i].content[p];
      if (part.kind != ContentPart::Kind::image) continue;
      tokens += image_tokens(part.image.width, part.image.height);
      if (tokens > kMaxRequestImageTokens) {
        return bad_field(fmt::format("messages[{}].content[{}]", i, p),
                         "the images up to here need {} tokens; the limit is {}", tokens, kMaxRequestImageTokens);
      }
    }
  }
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(const JsonNode& root) {
  if (!root.is_object())
    return fail(Code::invalid_argument, "the request must be a JSON object, not {}", json_kind_name(root.kind));
  ChatRequest request;
  std::set<std::string> names;
  if (const JsonNode* tools = root.find_set("tools")) {
    K3_TRY_ASSIGN(request.tools, parse_tools(*tools, "tools", names));
  }
  const JsonNode* messages = root.find_set("messages");
  if (messages == nullptr) return bad_field("messages", "is missing");
  if (!messages->is_array()) return bad_field("messages", "must be an array, not {}", json_kind_name(messages->kind));
  if (messages->items.empty()) return bad_field("messages", "is empty");
  for (size_t i = 0; i < messages->items.size(); ++i) {
    K3_TRY_ASSIGN(ChatMessage message, parse_message(messages->items[i], fmt::format("messages[{}]", i), names));
    request.messages.push_back(std::move(message));
  }
  K3_TRY(check_image_tokens(request));
  K3_TRY(parse_tool_choice(root, request));
  std::optional<bool> parallel;
  K3_TRY(optional_flag(root, "parallel_tool_calls", parallel));
  request.parallel_tool_calls = parallel.value_or(true);
  K3_TRY_ASSIGN(request.response_format, parse_response_format(root));
  K3_TRY_ASSIGN(request.thinking, parse_thinking(root));
  K3_TRY(parse_continuation(root, request));
  return request;
}

Result<ChatRequest> parse_chat_request(std::string_view json) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json));
  return parse_chat_request(root);
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::system: return "system";
    case Role::user: return "user";
    case Role::assistant: return "assistant";
    case Role::tool: return "tool";
  }
  return "?";
}

std::string_view effort_name(Effort effort) {
  return effort == Effort::low ? "low" : effort == Effort::high ? "high" : "max";
}

std::string content_text(const ChatMessage& message) {
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

ChatMessage text_message(Role role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.push_back({ContentPart::Kind::text, std::move(text), {}, {}});
  return message;
}

int64_t ChatRequest::call_count() const {
  int64_t count = 0;
  for (const ChatMessage& message : messages) count += static_cast<int64_t>(message.tool_calls.size());
  return count;
}

bool ChatRequest::declares_tool(std::string_view name) const {
  const auto named = [&](const ToolDeclaration& tool) { return tool.name == name; };
  const auto holds = [&](const ToolSet& set) { return std::any_of(set.items.begin(), set.items.end(), named); };
  return holds(tools) || std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& m) { return holds(m.tools); });
}

bool ChatRequest::has_images() const {
  const auto image = [](const ContentPart& part) { return part.kind == ContentPart::Kind::image; };
  return std::any_of(messages.begin(), messages.end(),
                     [&](const ChatMessage& m) { return std::any_of(m.content.begin(), m.content.end(), image); });
}

}  // namespace k3
