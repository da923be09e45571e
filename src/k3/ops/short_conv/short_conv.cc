#include "k3/ops/short_conv/short_conv.h"

#include <algorithm>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/short_conv/short_conv_kernel.h"

namespace k3::ops {
namespace {

// One task: a full vector of every instruction set several times over, and a cache line border at its edges.
constexpr int64_t kChannelBlock = 256;

ConvKernel kernel(Isa isa) {
  if (isa >= Isa::avx512) return kConvAvx512;
  return isa == Isa::avx2 ? kConvAvx2 : kConvPortable;
}

void check(const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets, std::span<const ConvTail> tails,
           const Tensor& y) {
  K3_CHECK(x.rank == 2 && x.dtype == DType::f32, "short_conv: x is {}", x.shape_text());
  K3_CHECK(taps.rank == 2 && taps.dtype == DType::f32 && taps.contiguous() && taps.dim(0) == x.dim(1),
           "short_conv: taps are {} for x {}", taps.shape_text(), x.shape_text());
  K3_CHECK(taps.dim(1) >= 1 && taps.dim(1) <= kMaxTaps, "short_conv: {} taps", taps.dim(1));
  K3_CHECK(y.rank == 2 && y.dtype == DType::f32 && y.contiguous() && y.dims == x.dims, "short_conv: y is {}",
           y.shape_text());
  K3_CHECK(y.data != x.data || x.contiguous(), "short_conv: in place on a strided x");
  K3_CHECK(offsets.size() == tails.size() + 1 && offsets.front() == 0 && offsets.back() == x.dim(0) &&
               std::is_sorted(offsets.begin(), offsets.end()),
           "short_conv: offsets");
  for (const ConvTail& tail : tails) {
    K3_CHECK((tail.data != nullptr || taps.dim(1) == 1) && (tail.dtype == DType::f32 || tail.dtype == DType::bf16),
             "short_conv: tail of dtype {}", dtype_name(tail.dtype));
  }
}

float read_tail(const ConvTail& tail, int64_t i) {
  if (tail.dtype == DType::f32) return static_cast<const float*>(tail.data)[i];
  return bf16_to_float(static_cast<const uint16_t*>(tail.data)[i]);
}

void write_tail(const ConvTail& tail, int64_t i, float x) {
  if (tail.dtype == DType::f32) {
    static_cast<float*>(tail.data)[i] = x;
  } else {
    static_cast<uint16_t*>(tail.data)[i] = float_to_bf16(x);
  }
}

// Channels [begin, end) of one sequence with rows [first, first + tokens).
void run_block(ConvKernel run_kernel, const Tensor& x, const Tensor& taps, int64_t first, int64_t tokens,
               const ConvTail& tail, const Tensor& y, int64_t begin, int64_t end) {
  const int64_t channels = taps.dim(0), count = taps.dim(1), carried = count - 1, width = end - begin;
  float before[(kMaxTaps - 1) * kChannelBlock];
  for (int64_t n = 0; n < carried; ++n) {
    for (int64_t c = 0; c < width; ++c) before[n * kChannelBlock + c] = read_tail(tail, n * channels + begin + c);
  }
  // The new tail is taken first: y may overwrite x. Sequences shorter than K - 1 shift the old one.
  for (int64_t n = 0; n < carried; ++n) {
    const int64_t from = tokens + n - carried;  // row of x, or before it
    const float* source = from >= 0 ? x.row(first + from) + begin : before + (from + carried) * kChannelBlock;
    for (int64_t c = 0; c < width; ++c) write_tail(tail, n * channels + begin + c, source[c]);
  }
  ConvRun run;
  run.x = x.row(first) + begin;
  run.y = y.row(first) + begin;
  run.x_stride = x.stride(0);
  run.y_stride = y.stride(0);
  run.taps = taps.row(begin);
  run.before = before;
  run.before_stride = kChannelBlock;
  run.taps_count = count;
  run.tokens = tokens;
  run.channels = width;
  run.round_bf16 = tail.dtype == DType::bf16;
  run_kernel(run);
}

}  // namespace

void short_conv(const Ctx& ctx, const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets,
                std::span<const ConvTail> tails, const Tensor& y) noexcept {
  check(x, taps, offsets, tails, y);
  const int64_t channels = taps.dim(0);
  const int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
  const ConvKernel run_kernel = kernel(ctx.isa);
  run_tasks(ctx, blocks, [&](int, int64_t block) {
    const int64_t begin = block * kChannelBlock, end = std::min(channels, begin + kChannelBlock);
    for (size_t s = 0; s < tails.size(); ++s) {
      const int64_t tokens = offsets[s + 1] - offsets[s];
      if (tokens > 0) run_block(run_kernel, x, taps, offsets[s], tokens, tails[s], y, begin, end);
    }
  });
}

}  // namespace k3::ops
