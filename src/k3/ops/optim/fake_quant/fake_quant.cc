#include "k3/ops/optim/fake_quant/fake_quant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"
#include "k3/ops/optim/fake_quant/fake_quant_kernel.h"

namespace k3::ops {
namespace {

constexpr int64_t kChunk = 1024;      // columns at a time: what a task keeps on its stack
constexpr int64_t kTaskCols = 16384;  // numbers a task

Mxfp8Fn mxfp8_fn(Isa isa) {
  if (isa >= Isa::avx512) return mxfp8_groups_avx512;
  return isa == Isa::avx2 ? mxfp8_groups_avx2 : mxfp8_groups_portable;
}

// One group that mxfp4_quantise may refuse.
void mxfp4_group(Isa isa, const float* in, float* out) {
  uint8_t packed[kMxGroup / 2], scale = 0;
  if (mxfp4_quantise(in, 1, kMxGroup, packed, &scale).ok()) return mxfp4_dequantise(isa, packed, &scale, 1, kMxGroup, out);
  std::fill(out, out + kMxGroup, std::numeric_limits<float>::quiet_NaN());
}

void mxfp4_chunk(Isa isa, const float* in, int64_t count, float* out) {
  uint8_t packed[kChunk / 2], scales[kChunk / kMxGroup];
  if (mxfp4_quantise(in, 1, count, packed, scales).ok()) return mxfp4_dequantise(isa, packed, scales, 1, count, out);
  for (int64_t i = 0; i < count; i += kMxGroup) mxfp4_group(isa, in + i, out + i);
}

void check(const Tensor& in, const Tensor& out) {
  for (const Tensor* t : {&in, &out}) {
    K3_CHECK(t->rank == 2 && (t->dtype == DType::f32 || t->dtype == DType::bf16), "fake_quant: {} of dtype {}", t->shape_text(),
             dtype_name(t->dtype));
  }
  K3_CHECK(in.dim(0) == out.dim(0) && in.dim(1) == out.dim(1) && in.dim(1) % kMxGroup == 0, "fake_quant: {} to {}", in.shape_text(),
           out.shape_text());
}

std::byte* address(const Tensor& t, int64_t row, int64_t col) {
  return static_cast<std::byte*>(t.data) + (row * t.stride(0) + col) * dtype_bytes(t.dtype);
}

// body(const float* in, count, float* out) on chunks of every row.
template <class Body>
void run_rows(const Ctx& ctx, const Tensor& in, const Tensor& out, const Body& body) {
  check(in, out);
  const int64_t rows = in.dim(0), cols = in.dim(1);
  if (rows == 0 || cols == 0) return;
  const int64_t rows_a_task = std::max<int64_t>(1, kTaskCols / cols);
  run_tasks(ctx, (rows + rows_a_task - 1) / rows_a_task, [&](int, int64_t task) {
    float wide[kChunk], quantised[kChunk];
    for (int64_t row = task * rows_a_task; row < std::min(rows, (task + 1) * rows_a_task); ++row) {
      for (int64_t col = 0; col < cols; col += kChunk) {
        const int64_t count = std::min(kChunk, cols - col);
        const auto* from = reinterpret_cast<const float*>(address(in, row, col));
        auto* to = reinterpret_cast<float*>(address(out, row, col));
        if (in.dtype == DType::bf16) {
          convert_to_float(from, DType::bf16, count, wide);
          from = wide;
        }
        body(from, count, out.dtype == DType::bf16 ? quantised : to);
        if (out.dtype == DType::bf16) convert_from_float(quantised, DType::bf16, count, to);
      }
    }
  });
}

}  // namespace

void mxfp4_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept {
  if (ctx.device.is_cuda()) {
    check(in, out);
    return cuda::mxfp4_fake_quant(ctx, in, out);
  }
  run_rows(ctx, in, out, [&](const float* from, int64_t count, float* to) { mxfp4_chunk(ctx.isa, from, count, to); });
}

void mxfp8_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept {
  if (ctx.device.is_cuda()) {
    check(in, out);
    return cuda::mxfp8_fake_quant(ctx, in, out);
  }
  const Mxfp8Fn fn = mxfp8_fn(ctx.isa);
  run_rows(ctx, in, out, [&](const float* from, int64_t count, float* to) { fn(from, count / kMxGroup, to); });
}

}  // namespace k3::ops
