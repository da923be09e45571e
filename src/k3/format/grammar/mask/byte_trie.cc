#include "k3/format/grammar/mask/byte_trie.h"

#include <algorithm>

namespace k3::grammar {

ByteTrie ByteTrie::build(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::erase_if(tokens, [](const auto& entry) { return entry.first.empty() || entry.first.size() > 255; });
  std::sort(tokens.begin(), tokens.end());
  ByteTrie out;
  std::vector<uint32_t> path;  // open nodes, the root first
  const auto open = [&](uint8_t byte) {
    path.push_back(static_cast<uint32_t>(out.byte.size()));
    out.byte.push_back(byte);
    out.depth.push_back(static_cast<uint8_t>(path.size() - 1));
    out.end.push_back(0);
    out.token.push_back(-1);
  };
  const auto close_to = [&](size_t size) {
    for (; path.size() > size; path.pop_back()) out.end[path.back()] = static_cast<uint32_t>(out.byte.size());
  };
  open(0);
  std::string_view last;
  for (const auto& [text, id] : tokens) {
    const size_t shared =
        static_cast<size_t>(std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    close_to(shared + 1);
    for (const char c : text.substr(shared)) open(static_cast<uint8_t>(c));
    out.token[path.back()] = id;
    last = text;
  }
  close_to(0);
  return out;
}

}  // namespace k3::grammar
