// UTF-8 helpers: strict validation (no surrogates, no overlong forms, at most U+10FFFF), splitting a byte
// stream into whole code points, and lossy repair with U+FFFD for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace k3 {

// Index of the first invalid byte, or text.size() when all of it is valid.
size_t utf8_valid_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return utf8_valid_prefix(text) == text.size(); }

// Bytes at the end of text that could begin a code point still to be completed (0 to 3).
size_t utf8_incomplete_suffix(std::string_view text);

// Every maximal invalid subpart becomes one U+FFFD.
std::string utf8_repair(std::string_view text);

// Code points of valid UTF-8; of other bytes, those that continue none.
int64_t utf8_length(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

// Decodes the code point at text[*pos] (valid UTF-8) and advances *pos.
uint32_t next_code_point(std::string_view text, size_t* pos);

}  // namespace k3
