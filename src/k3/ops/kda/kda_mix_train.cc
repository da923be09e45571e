// The KDA token mixer of a layer on a tape.
#include "k3/ops/kda/kda.h"
#include "k3/ops/kda/kda_train.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

Tensor fresh_grad(Tape& tape, const Tensor& x) {
  const Tape::Into into = tape.into(x);
  K3_CHECK(into.fresh, "an input of the KDA mixer has one use");
  return into.grad;
}

// Gradients of parameters nobody trains go to scratch.
Tensor parameter(const Ctx& ctx, const Tape& tape, const Tensor& p) {
  if (const Tensor grad = tape.parameter_grad(p.data, p.size())) return grad;
  Tensor scratch = ctx.workspace->tensor({p.size()}, ctx.double_precision ? DType::f64 : DType::f32);
  return scratch;
}

void mix_vjp(const Ctx& ctx, Tape& tape, const KdaTrainArgs& args, const KdaTrainSaved& saved, const Tensor& dy) {
  const Workspace::Scope scope(*ctx.workspace);
  KdaTrainGrads grads;
  grads.dq_in = fresh_grad(tape, args.q_in);
  grads.dk_in = fresh_grad(tape, args.k_in);
  grads.dv_in = fresh_grad(tape, args.v_in);
  grads.dz = fresh_grad(tape, args.z);
  grads.db = fresh_grad(tape, args.b);
  grads.dgate = fresh_grad(tape, args.gate);
  for (int i = 0; i < 3; ++i) grads.dtaps[i] = parameter(ctx, tape, args.taps[i]).reshape({args.taps[i].dim(0), args.taps[i].dim(1)});
  grads.da_log = parameter(ctx, tape, args.a_log);
  grads.ddt_bias = parameter(ctx, tape, args.dt_bias);
  grads.dnorm = parameter(ctx, tape, args.norm);
  kda_train_vjp(ctx, args, saved, dy, grads);
}

}  // namespace

void kda_mix_train(const Ctx& ctx, const KdaMixArgs& args) noexcept {
  const int64_t tokens = args.y.dim(0), channels = args.y.dim(1);
  const auto flat = [&](const Tensor& t) { return t.reshape({tokens, channels}); };
  KdaTrainArgs train;
  train.q_in = flat(args.kda.q);
  train.k_in = flat(args.kda.k);
  train.v_in = flat(args.kda.v);
  train.z = flat(args.kda.z);
  train.b = args.kda.b;
  train.gate = args.gate;
  for (int i = 0; i < 3; ++i) train.taps[i] = *args.taps[i];
  train.a_log = args.kda.a_log;
  train.dt_bias = args.kda.dt_bias.reshape({channels});
  train.norm = args.norm;
  train.lower_bound = args.kda.lower_bound;
  train.eps = args.eps;
  train.offsets = args.kda.offsets;
  if (ctx.step != nullptr) train.device_offsets = ctx.step->offsets;
  KdaTrainSaved saved;
  kda_train_forward(ctx, train, args.y, ctx.tape != nullptr ? &saved : nullptr);
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  // Offsets belong to the batch, which outlives the step.
  tape->record([=, y = args.y](const Ctx& back) {
    const Tensor dy = tape->grad(y);
    if (!dy) return;
    mix_vjp(back, *tape, train, saved, dy);
    tape->done(y);
  });
}

}  // namespace k3::ops
