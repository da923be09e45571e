#include "k3/base/utf8.h"

#include <algorithm>

namespace k3 {
namespace {

struct Lead {
  int length;         // 0: not a lead byte
  uint8_t low, high;  // legal range of the second byte
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Valid bytes of the code point that starts at text[pos]; *complete says whether it is whole.
size_t valid_bytes(std::string_view text, size_t pos, bool* complete) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[pos]));
  *complete = false;
  if (lead.length == 0) return 0;
  size_t n = 1;
  for (; n < static_cast<size_t>(lead.length); ++n) {
    if (pos + n >= text.size()) return n;
    const auto b = static_cast<uint8_t>(text[pos + n]);
    const uint8_t low = n == 1 ? lead.low : 0x80, high = n == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return n;
  }
  *complete = true;
  return n;
}

}  // namespace

size_t utf8_valid_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    bool complete = false;
    const size_t n = valid_bytes(text, pos, &complete);
    if (!complete) return pos;
    pos += n;
  }
  return pos;
}

size_t utf8_incomplete_suffix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t pos = text.size() - back;
    const auto b = static_cast<uint8_t>(text[pos]);
    if (b < 0x80) return 0;
    if (b >= 0xC0) {
      bool complete = false;
      const size_t n = valid_bytes(text, pos, &complete);
      return !complete && n == back ? back : 0;
    }
  }
  return 0;
}

std::string utf8_repair(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    bool complete = false;
    const size_t n = valid_bytes(text, pos, &complete);
    if (complete) {
      out.append(text, pos, n);
      pos += n;
    } else {
      out.append("\xEF\xBF\xBD");
      pos += std::max<size_t>(n, 1);
    }
  }
  return out;
}

int64_t utf8_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 63));
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  }
}

uint32_t next_code_point(std::string_view text, size_t* pos) {
  const auto b0 = static_cast<uint8_t>(text[*pos]);
  if (b0 < 0x80) {
    ++*pos;
    return b0;
  }
  const int length = b0 < 0xE0 ? 2 : b0 < 0xF0 ? 3 : 4;
  uint32_t c = b0 & (0x7FU >> length);
  for (int i = 1; i < length; ++i) c = c << 6 | (static_cast<uint8_t>(text[*pos + static_cast<size_t>(i)]) & 63U);
  *pos += static_cast<size_t>(length);
  return c;
}

}  // namespace k3
