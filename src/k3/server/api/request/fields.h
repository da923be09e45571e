// Purpose:  typed reading of the fields of a JSON request: a wrong type or a value out of range is an error naming the field.
// Shapes:   none.
// Units:    none.
// Memory:   reads a tree that the caller keeps.
// Threads:  pure.
// Errors:   invalid_argument, always beginning with the field's name.
// Source:   api.md 3.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/json_writer.h"
#include "k3/base/result.h"
#include "k3/format/json/json_tree.h"

namespace k3::server {

class Fields {
 public:
  explicit Fields(const JsonNode& root) : root_(root) {}

  // Absent and null leave `out` as it is.
  Status number(std::string_view name, float& out, double least, double most) const;
  Status integer(std::string_view name, int64_t& out, int64_t least,
                 int64_t most = std::numeric_limits<int64_t>::max()) const;
  Status flag(std::string_view name, bool& out) const;
  Status text(std::string_view name, std::string& out) const;
  const JsonNode* find(std::string_view name) const { return root_.find_set(name); }

 private:
  const JsonNode& root_;
};

std::string_view text_of(const JsonNode& object, std::string_view key);  // "" when it is no object or there is no string
// Fields that mean the same in two dialects.
void copy_fields(JsonWriter& w, const JsonNode& root, std::initializer_list<std::string_view> names);
void write_tool_choice(JsonWriter& w, std::string_view name);  // as a chat request names one function

// An array of token ids; its elements are named path[i] in errors.
Result<std::vector<int32_t>> token_ids(const JsonNode& array, int64_t vocab, const std::string& path);

std::optional<double> json_number(const JsonNode& node);    // finite
std::optional<int64_t> json_integer(const JsonNode& node);  // a literal without point and exponent, or a whole 3.0

}  // namespace k3::server
