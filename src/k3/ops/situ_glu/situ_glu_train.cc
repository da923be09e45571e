#include "k3/ops/situ_glu/situ_glu_train.h"

#include <cmath>

#include "k3/ops/cpu/vec_portable.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/situ_glu/situ_glu_vjp_kernel.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

constexpr int64_t kGrain = 4096;

GluVjpFn glu_vjp_fn(Isa isa) {
  if (isa >= Isa::avx512) return glu_vjp_avx512;
  return isa == Isa::avx2 ? glu_vjp_avx2 : glu_vjp_portable;
}

GluArgs glu_args(const Glu& kind) { return {kind.kind == GluKind::situ, kind.beta, kind.linear_beta.value_or(0.0F)}; }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double capped(double x, float beta) {
  const double b = static_cast<double>(beta);
  return beta == 0.0F ? x : b * std::tanh(x / b);
}

double capped_slope(double x, float beta) {
  if (beta == 0.0F) return 1.0;
  const double t = std::tanh(x / static_cast<double>(beta));
  return 1.0 - t * t;
}

double glu_value_f64(double a, double c, const GluArgs& kind) {
  if (!kind.situ) return a * sigmoid(a) * c;
  return capped(a, kind.beta) * sigmoid(a) * capped(c, kind.linear_beta);
}

void glu_slopes_f64(double a, double c, const GluArgs& kind, double* da, double* dc) {
  const double s = sigmoid(a), slope = s * (1.0 - s);
  if (!kind.situ) {
    *da = (s + a * slope) * c;
    *dc = a * s;
    return;
  }
  *da = (capped_slope(a, kind.beta) * s + capped(a, kind.beta) * slope) * capped(c, kind.linear_beta);
  *dc = capped(a, kind.beta) * s * capped_slope(c, kind.linear_beta);
}

}  // namespace

void glu_vjp_portable(const float* gate, const float* up, const float* dout, int64_t count, const GluArgs& kind, float* dgate,
                      float* dup) noexcept {
  glu_vjp_loop<VecPortable>(gate, up, dout, count, kind, dgate, dup);
}

void glu_vjp(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& dout, const Tensor& dgate,
             const Tensor& dup) noexcept {
  K3_CHECK(gate.size() == up.size() && gate.size() == dout.size() && gate.size() == dgate.size() && gate.size() == dup.size(),
           "glu_vjp: gate {}, dout {}", gate.shape_text(), dout.shape_text());
  if (ctx.device.is_cuda()) return cuda::glu_vjp(ctx, gate, up, kind, dout, dgate, dup);
  if (gate.dtype == DType::f32) {
    const GluVjpFn fn = glu_vjp_fn(ctx.isa);
    const GluArgs args = glu_args(kind);
    ctx.pool->parallel_for(gate.size(), kGrain, [&](int64_t begin, int64_t end) {
      fn(gate.f32() + begin, up.f32() + begin, dout.f32() + begin, end - begin, args, dgate.f32() + begin, dup.f32() + begin);
    });
    return;
  }
  const GluArgs args = glu_args(kind);
  for (int64_t i = 0; i < gate.size(); ++i) {
    double da = 0, dc = 0;
    glu_slopes_f64(gate.as<double>()[i], up.as<double>()[i], args, &da, &dc);
    const double d = dout.as<double>()[i];
    dgate.as<double>()[i] = d * da;
    dup.as<double>()[i] = d * dc;
  }
}

void glu_train(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept {
  if (ctx.device.is_cuda()) {
    cuda::glu_train(ctx, gate, up, kind, out);
  } else if (gate.dtype == DType::f32) {
    glu(ctx, gate, up, kind, out);
  } else {
    const GluArgs args = glu_args(kind);
    for (int64_t i = 0; i < gate.size(); ++i) out.as<double>()[i] = glu_value_f64(gate.as<double>()[i], up.as<double>()[i], args);
  }
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    const Tensor dout = tape->grad(out);
    if (!dout) return;
    const Tape::Into dgate = tape->into(gate), dup = tape->into(up);
    K3_CHECK(dgate.fresh && dup.fresh, "the factors of an activation have no other use");
    glu_vjp(back, gate, up, kind, dout, dgate.grad, dup.grad);
    tape->done(out);
  });
}

}  // namespace k3::ops
