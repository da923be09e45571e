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

#include "k3/ops/short_conv/short_conv.h"

namespace k3::ops {

constexpr int64_t kMaxTaps = 8;
// Most channels of one task: a full vector of every instruction set several times over, cache line borders at its edges.
constexpr int64_t kConvBlock = 256;

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
ConvKernel conv_kernel(Isa isa);

// Channels [begin, end), at most kConvBlock, of one sequence with rows [first, first + tokens); also its tail.
void short_conv_block(ConvKernel run_kernel, const Tensor& x, const Tensor& taps, int64_t first, int64_t tokens,
                      const ConvTail& tail, const Tensor& y, int64_t begin, int64_t end) noexcept;

}  // namespace k3::ops
