#include "k3/server/api/request/fields.h"

#include <charconv>
#include <cmath>

namespace k3::server {

std::string_view text_of(const JsonNode& object, std::string_view key) {
  const JsonNode* node = object.is_object() ? object.find_set(key) : nullptr;
  return node != nullptr && node->is_string() ? std::string_view(node->text) : std::string_view();
}

void copy_fields(JsonWriter& w, const JsonNode& root, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const JsonNode* node = root.find_set(name)) w.key(name).raw(node->raw);
  }
}

void write_tool_choice(JsonWriter& w, std::string_view name) {
  w.key("tool_choice").begin_object().field("type", "function").key("function").begin_object();
  w.field("name", name).end_object().end_object();
}

Result<std::vector<int32_t>> token_ids(const JsonNode& array, int64_t vocab, const std::string& path) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < array.items.size(); ++i) {
    const auto id = json_integer(array.items[i]);
    if (!id || *id < 0 || *id >= vocab) return fail(Code::invalid_argument, "{}[{}]: no token id of 0..{}", path, i, vocab - 1);
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::optional<double> json_number(const JsonNode& node) {
  if (!node.is_number()) return std::nullopt;
  double value = 0;
  const auto [end, ec] = std::from_chars(node.raw.data(), node.raw.data() + node.raw.size(), value);
  if (ec != std::errc() || end != node.raw.data() + node.raw.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> json_integer(const JsonNode& node) {
  if (!node.is_number()) return std::nullopt;
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(node.raw.data(), node.raw.data() + node.raw.size(), value);
  if (ec == std::errc() && end == node.raw.data() + node.raw.size()) return value;
  const auto real = json_number(node);
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond, a double names no single integer
  if (!real || std::trunc(*real) != *real || std::abs(*real) > kExact) return std::nullopt;
  return static_cast<int64_t>(*real);
}

Status Fields::number(std::string_view name, float& out, double least, double most) const {
  const JsonNode* node = find(name);
  if (node == nullptr) return {};
  if (!node->is_number())
    return fail(Code::invalid_argument, "{}: must be a number, not {}", name, json_kind_name(node->kind));
  const auto value = json_number(*node);
  if (!value || *value < least || *value > most) {
    return fail(Code::invalid_argument, "{}: {} is not between {} and {}", name, node->raw.substr(0, 40), least, most);
  }
  out = static_cast<float>(*value);
  return {};
}

Status Fields::integer(std::string_view name, int64_t& out, int64_t least, int64_t most) const {
  const JsonNode* node = find(name);
  if (node == nullptr) return {};
  const auto value = json_integer(*node);
  if (!value) return fail(Code::invalid_argument, "{}: must be an integer", name);
  if (*value < least || *value > most) {
    if (most == std::numeric_limits<int64_t>::max())
      return fail(Code::invalid_argument, "{}: must be at least {}", name, least);
    return fail(Code::invalid_argument, "{}: {} is not between {} and {}", name, *value, least, most);
  }
  out = *value;
  return {};
}

Status Fields::flag(std::string_view name, bool& out) const {
  const JsonNode* node = find(name);
  if (node == nullptr) return {};
  if (!node->is_boolean())
    return fail(Code::invalid_argument, "{}: must be a boolean, not {}", name, json_kind_name(node->kind));
  out = node->flag;
  return {};
}

Status Fields::text(std::string_view name, std::string& out) const {
  const JsonNode* node = find(name);
  if (node == nullptr) return {};
  if (!node->is_string())
    return fail(Code::invalid_argument, "{}: must be a string, not {}", name, json_kind_name(node->kind));
  out = node->text;
  return {};
}

}  // namespace k3::server
