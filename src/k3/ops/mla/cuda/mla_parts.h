// Purpose:  how many keys expanded attention expands at a time, so that its scratch does not grow with the context.
// Shapes:   a key takes its latent row [576] and, of each head, key and value [256], BF16.
// Units:    keys (cached tokens of all requests of a step, one after another), bytes.
// Memory:   kMlaPartBytes for one part, and, where there are several, a float for each value and head of the step's tokens.
// Threads:  a pure function.
// Errors:   none.
// Source:   docs/cuda.md. Between parts FP32 outputs of the step's tokens are read and written: 2 * 4 * 128 bytes a token and head,
//           for 640 FLOPs a token, head and key. With the thousands of keys that the bytes below hold that is 1 % of the time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace k3::ops::cuda {

inline constexpr int64_t kMlaPartBytes = int64_t{1} << 30;

// Most keys of a part: a multiple of the kernel's tile of 128.
inline int64_t mla_part_keys(int64_t heads) {
  constexpr int64_t kTile = 128, kLeast = 8 * kTile;
  return std::max(kLeast, kMlaPartBytes / (2 * (576 + 256 * heads)) / kTile * kTile);
}

// Keys of each part but the last: equal ones.
inline int64_t mla_part_of(int64_t keys, int64_t heads) {
  constexpr int64_t kTile = 128;
  const int64_t most = mla_part_keys(heads), parts = std::max<int64_t>(1, (keys + most - 1) / most);
  return parts == 1 ? keys : ((keys + parts - 1) / parts + kTile - 1) / kTile * kTile;
}

// Most keys whose expansion is measured to choose a kernel for it: a power of two.
inline int64_t mla_measured_keys(int64_t heads) {
  int64_t keys = 1;
  while (2 * keys <= std::min<int64_t>(mla_part_keys(heads), 32768)) keys *= 2;
  return keys;
}

}  // namespace k3::ops::cuda
