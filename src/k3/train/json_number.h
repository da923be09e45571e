// Numbers of a parsed JSON file, or nothing: where a file may say anything, a cast of what it says is not defined for all of it.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>

#include "k3/format/json/json_tree.h"

namespace k3::train {

// A whole number that 64 bits hold; not 1.5, 1e3, "1".
inline std::optional<int64_t> json_whole(const JsonNode* node) {
  int64_t value = 0;
  if (node == nullptr || !node->is_number()) return std::nullopt;
  const char* const end = node->raw.data() + node->raw.size();
  const auto [stop, error] = std::from_chars(node->raw.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

inline std::optional<double> json_real(const JsonNode* node) {
  double value = 0;
  if (node == nullptr || !node->is_number()) return std::nullopt;
  const auto [stop, error] = std::from_chars(node->raw.data(), node->raw.data() + node->raw.size(), value);
  return error == std::errc() && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace k3::train
