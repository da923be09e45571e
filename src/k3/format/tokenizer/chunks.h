// Purpose:  the cuts that the reference makes before the split pattern sees a text; ids differ without them.
// Shapes:   none.
// Units:    limits in characters (code points), results in byte offsets.
// Memory:   appends to ends.
// Threads:  may be called concurrently.
// Errors:   none; the text is valid UTF-8.
// Source:   model.md 5.2: slices of 400,000 characters; in each slice a run of more than 25,000 characters that are
//           all spaces or all not is cut after every 25,000. "Space" is Python's str.isspace(): the White_Space
//           code points and U+001C..U+001F (which the pattern's \s does not hold). A slice border restarts the count.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace k3 {

struct ChunkLimits {
  size_t slice_chars = 400'000;
  size_t run_chars = 25'000;
};

// Appends the end offset of every chunk; a text without a cut is one chunk, an empty text none.
void split_chunks(std::string_view text, std::vector<size_t>& ends, ChunkLimits limits = {});

}  // namespace k3
