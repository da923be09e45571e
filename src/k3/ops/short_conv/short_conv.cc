#include "k3/ops/short_conv/short_conv.h"

#include <algorithm>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/short_conv/short_conv_kernel.h"

namespace k3::ops {
namespace {

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

// Row n of the tail, channels [begin, begin + width), as floats and back.
void read_tail(const ConvTail& tail, int64_t at, int64_t width, float* out) {
  if (tail.dtype == DType::f32) {
    std::copy_n(static_cast<const float*>(tail.data) + at, width, out);
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(tail.data) + at;
    for (int64_t c = 0; c < width; ++c) out[c] = bf16_to_float(from[c]);
  }
}

void write_tail(const ConvTail& tail, int64_t at, int64_t width, const float* x) {
  if (tail.dtype == DType::f32) {
    std::copy_n(x, width, static_cast<float*>(tail.data) + at);
  } else {
    uint16_t* to = static_cast<uint16_t*>(tail.data) + at;
    for (int64_t c = 0; c < width; ++c) to[c] = float_to_bf16(x[c]);
  }
}

}  // namespace

ConvKernel conv_kernel(Isa isa) {
  if (isa >= Isa::avx512) return kConvAvx512;
  return isa == Isa::avx2 ? kConvAvx2 : kConvPortable;
}

void short_conv_block(ConvKernel run_kernel, const Tensor& x, const Tensor& taps, int64_t first, int64_t tokens,
                      const ConvTail& tail, const Tensor& y, int64_t begin, int64_t end) noexcept {
  const int64_t channels = taps.dim(0), count = taps.dim(1), carried = count - 1, width = end - begin;
  float before[(kMaxTaps - 1) * kConvBlock];
  for (int64_t n = 0; n < carried; ++n) read_tail(tail, n * channels + begin, width, before + n * kConvBlock);
  // The new tail is taken first: y may overwrite x. Sequences shorter than K - 1 shift the old one.
  for (int64_t n = 0; n < carried; ++n) {
    const int64_t from = tokens + n - carried;  // row of x, or before it
    write_tail(tail, n * channels + begin, width,
               from >= 0 ? x.row(first + from) + begin : before + (from + carried) * kConvBlock);
  }
  ConvRun run;
  run.x = x.row(first) + begin;
  run.y = y.row(first) + begin;
  run.x_stride = x.stride(0);
  run.y_stride = y.stride(0);
  run.taps = taps.row(begin);
  run.before = before;
  run.before_stride = kConvBlock;
  run.taps_count = count;
  run.tokens = tokens;
  run.channels = width;
  run.round_bf16 = tail.dtype == DType::bf16;
  run_kernel(run);
}

void short_conv(const Ctx& ctx, const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets,
                std::span<const ConvTail> tails, const Tensor& y) noexcept {
  check(x, taps, offsets, tails, y);
  const int64_t channels = taps.dim(0);
  const int64_t blocks = (channels + kConvBlock - 1) / kConvBlock;
  const ConvKernel run_kernel = conv_kernel(ctx.isa);
  run_tasks(ctx, blocks, [&](int, int64_t block) {
    const int64_t begin = block * kConvBlock, end = std::min(channels, begin + kConvBlock);
    for (size_t s = 0; s < tails.size(); ++s) {
      const int64_t tokens = offsets[s + 1] - offsets[s];
      if (tokens > 0) short_conv_block(run_kernel, x, taps, offsets[s], tokens, tails[s], y, begin, end);
    }
  });
}

}  // namespace k3::ops
