// Purpose:  the text between <|open|> (or <|close|>) and <|sep|>: a tag name and attributes.
// Shapes:   none.
// Units:    none.
// Memory:   by value.
// Threads:  pure function.
// Errors:   none: what cannot be read is left out; invalid UTF-8 is repaired.
// Source:   api.md 7.2 (escapes), 7.4.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace k3 {

struct XtmlTag {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;

  std::optional<std::string> attribute(std::string_view key) const;  // the first one with this key
};

XtmlTag parse_xtml_tag(std::string_view header);

}  // namespace k3
