// Purpose:  the split pattern as a PCRE2 regular expression (JIT where the library has it): the definition in code, and
//           the oracle of pattern_scan.h in tests, fuzzing and bench. Texts are encoded with the scanner.
// Shapes:   none.
// Units:    byte offsets.
// Memory:   the compiled pattern is shared; match data and a JIT stack belong to each thread.
// Threads:  may be called concurrently.
// Errors:   internal when the library refuses the pattern or a match. A match that outgrows the JIT stack is repeated
//           by the interpreter, which keeps its state on the heap.
// Source:   model.md 5.2 with its traps:
//           - a class intersection (&&) is no PCRE2 syntax; "not Han" is a lookahead;
//           - \p{Han} means Script_Extensions there since 10.40 (it would take U+3001); the format means Script;
//           - \s holds U+180E there; the format's \s is the 25 code points of White_Space, written out here. (The
//             reference runs Rust's regex crate, whose \s is White_Space: U+0085 is in it, U+001C..U+001F are not.)
//           PCRE2 10.42 knows the characters of Unicode 14.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

// Appends the end offset of every piece of `text` (valid UTF-8) to ends; the pieces cover the text.
Status split_by_pcre2(std::string_view text, std::vector<size_t>& ends);

}  // namespace k3
