// Purpose:  the split pattern as a hand-written scanner over a class table; same pieces as split_by_pcre2, faster,
//           without a stack, a match limit or a need for executable memory.
// Shapes:   none.
// Units:    byte offsets.
// Memory:   appends to ends.
// Threads:  may be called concurrently.
// Errors:   none; the text is valid UTF-8. Linear time.
// Source:   model.md 5.2; the steps of each alternative are derived in the .cc. Oracle: pattern_pcre2.h.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace k3 {

// Appends the end offset of every piece of `text` to ends; the pieces cover the text.
void split_by_scan(std::string_view text, std::vector<size_t>& ends);

}  // namespace k3
