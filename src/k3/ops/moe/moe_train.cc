#include "k3/ops/moe/moe_train.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"
#include "k3/ops/moe/moe_plan.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/ops/optim/quantile/quantile.h"
#include "k3/ops/rms_norm/rms_norm_train.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/situ_glu/situ_glu_train.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

// What the forward leaves for the backward.
struct Routed {
  Tensor scores, ids, weights;  // [T, E], [T, topk] i32, [T, topk]
  MoePlan plan;
  Tensor inputs, gate, up;  // [P, R], [P, F], [P, F]; inputs empty: gathered again
  Tensor sum;               // [T, R] before the norm
};

template <class T>
void choose(const T* scores, const Tensor& bias, int64_t experts, const RouterOptions& route, int32_t* ids, T* weights) {
  T sum = 0;
  for (int64_t j = 0; j < route.topk; ++j) {
    int32_t best = -1;
    T top = -std::numeric_limits<T>::infinity();
    for (int64_t e = 0; e < experts; ++e) {
      if (std::find(ids, ids + j, static_cast<int32_t>(e)) != ids + j) continue;
      const T score = scores[e] + (bias ? bias.as<T>()[e] : T{0});
      if (best < 0 || score > top) {
        best = static_cast<int32_t>(e);
        top = score;
      }
    }
    ids[j] = best;
    sum += weights[j] = scores[best];
  }
  const T factor = static_cast<T>(route.scale) / (route.renormalise ? sum + static_cast<T>(1e-20) : T{1});
  for (int64_t j = 0; j < route.topk; ++j) weights[j] *= factor;
}

template <class T>
void route(const Ctx& ctx, const RoutedExperts& args, const Routed& out) {
  const int64_t experts = args.logits.dim(1), topk = args.route.topk;
  ctx.pool->parallel_for(args.logits.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* const logits = args.logits.as<T>() + t * experts;
      T* const scores = out.scores.as<T>() + t * experts;
      for (int64_t e = 0; e < experts; ++e) scores[e] = T{1} / (T{1} + std::exp(-logits[e]));
      choose(scores, args.bias, experts, args.route, out.ids.as<int32_t>() + t * topk, out.weights.as<T>() + t * topk);
    }
  });
}

// dlogits of one token from the gradients of its weights.
template <class T>
void route_vjp(const T* scores, const int32_t* ids, const T* weights, const T* dweights, int64_t experts, const RouterOptions& route,
               T* dlogits) {
  std::fill_n(dlogits, experts, T{0});
  T sum = 0, along = 0;
  for (int64_t j = 0; j < route.topk; ++j) {
    sum += scores[ids[j]];
    along += weights[j] * dweights[j];
  }
  for (int64_t j = 0; j < route.topk; ++j) {
    const T s = scores[ids[j]];
    T ds = static_cast<T>(route.scale) * dweights[j];
    if (route.renormalise) ds = (ds - along) / (sum + static_cast<T>(1e-20));
    dlogits[ids[j]] = ds * s * (T{1} - s);
  }
}

// Sums for the router's balancing, once a token: not when a region is computed again.
void report_routes(const Ctx& ctx, const RoutedExperts& args, const Routed& kept) {
  Tape* const tape = ctx.tape;
  if (tape == nullptr || tape->repeating() || !args.bias) return;
  const int64_t tokens = kept.scores.dim(0), experts = kept.scores.dim(1);
  const auto input = [&](auto real) {
    QuantileInput<decltype(real)> in;
    in.scores = kept.scores.as<decltype(real)>();
    in.tokens = tokens;
    in.experts = experts;
    in.topk = args.route.topk;
    in.bias = args.bias.as<decltype(real)>();
    in.valid = tape->valid;
    return in;
  };
  // The cutoff is the score behind the chosen ones; where all are chosen there is nothing to balance.
  if (const Tensor histogram = tape->watched(args.bias.data, "histogram"); histogram && args.route.topk < experts) {
    if (kept.scores.dtype == DType::f64) {
      quantile_accumulate_ref(input(double{}), histogram.as<int32_t>());
    } else {
      quantile_accumulate(ctx, input(float{}), histogram.as<int32_t>());
    }
  }
  if (const Tensor load = tape->watched(args.bias.data, "load")) {
    expert_load(ctx, kept.ids.as<int32_t>(), tokens, args.route.topk, experts, tape->valid, load.as<int32_t>());
  }
}

// What quantisation-aware training makes of the input of an experts' product (straight through).
void quantise(const Ctx& ctx, const Tensor& x) {
  if (ctx.mxfp8_experts) mxfp8_fake_quant(ctx, x, x);
}

