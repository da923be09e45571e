// Tool declarations, calls in the history, tool_choice (api.md 7.1).
#include <algorithm>
#include <unordered_map>

#include "k3/format/chat/request_parts.h"

namespace k3 {
namespace {

constexpr size_t kMaxNameBytes = 256;

bool legal_tool_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto inner = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kMaxNameBytes && letter(name[0]) && std::all_of(name.begin(), name.end(), inner);
}

Result<ToolDeclaration> parse_declaration(const JsonNode& item, const std::string& path) {
  if (!item.is_object()) return bad_field(path, "a tool must be an object, not {}", json_kind_name(item.kind));
  K3_TRY_ASSIGN(const std::string type, required_string(item, "type", path));
  if (type != "function") return bad_field(path + ".type", "unsupported tool type '{}'; only 'function' exists", type);
  const JsonNode* function = item.find_set("function");
  if (function == nullptr) return bad_field(path + ".function", "is missing");
  if (!function->is_object()) return bad_field(path + ".function", "must be an object");
  ToolDeclaration tool;
  K3_TRY_ASSIGN(tool.name, required_string(*function, "name", path + ".function"));
  if (!legal_tool_name(tool.name)) {
    return bad_field(path + ".function.name",
                     "must start with a letter or '_' and hold 1 to 256 letters, digits, '_' or '-'");
  }
  if (const JsonNode* strict = function->find_set("strict")) {
    if (!strict->is_boolean()) return bad_field(path + ".function.strict", "must be a boolean");
    tool.strict = strict->flag;
  }
  if (const JsonNode* parameters = function->find_set("parameters")) {
    if (!parameters->is_object()) return bad_field(path + ".function.parameters", "must be an object");
    append_json(tool.parameters_json, *parameters, {.sorted = true});
    tool.parameters_source = parameters->raw;
  }
  return tool;
}

std::string_view type_of(const JsonNode& value) {
  switch (value.kind) {
    case JsonNode::Kind::null: return "null";
    case JsonNode::Kind::boolean: return "boolean";
    case JsonNode::Kind::number: return "number";
    case JsonNode::Kind::string: return "string";
    case JsonNode::Kind::array: return "array";
    case JsonNode::Kind::object: return "object";
  }
  return "string";
}

// literal: the value came inside an arguments string, so its numbers keep their spelling.
void add_arguments(ToolCall& call, const JsonNode& object, bool literal) {
  std::unordered_map<std::string_view, size_t> places;
  for (size_t i = 0; i < object.items.size(); ++i) {
    const JsonNode& value = object.items[i];
    CallArgument argument{object.keys[i], std::string(type_of(value)), {}};
    if (value.is_string()) {
      argument.text = value.text;
    } else {
      append_json(argument.text, value, {.spaced = true, .literal = literal});
    }
    // A key given twice keeps its first place and its last value, as in the reference's dictionaries.
    const auto [place, added] = places.emplace(object.keys[i], call.arguments.size());
    if (added) {
      call.arguments.push_back(std::move(argument));
    } else {
      call.arguments[place->second] = std::move(argument);
    }
  }
}

Status parse_arguments(const JsonNode& node, const std::string& path, ToolCall& call) {
  if (node.is_object()) {
    append_json(call.json, node, {.spaced = true});
    add_arguments(call, node, false);
    return {};
  }
  if (!node.is_string())
    return bad_field(path, "must be a JSON-object string, an object or null, not {}", json_kind_name(node.kind));
  if (node.text.find_first_not_of(" \t\r\n") == std::string::npos) {
    call.json = "{}";
    return {};
  }
  call.json = node.text;
  const auto parsed = parse_json(node.text, DuplicateKeys::keep);
  if (!parsed.ok()) {
    call.unparsed = node.text;
    return {};
  }
  if (!parsed->is_object()) return bad_field(path, "must hold a JSON object, not {}", json_kind_name(parsed->kind));
  add_arguments(call, *parsed, true);
  return {};
}

}  // namespace

Result<std::string> required_string(const JsonNode& object, std::string_view key, const std::string& path) {
  const std::string where = fmt::format("{}.{}", path, key);
  const JsonNode* node = object.find_set(key);
  if (node == nullptr) return bad_field(where, "is missing");
  if (!node->is_string()) return bad_field(where, "must be a string, not {}", json_kind_name(node->kind));
  return node->text;
}

Result<ToolSet> parse_tools(const JsonNode& node, const std::string& path, std::set<std::string>& names) {
  if (!node.is_array()) return bad_field(path, "must be an array, not {}", json_kind_name(node.kind));
  ToolSet set;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    K3_TRY_ASSIGN(ToolDeclaration tool, parse_declaration(node.items[i], where));
    if (!names.insert(tool.name).second) return bad_field(where + ".function.name", "'{}' is declared twice", tool.name);
    set.items.push_back(std::move(tool));
  }
  append_json(set.json, node, {.sorted = true});
  return set;
}

Result<ToolCall> parse_tool_call(const JsonNode& node, const std::string& path) {
  if (!node.is_object()) return bad_field(path, "must be an object, not {}", json_kind_name(node.kind));
  ToolCall call;
  if (const JsonNode* type = node.find_set("type"); type != nullptr && (!type->is_string() || type->text != "function")) {
    return bad_field(path + ".type", "only 'function' exists");
  }
  if (const JsonNode* id = node.find_set("id")) {
    if (!id->is_string()) return bad_field(path + ".id", "must be a string");
    call.id = id->text;
  }
  const JsonNode* function = node.find_set("function");
  if (function == nullptr) return bad_field(path + ".function", "is missing");
  if (!function->is_object()) return bad_field(path + ".function", "must be an object");
  K3_TRY_ASSIGN(call.name, required_string(*function, "name", path + ".function"));
  if (call.name.empty()) return bad_field(path + ".function.name", "is empty");
  if (const JsonNode* arguments = function->find_set("arguments")) {
    K3_TRY(parse_arguments(*arguments, path + ".function.arguments", call));
  } else {
    call.json = "{}";
  }
  return call;
}

Status parse_tool_choice(const JsonNode& root, ChatRequest& request) {
  const JsonNode* node = root.find_set("tool_choice");
  if (node == nullptr) return {};
  const std::string path = "tool_choice";
  const auto has_tools = [](const ChatMessage& message) { return !message.tools.empty(); };
  const bool any = !request.tools.empty() || std::any_of(request.messages.begin(), request.messages.end(), has_tools);
  if (node->is_string()) {
    if (node->text == "auto") return {};
    if (node->text == "none") {
      request.tool_choice = ToolChoice::none;
      return {};
    }
    if (node->text != "required") return bad_field(path, "'{}' is not one of auto, none, required", node->text);
    if (!any) return bad_field(path, "'required' needs tools, and the request declares none");
    request.tool_choice = ToolChoice::required;
    return {};
  }
  if (!node->is_object()) return bad_field(path, "must be a string or an object, not {}", json_kind_name(node->kind));
  K3_TRY_ASSIGN(const std::string type, required_string(*node, "type", path));
  if (type != "function") return bad_field(path + ".type", "only 'function' exists");
  const JsonNode* function = node->find_set("function");
  if (function == nullptr || !function->is_object()) return bad_field(path + ".function", "must be an object with a name");
  K3_TRY_ASSIGN(request.tool_choice_name, required_string(*function, "name", path + ".function"));
  if (!request.declares_tool(request.tool_choice_name)) {
    return bad_field(path + ".function.name", "no tool '{}' is declared", request.tool_choice_name);
  }
  request.tool_choice = ToolChoice::named;
  return {};
}

}  // namespace k3
