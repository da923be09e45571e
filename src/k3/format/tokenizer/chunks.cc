#include "k3/format/tokenizer/chunks.h"

#include <cstdint>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

bool is_python_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace

void split_chunks(std::string_view text, std::vector<size_t>& ends, ChunkLimits limits) {
  if (text.empty()) return;
  if (text.size() > limits.run_chars) {  // fewer bytes cannot hold a run, and so no slice, that is too long
    size_t slice = 0, run = 0;
    bool space = false;
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const bool this_space = is_python_space(next_code_point(text, &pos));
      if (slice == limits.slice_chars) {
        ends.push_back(begin);
        slice = run = 0;
      } else if (this_space != space) {
        run = 0;
      } else if (run == limits.run_chars) {
        ends.push_back(begin);
        run = 0;
      }
      space = this_space;
      ++slice;
      ++run;
    }
  }
  ends.push_back(text.size());
}

}  // namespace k3
