// Purpose:  strict JSON to a tree that keeps what rendering needs: key order, the exact source slice of every value, and
//           decoded strings; and printing in the two text styles of the chat formats.
// Shapes:   none.
// Units:    bytes.
// Memory:   nodes own their strings; raw slices and number literals point into the parsed text, which must outlive them.
// Threads:  a tree is immutable after parse.
// Errors:   invalid_argument with the byte offset: syntax, invalid UTF-8, lone surrogate escapes, trailing bytes, nesting
//           deeper than kMaxJsonDepth, more than kMaxJsonValues values, and duplicate keys unless allowed.
// Source:   api.md 1 (strictness), 7.1 and 7.2 (raw literals, compact and spaced styles).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

inline constexpr int kMaxJsonDepth = 128;
inline constexpr int64_t kMaxJsonValues = int64_t{1}
                                          << 22;  // a node costs about 100 bytes: 64 MiB of "0," must not cost 4 GiB

class JsonNode {
 public:
  enum class Kind : uint8_t { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  bool flag = false;              // boolean
  std::string text;               // string: decoded
  std::string_view raw;           // the value as it stands in the source
  std::vector<std::string> keys;  // object: keys[i] belongs to items[i], in source order
  std::vector<JsonNode> items;    // array, object

  bool is_null() const { return kind == Kind::null; }
  bool is_boolean() const { return kind == Kind::boolean; }
  bool is_number() const { return kind == Kind::number; }
  bool is_string() const { return kind == Kind::string; }
  bool is_array() const { return kind == Kind::array; }
  bool is_object() const { return kind == Kind::object; }
  const JsonNode* find(std::string_view key) const;      // nullptr when absent
  const JsonNode* find_set(std::string_view key) const;  // nullptr when absent or null
};

std::string_view json_kind_name(JsonNode::Kind kind);  // "a string", "an object", ...

enum class DuplicateKeys { refuse, keep };
Result<JsonNode> parse_json(std::string_view text, DuplicateKeys duplicates = DuplicateKeys::refuse);

struct JsonStyle {
  bool sorted = false;   // object keys in code point order, recursively
  bool spaced = false;   // ", " and ": " instead of "," and ":"
  bool literal = false;  // numbers keep their spelling instead of normalized_number()
};
// Non-ASCII is kept; numbers are printed as the reference encoder's language prints them (1e5 becomes 100000.0).
void append_json(std::string& out, const JsonNode& node, JsonStyle style);
std::string normalized_number(std::string_view literal);

}  // namespace k3