template <class T>
void gather(const Ctx& ctx, const MoePlan& plan, const Tensor& z, const Tensor& to) {
  const int64_t width = z.dim(1);
  ctx.pool->parallel_for(to.dim(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      std::copy_n(z.as<T>() + plan.token_of[static_cast<size_t>(p)] * width, width, to.as<T>() + p * width);
    }
  });
}

// to[t] = sum_j factors[t, j] * rows[position of (t, j)]; without factors the plain sum.
template <class T>
void scatter(const Ctx& ctx, const MoePlan& plan, const Tensor& rows, const Tensor& factors, int64_t topk, const Tensor& to, bool accumulate) {
  const int64_t width = to.dim(1);
  ctx.pool->parallel_for(to.dim(0), 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* const out = to.as<T>() + t * width;
      if (!accumulate) std::fill_n(out, width, T{0});
      for (int64_t j = 0; j < topk; ++j) {
        const T* const row = rows.as<T>() + plan.position_of[static_cast<size_t>(t * topk + j)] * width;
        const T factor = factors ? factors.as<T>()[t * topk + j] : T{1};
        for (int64_t i = 0; i < width; ++i) out[i] += factor * row[i];
      }
    }
  });
}

template <class Body>
void for_groups(const MoePlan& plan, const Body& body) {
  for (const MoeGroup& g : plan.groups) body(static_cast<size_t>(g.expert), g.begin, g.end);
}

void add_weight_grad(const Ctx& ctx, const Tape& tape, const Weight& w, const Tensor& dy, const Tensor& x) {
  const Tensor dw = tape.parameter_grad(w.data, w.rows * w.cols);
  if (dw) matmul(ctx, dy, Op::transposed, x, Op::plain, dw.reshape({w.rows, w.cols}), true);
}

// From the gradient of the weighted sum to those of z, logits and the experts.
template <class T>
void experts_vjp(const Ctx& ctx, Tape& tape, const RoutedExperts& args, const Routed& kept, const Tensor& dsum) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t positions = kept.gate.dim(0), width = args.z.dim(1), hidden = kept.gate.dim(1), topk = args.route.topk;
  const Tensor g = ctx.workspace->tensor({positions, width}, dsum.dtype), x = ctx.workspace->tensor({positions, width}, dsum.dtype);
  const Tensor h = ctx.workspace->tensor({positions, hidden}, dsum.dtype), dh = ctx.workspace->tensor({positions, hidden}, dsum.dtype);
  const Tensor dgate = ctx.workspace->tensor({positions, hidden}, dsum.dtype);
  const Tensor dweights = ctx.workspace->tensor({dsum.dim(0), topk}, dsum.dtype);
  gather<T>(ctx, kept.plan, dsum, g);
  gather<T>(ctx, kept.plan, args.z, x);
  quantise(ctx, x);
  Ctx silent = ctx;
  silent.tape = nullptr;
  glu_train(silent, kept.gate, kept.up, args.activation, h);
  quantise(ctx, h);
  for_groups(kept.plan, [&](size_t e, int64_t b, int64_t n) {
    matmul(ctx, g.slice(b, n), Op::plain, weight_matrix(args.experts[e].w2), Op::plain, dh.slice(b, n));
  });
  ctx.pool->parallel_for(positions, 32, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int32_t slot = kept.plan.slot_of[static_cast<size_t>(p)];
      T* const d = dh.as<T>() + p * hidden;
      const T* const value = h.as<T>() + p * hidden;
      const T factor = kept.weights.as<T>()[slot];
      const T sum = dot_rows(d, value, hidden);
      for (int64_t i = 0; i < hidden; ++i) d[i] *= factor;
      dweights.as<T>()[slot] = sum;
      for (int64_t i = 0; i < width; ++i) g.as<T>()[p * width + i] *= factor;
    }
  });
  for_groups(kept.plan, [&](size_t e, int64_t b, int64_t n) { add_weight_grad(ctx, tape, args.experts[e].w2, g.slice(b, n), h.slice(b, n)); });
  glu_vjp(ctx, kept.gate, kept.up, args.activation, dh, dgate, dh);  // dh becomes that of up
  for_groups(kept.plan, [&](size_t e, int64_t b, int64_t n) {
    const ExpertWeights& w = args.experts[e];
    add_weight_grad(ctx, tape, w.w1, dgate.slice(b, n), x.slice(b, n));
    add_weight_grad(ctx, tape, w.w3, dh.slice(b, n), x.slice(b, n));
    matmul(ctx, dgate.slice(b, n), Op::plain, weight_matrix(w.w1), Op::plain, g.slice(b, n));
    matmul(ctx, dh.slice(b, n), Op::plain, weight_matrix(w.w3), Op::plain, g.slice(b, n), true);
  });
  const Tape::Into dz = tape.into(args.z);
  scatter<T>(ctx, kept.plan, g, {}, topk, dz.grad, !dz.fresh);
  const Tape::Into dlogits = tape.into(args.logits);
  K3_CHECK(dlogits.fresh, "router logits have one use");
  const int64_t experts = args.logits.dim(1);
  ctx.pool->parallel_for(dsum.dim(0), 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      route_vjp(kept.scores.as<T>() + t * experts, kept.ids.as<int32_t>() + t * topk, kept.weights.as<T>() + t * topk,
                dweights.as<T>() + t * topk, experts, args.route, dlogits.grad.as<T>() + t * experts);
    }
  });
}

