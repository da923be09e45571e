// Purpose:  the per-sequence kernel behind short_conv(): some channels of one sequence.
// Shapes:   x, y: row t at + t * stride, channels [0, channels) of the range; taps [channels, K]; before [K - 1,
//           channels] the inputs before the first token, oldest first.
// Units:    none.
// Memory:   y may be x; before is read only.
// Threads:  pure function of its arguments.
// Errors:   none; short_conv() has checked everything.
// Source:   model.md 3.3.
#pragma once

#include <cstdint>

namespace k3::ops {

constexpr int64_t kMaxTaps = 8;

struct ConvRun {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  const float* taps = nullptr;
  const float* before = nullptr;
  int64_t before_stride = 0;
  int64_t taps_count = 0;
  int64_t tokens = 0;
  int64_t channels = 0;
  bool round_bf16 = false;
};

using ConvKernel = void (*)(const ConvRun&);
extern const ConvKernel kConvPortable, kConvAvx2, kConvAvx512;

}  // namespace k3::ops
