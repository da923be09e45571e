// Purpose:  how the short convolution of prefill is cut into runs on a GPU; a pure function, tested without one.
// Shapes:   channels: of all parts.
// Units:    tokens.
// Memory:   none.
// Threads:  any.
// Errors:   none.
// Source:   measured on an H200 (short_conv_gpu_bench.cc).
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// Tokens a thread passes through: long runs read less twice, short ones fill the device.
inline int short_conv_run(int64_t tokens, int64_t channels, int sm_count) {
  const int64_t threads = tokens * channels / 8, wave = int64_t{sm_count} * 3 * 256;  // three blocks a multiprocessor
  if (threads >= 32 * 3 * wave) return 32;
  return threads >= 16 * 2 * wave ? 16 : 8;
}

}  // namespace k3::ops::cuda
