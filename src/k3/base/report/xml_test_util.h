// A checker of well-formed markup for tests: tags nest and close, attributes are quoted and not repeated, entities are the
// predefined ones.
#pragma once

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace k3::test {

inline bool good_text(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') return false;
    if (text[i] != '&') continue;
    bool known = false;
    for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;"})
      known = known || text.substr(i).starts_with(entity);
    if (!known) return false;
  }
  return true;
}

// "" or what is wrong with the inside of a tag, name and attributes.
inline std::string tag_problem(std::string_view tag, std::string& name) {
  size_t at = 0;
  const auto word = [&] {
    const size_t start = at;
    while (at < tag.size() && (std::isalnum(static_cast<unsigned char>(tag[at])) || tag[at] == '-' || tag[at] == ':')) ++at;
    return std::string(tag.substr(start, at - start));
  };
  name = word();
  if (name.empty()) return "a tag without a name: " + std::string(tag);
  std::set<std::string> seen;
  while (at < tag.size()) {
    if (tag[at++] != ' ') return "no blank before an attribute: " + std::string(tag);
    const std::string attribute = word();
    if (attribute.empty() || !seen.insert(attribute).second) return "attribute '" + attribute + "': " + std::string(tag);
    if (!tag.substr(at).starts_with("=\"")) return "a value without quotes: " + std::string(tag);
    const size_t end = tag.find('"', at += 2);
    if (end == std::string_view::npos || !good_text(tag.substr(at, end - at))) return "a bad value: " + std::string(tag);
    at = end + 1;
  }
  return "";
}

// "" when the text is one well-formed element, else what is wrong.
inline std::string xml_problem(std::string_view text) {
  std::vector<std::string> open;
  int roots = 0;
  size_t at = 0;
  while (at < text.size()) {
    const size_t tag = text.find('<', at);
    const std::string_view between = text.substr(at, tag == std::string_view::npos ? tag : tag - at);
    if (!good_text(between)) return "bad text: " + std::string(between);
    if (open.empty() && between.find_first_not_of(" \n") != std::string_view::npos) return "text outside of the root";
    if (tag == std::string_view::npos) break;
    const size_t end = text.find('>', tag);
    if (end == std::string_view::npos) return "a tag that does not end";
    std::string_view inside = text.substr(tag + 1, end - tag - 1);
    at = end + 1;
    if (inside.starts_with('/')) {
      if (open.empty() || open.back() != inside.substr(1)) return "closes what is not open: " + std::string(inside);
      open.pop_back();
      continue;
    }
    const bool closed = inside.ends_with('/');
    if (closed) inside.remove_suffix(1);
    std::string name;
    if (const std::string problem = tag_problem(inside, name); !problem.empty()) return problem;
    if (open.empty() && ++roots > 1) return "two roots";
    if (!closed) open.push_back(name);
  }
  if (!open.empty()) return "not closed: " + open.back();
  return roots == 1 ? "" : "no element";
}

}  // namespace k3::test
