// Internal to format/grammar. The vocabulary as a trie in preorder, and what is known of tokens without any grammar.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace k3::grammar {

// Node 0 is the root. The subtree of node i is [i, end[i]).
struct ByteTrie {
  std::vector<uint8_t> byte;
  std::vector<uint8_t> depth;  // bytes from the root; tokens longer than 255 bytes are left out
  std::vector<uint32_t> end;
  std::vector<int32_t> token;  // -1: none

  static ByteTrie build(std::vector<std::pair<std::string_view, int32_t>> tokens);
};

// A plain token consists of whole characters that JSON writes as they are.
inline constexpr uint32_t kPlainLengths = 48;

struct Vocabulary {
  int32_t base = 0, size = 0;
  uint32_t longest = 0;  // characters of the longest plain token, or bytes of the longest of all: no token counts more
  std::vector<std::string_view> bytes;                   // of ordinary tokens
  ByteTrie all, unusual;                                 // every token; those that are not plain
  std::vector<std::vector<uint32_t>> plain_masks;        // [n]: plain tokens of at most n characters; the last: all
  std::vector<std::pair<uint32_t, int32_t>> long_plain;  // (characters, id) beyond kPlainLengths - 2, ascending
};

}  // namespace k3::grammar