template <class T>
void experts_forward(const Ctx& ctx, const RoutedExperts& args, Routed& kept) {
  const int64_t positions = args.z.dim(0) * args.route.topk, width = args.z.dim(1), hidden = args.experts[0].w1.rows;
  kept.gate = ctx.workspace->tensor({positions, hidden}, args.z.dtype);
  kept.up = ctx.workspace->tensor({positions, hidden}, args.z.dtype);
  const bool retaining = ctx.workspace->retaining();
  ctx.workspace->retain(false);  // the rest is scratch
  {
    const Workspace::Scope scope(*ctx.workspace);
    const Tensor x = ctx.workspace->tensor({positions, width}, args.z.dtype), h = ctx.workspace->tensor({positions, hidden}, args.z.dtype);
    gather<T>(ctx, kept.plan, args.z, x);
    quantise(ctx, x);
    for_groups(kept.plan, [&](size_t e, int64_t b, int64_t n) {
      matmul(ctx, x.slice(b, n), Op::plain, weight_matrix(args.experts[e].w1), Op::transposed, kept.gate.slice(b, n));
      matmul(ctx, x.slice(b, n), Op::plain, weight_matrix(args.experts[e].w3), Op::transposed, kept.up.slice(b, n));
    });
    Ctx silent = ctx;
    silent.tape = nullptr;
    glu_train(silent, kept.gate, kept.up, args.activation, h);
    quantise(ctx, h);
    for_groups(kept.plan, [&](size_t e, int64_t b, int64_t n) {
      matmul(ctx, h.slice(b, n), Op::plain, weight_matrix(args.experts[e].w2), Op::transposed, x.slice(b, n));
    });
    scatter<T>(ctx, kept.plan, x, kept.weights, args.route.topk, kept.sum, false);
  }
  ctx.workspace->retain(retaining);
}

}  // namespace

void routed_experts_train(const Ctx& ctx, const RoutedExperts& args) noexcept {
  const int64_t tokens = args.z.dim(0), experts = args.logits.dim(1), topk = args.route.topk;
  K3_CHECK(static_cast<int64_t>(args.experts.size()) == experts && topk <= experts, "{} experts, router of {}, top {}",
           args.experts.size(), experts, topk);
  if (ctx.device.is_cuda()) return cuda::routed_experts_train(ctx, args);
  Routed kept;
  kept.scores = ctx.workspace->tensor({tokens, experts}, args.logits.dtype);
  kept.ids = ctx.workspace->tensor({tokens, topk}, DType::i32);
  kept.weights = ctx.workspace->tensor({tokens, topk}, args.logits.dtype);
  kept.sum = args.norm || args.shared_down ? ctx.workspace->tensor({tokens, args.z.dim(1)}, args.z.dtype) : args.out;
  with_real(args.z.dtype, [&](auto real) {
    using T = decltype(real);
    route<T>(ctx, args, kept);
    report_routes(ctx, args, kept);
    kept.plan = moe_plan(*ctx.workspace, kept.ids, experts);
    experts_forward<T>(ctx, args, kept);
  });
  if (args.norm) {
    rms_norm_forward(ctx, kept.sum, args.norm, args.eps, args.out);
  } else if (kept.sum.data != args.out.data) {
    std::memcpy(args.out.data, kept.sum.data, static_cast<size_t>(args.out.size() * dtype_bytes(args.out.dtype)));
  }
  if (args.shared_down) {
    matmul(ctx, args.shared_hidden, Op::plain, weight_matrix(args.shared_down), Op::transposed, args.out, true);
  }
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  // Experts belong to the model; the span outlives the step.
  tape->record([=](const Ctx& back) {
    const Tensor dout = tape->grad(args.out);
    if (!dout) return;
    if (args.shared_down) linear_vjp(back, *tape, args.shared_hidden, args.shared_down, dout);
    if (args.norm) {
      rms_norm_vjp(back, kept.sum, args.norm, args.eps, dout, dout, false, tape->parameter_grad(args.norm.data, args.norm.size()));
    }
    with_real(dout.dtype, [&](auto real) { experts_vjp<decltype(real)>(back, *tape, args, kept, dout); });
    tape->done(args.out);
  });
}

}  // namespace k3::ops
