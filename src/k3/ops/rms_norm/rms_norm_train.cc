#include "k3/ops/rms_norm/rms_norm_train.h"

#include <cmath>
#include <vector>

#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

template <class T>
void forward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  const int64_t n = x.dim(1);
  ctx.pool->parallel_for(x.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* const in = x.as<T>() + t * x.stride(0);
      T* const to = out.as<T>() + t * out.stride(0);
      const T squares = dot_rows(in, in, n);
      const T r = T{1} / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      for (int64_t i = 0; i < n; ++i) to[i] = in[i] * r * weight.as<T>()[i];
    }
  });
}

template <class T>
void backward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& dout, const Tensor& dx, bool accumulate,
              const Tensor& dweight) {
  const int64_t n = x.dim(1);
  const T* const w = weight.as<T>();
  sum_over_tokens<T>(ctx, x.dim(0), n, dweight ? dweight.as<T>() : nullptr, [&](int64_t begin, int64_t end, T* dw) {
    std::vector<T> scaled(static_cast<size_t>(n));
    for (int64_t t = begin; t < end; ++t) {
      const T* const in = x.as<T>() + t * x.stride(0);
      const T* const d = dout.as<T>() + t * dout.stride(0);
      T* const to = dx.as<T>() + t * dx.stride(0);
      const T squares = dot_rows(in, in, n);
      for (int64_t i = 0; i < n; ++i) scaled[static_cast<size_t>(i)] = w[i] * d[i];
      const T dot = dot_rows(in, scaled.data(), n);
      const T r = T{1} / std::sqrt(squares / static_cast<T>(n) + static_cast<T>(eps));
      const T shared = dot * r * r / static_cast<T>(n);
      for (int64_t i = 0; i < n; ++i) {
        dw[i] += in[i] * r * d[i];
        const T g = r * (scaled[static_cast<size_t>(i)] - in[i] * shared);
        to[i] = accumulate ? to[i] + g : g;
      }
    }
  });
}

}  // namespace

void rms_norm_vjp(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& dout, const Tensor& dx, bool accumulate,
                  const Tensor& dweight) noexcept {
  K3_CHECK(x.dims == dout.dims && x.dims == dx.dims && weight.size() == x.dim(1), "rms_norm_vjp: x {}, dout {}", x.shape_text(),
           dout.shape_text());
  if (ctx.device.is_cuda()) return cuda::rms_norm_vjp(ctx, x, weight, eps, dout, dx, accumulate, dweight);
  with_real(x.dtype, [&](auto real) { backward<decltype(real)>(ctx, x, weight, eps, dout, dx, accumulate, dweight); });
}

void rms_norm_forward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  if (ctx.device.is_cuda()) return cuda::rms_norm_forward(ctx, x, weight, eps, out);
  with_real(x.dtype, [&](auto real) { forward<decltype(real)>(ctx, x, weight, eps, out); });
}

void rms_norm_train(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  Tensor kept = x;
  if (out.data == x.data) {
    kept = ctx.workspace->tensor_like(x);
    Ctx silent = ctx;
    silent.tape = nullptr;
    copy(silent, x, kept);
  }
  rms_norm_forward(ctx, kept, weight, eps, out);
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    const Tensor dout = tape->grad(out);
    if (!dout) return;
    const Tensor dweight = tape->parameter_grad(weight.data, weight.size());
    if (out.data == x.data) return rms_norm_vjp(back, kept, weight, eps, dout, dout, false, dweight);
    const Tape::Into dx = tape->into(x);
    rms_norm_vjp(back, kept, weight, eps, dout, dx.grad, !dx.fresh, dweight);
    tape->done(out);
  });
}

}  // namespace k3::ops
