#include "k3/ops/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

// Below this many elements a parallel region costs more than the work.
constexpr int64_t kGrain = 16384;

void check(const Tensor& x, const Tensor& y) {
  K3_CHECK(x.contiguous() && y.contiguous() && x.size() == y.size(), "{} with {}", x.shape_text(), y.shape_text());
}

void record_add(const Ctx& ctx, const Tensor& x, const Tensor& y) {
  Tape* const tape = ctx.tape;
  tape->record([=](const Ctx& back) {
    if (const Tensor dy = tape->grad(y)) tape->add(back, x, dy);
  });
}

}  // namespace

void add(const Ctx& ctx, const Tensor& x, const Tensor& y) noexcept {
  check(x, y);
  if (ctx.tape != nullptr) record_add(ctx, x, y);
  if (ctx.device.is_cuda()) return ctx.training ? cuda::accumulate(ctx, x, y, true) : cuda::add(ctx, x, y);
  if (y.dtype == DType::f64) {
    for (int64_t i = 0; i < y.size(); ++i) y.as<double>()[i] += x.as<double>()[i];
    return;
  }
  const float* in = x.f32();
  float* out = y.f32();
  ctx.pool->parallel_for(y.size(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] += in[i];
  });
}

void copy(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept {
  check(from, to);
  K3_CHECK(ctx.tape == nullptr, "copies have no gradient");
  if (ctx.device.is_cuda()) return ctx.training ? cuda::accumulate(ctx, from, to, false) : cuda::copy(ctx, from, to);
  std::memcpy(to.data, from.data, static_cast<size_t>(from.size() * dtype_bytes(from.dtype)));
}

void gather_rows(const Ctx& ctx, const Tensor& from, std::span<const int64_t> rows, const Tensor& to) noexcept {
  K3_CHECK(to.dim(0) == static_cast<int64_t>(rows.size()) && to.dim(1) == from.dim(1), "gather_rows: {} rows of {} to {}", rows.size(),
           from.shape_text(), to.shape_text());
  if (ctx.device.is_cuda()) return cuda::gather_rows(ctx, from, rows, to);
  for (size_t r = 0; r < rows.size(); ++r) std::copy_n(from.row(rows[r]), from.dim(1), to.row(static_cast<int64_t>(r)));
}

void sigmoid_gate(const Ctx& ctx, const Tensor& gate, const Tensor& y) noexcept {
  check(gate, y);
  if (ctx.device.is_cuda()) return cuda::sigmoid_gate(ctx, gate, y);
  const float* in = gate.f32();
  float* out = y.f32();
  ctx.pool->parallel_for(y.size(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] /= 1.0F + std::exp(-in[i]);
  });
}

void sigmoid_gate_ref(const Tensor& gate, const Tensor& y) noexcept {
  check(gate, y);
  for (int64_t i = 0; i < y.size(); ++i) {
    y.f32()[i] = static_cast<float>(y.f32()[i] / (1.0 + std::exp(-static_cast<double>(gate.f32()[i]))));
  }
}

}  // namespace k3::ops
