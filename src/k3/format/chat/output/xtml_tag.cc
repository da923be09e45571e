#include "k3/format/chat/output/xtml_tag.h"

#include <algorithm>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t pos = 0;
  for (size_t hit = text.find(from); hit != std::string_view::npos; hit = text.find(from, pos)) {
    out.append(text.substr(pos, hit - pos)).append(to);
    pos = hit + from.size();
  }
  return out.append(text.substr(pos));
}

// Reverse order of escaping: &quot; first.
std::string unescape(std::string_view value) { return replaced(replaced(utf8_repair(value), "&quot;", "\""), "&amp;", "&"); }

std::string_view strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

std::optional<std::string> XtmlTag::attribute(std::string_view key) const {
  for (const auto& [name_of, value] : attributes) {
    if (name_of == key) return value;
  }
  return std::nullopt;
}

XtmlTag parse_xtml_tag(std::string_view header) {
  XtmlTag tag;
  header = strip(header);
  const size_t name_end = std::min(header.find_first_of(kSpace), header.size());
  tag.name = utf8_repair(header.substr(0, name_end));
  std::string_view rest = header.substr(name_end);
  while (true) {
    const size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return tag;
    const size_t open = rest.find('"', equals);
    if (open == std::string_view::npos) return tag;
    const size_t close = rest.find('"', open + 1);
    if (close == std::string_view::npos) return tag;
    tag.attributes.emplace_back(utf8_repair(strip(rest.substr(0, equals))),
                                unescape(rest.substr(open + 1, close - open - 1)));
    rest = rest.substr(close + 1);
  }
}

}  // namespace k3
