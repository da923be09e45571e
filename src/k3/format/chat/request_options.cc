// Thinking (api.md 6.1) and response_format (api.md 8).
#include "k3/format/chat/request_parts.h"

namespace k3 {
namespace {

Result<Effort> parse_effort(const JsonNode& node, const std::string& path) {
  if (!node.is_string()) return bad_field(path, "must be one of low, high, max, not {}", json_kind_name(node.kind));
  // Levels of other services are rounded (api.md 6.1): the released encoder has no medium.
  if (node.text == "low" || node.text == "minimal") return Effort::low;
  if (node.text == "high" || node.text == "medium") return Effort::high;
  if (node.text == "max" || node.text == "xhigh") return Effort::max;
  return bad_field(path, "'{}' is not one of low, high, max", node.text);
}

Result<const JsonNode*> optional_object(const JsonNode& root, const std::string& key) {
  const JsonNode* node = root.find_set(key);
  if (node != nullptr && !node->is_object()) return bad_field(key, "must be an object, not {}", json_kind_name(node->kind));
  return node;
}

Status apply_kwargs(const JsonNode& kwargs, ThinkingRequest& out) {
  const std::string path = "chat_template_kwargs";
  for (const char* key : {"enable_thinking", "thinking"}) {
    const JsonNode* flag = kwargs.find_set(key);
    if (flag == nullptr) continue;
    if (!flag->is_boolean()) return bad_field(fmt::format("{}.{}", path, key), "must be a boolean");
    out.enabled = flag->flag;
  }
  if (const JsonNode* effort = kwargs.find_set("thinking_effort")) {
    K3_TRY_ASSIGN(out.effort, parse_effort(*effort, path + ".thinking_effort"));
  }
  return {};
}

Status apply_thinking(const JsonNode& thinking, ThinkingRequest& out) {
  out.enabled = true;
  if (const JsonNode* type = thinking.find_set("type")) {
    const bool known =
        type->is_string() && (type->text == "enabled" || type->text == "disabled" || type->text == "adaptive");
    if (!known) return bad_field("thinking.type", "must be 'enabled' or 'disabled'");
    out.enabled = type->text != "disabled";
  }
  if (const JsonNode* effort = thinking.find_set("effort")) {
    K3_TRY_ASSIGN(out.effort, parse_effort(*effort, "thinking.effort"));
  }
  return {};  // keep: only `all` exists, whatever is asked
}

}  // namespace

Result<ThinkingRequest> parse_thinking(const JsonNode& root) {
  ThinkingRequest out;
  K3_TRY_ASSIGN(const JsonNode* thinking, optional_object(root, "thinking"));
  K3_TRY_ASSIGN(const JsonNode* kwargs, optional_object(root, "chat_template_kwargs"));
  // Lowest precedence first; each source overwrites what it names.
  if (const JsonNode* effort = root.find_set("reasoning_effort")) {
    const bool off = effort->is_string() && (effort->text == "none" || effort->text == "off");
    if (off) {
      if (thinking == nullptr) out.enabled = false;
    } else {
      K3_TRY_ASSIGN(out.effort, parse_effort(*effort, "reasoning_effort"));
      out.enabled = true;
    }
  }
  if (thinking != nullptr) K3_TRY(apply_thinking(*thinking, out));
  if (kwargs != nullptr) {
    K3_TRY(apply_kwargs(*kwargs, out));
    if (!out.enabled.has_value() && out.effort.has_value()) out.enabled = true;
  }
  return out;
}

Result<ResponseFormat> parse_response_format(const JsonNode& root) {
  ResponseFormat out;
  K3_TRY_ASSIGN(const JsonNode* node, optional_object(root, "response_format"));
  if (node == nullptr) return out;
  const std::string path = "response_format";
  K3_TRY_ASSIGN(const std::string type, required_string(*node, "type", path));
  if (type == "text") return out;
  if (type == "json_object") {
    out.kind = ResponseFormat::Kind::json_object;
    return out;
  }
  if (type != "json_schema") return bad_field(path + ".type", "'{}' is not one of text, json_object, json_schema", type);
  out.kind = ResponseFormat::Kind::json_schema;
  const JsonNode* spec = node->find_set("json_schema");
  if (spec == nullptr) return bad_field(path + ".json_schema", "is missing");
  if (!spec->is_object()) return bad_field(path + ".json_schema", "must be an object");
  K3_TRY_ASSIGN(out.name, required_string(*spec, "name", path + ".json_schema"));
  if (out.name.empty()) return bad_field(path + ".json_schema.name", "is empty");
  if (const JsonNode* strict = spec->find("strict")) {
    if (!strict->is_boolean() && !strict->is_null()) return bad_field(path + ".json_schema.strict", "must be a boolean");
    out.strict = strict->is_null() || strict->flag;
  }
  const JsonNode* schema = spec->find_set("schema");
  if (schema == nullptr) return bad_field(path + ".json_schema.schema", "is missing");
  if (!schema->is_object()) return bad_field(path + ".json_schema.schema", "must be an object");
  append_json(out.schema_json, *schema, {.sorted = true});
  out.schema_source = schema->raw;
  return out;
}

}  // namespace k3
