// Purpose:  the character classes of the split pattern, one byte of bits a code point.
// Shapes:   table of kCodePoints bytes.
// Units:    none.
// Memory:   1.1 MiB, expanded once from the generated ranges; only the parts in use stay in cache.
// Threads:  any.
// Errors:   none.
// Source:   model.md 5.2; tools/make_unicode_classes.py, Unicode 14 (code points assigned later have no class, as
//           in PCRE2 10.42).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace k3 {

inline constexpr size_t kCodePoints = 0x110000;

enum UnicodeClass : uint8_t {
  kHan = 1,       // script Han
  kUpper = 2,     // Lu, Lt, Lm, Lo, M, not Han: the pattern's U
  kLower = 4,     // Ll, Lm, Lo, M, not Han: the pattern's W
  kLetter = 8,    // L, Han or not
  kNumber = 16,   // N
  kSpace = 32,    // White_Space
  kNewline = 64,  // CR, LF
};

const uint8_t* unicode_classes();

}  // namespace k3
