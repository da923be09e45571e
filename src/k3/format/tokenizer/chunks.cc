#include "k3/format/tokenizer/chunks.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

bool is_python_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Byte offset of the character `chars` after pos, or the end of the text.
size_t advance(std::string_view text, size_t pos, size_t chars) {
  constexpr uint64_t kLow = 0x0101010101010101U;
  for (; pos + 8 <= text.size() && chars >= 8; pos += 8) {  // 8 bytes begin at most 8 characters
    uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    chars -= static_cast<size_t>(std::popcount((~word >> 7 | word >> 6) & kLow));
  }
  const auto continues = [&] { return pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80; };
  while (continues()) ++pos;
  while (chars > 0 && pos < text.size()) {
    ++pos;
    while (continues()) ++pos;
    --chars;
  }
  return pos;
}

// Bytes that settle the matter without decoding: ASCII, and lead bytes from E4 on (no space lies there).
bool surely_space(uint8_t byte) { return byte < 0x80 && is_python_space(byte); }
bool surely_not_space(uint8_t byte) { return (byte < 0x80 && !is_python_space(byte)) || byte >= 0xE4; }

// False when no run in text can exceed `chars`: a longer one would cover a whole aligned block of half the size, and
// every such block holds a space and a non-space. Ordinary text is settled after a few bytes a block.
bool may_hold_run(std::string_view text, size_t chars) {
  const size_t block = (chars + 1) / 2;
  for (size_t begin = 0; begin + block <= text.size(); begin += block) {
    bool space = false, other = false;
    for (size_t i = begin; i < begin + block && !(space && other); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      space |= surely_space(byte);
      other |= surely_not_space(byte);
    }
    if (!(space && other)) return true;
  }
  return false;
}

void split_runs(std::string_view text, size_t begin, size_t end, size_t limit, std::vector<size_t>& ends) {
  size_t run = 0;
  bool space = false;
  for (size_t pos = begin; pos < end;) {
    const size_t before = pos;
    const bool this_space = is_python_space(next_code_point(text, &pos));
    if (this_space != space) {
      run = 0;
    } else if (run == limit) {
      ends.push_back(before);
      run = 0;
    }
    space = this_space;
    ++run;
  }
}

}  // namespace

void split_chunks(std::string_view text, std::vector<size_t>& ends, ChunkLimits limits) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = advance(text, begin, limits.slice_chars);
    if (may_hold_run(text.substr(begin, end - begin), limits.run_chars))
      split_runs(text, begin, end, limits.run_chars, ends);
    ends.push_back(end);
    begin = end;
  }
}

}  // namespace k3
