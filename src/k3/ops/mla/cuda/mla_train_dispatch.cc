// MLA in training on a GPU: the steps of mla_train.cc with kernels.
#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/op_state.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/cuda/train_rows.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/mla/cuda/mla_train.h"
#include "k3/ops/mla/mla.h"
#include "k3/ops/tape.h"

namespace k3::ops::cuda {
namespace {

struct Kept {
  Tensor latent, keys, out, logsum;  // [T, R], [T, H (nope + v)]; FP32 [T, H v], [T, H]
};

void note(const Ctx& ctx, int code, const char* what) { ctx.gpu->note(CudaStatus{code}, what); }

MlaTrain attention_of(const Ctx& ctx, const ops::MlaArgs& a, const Kept& kept) {
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  MlaTrain m{};
  m.heads = narrow(a.q.dim(1));
  m.nope = narrow(a.nope);
  m.rope = narrow(a.rope);
  m.value = narrow(a.value);
  m.sequences = narrow(static_cast<int64_t>(a.offsets.size()) - 1);
  for (size_t s = 0; s + 1 < a.offsets.size(); ++s) m.longest = std::max(m.longest, narrow(a.offsets[s + 1] - a.offsets[s]));
  m.offsets = ctx.step->offsets;
  m.q = a.q.data;
  m.keys = kept.keys.data;
  const Tensor shared = a.kv.columns(a.rank, a.rank + a.rope);
  m.shared = shared.data;
  m.shared_stride = shared.stride(0);
  m.scale = 1 / std::sqrt(static_cast<float>(a.nope + a.rope));
  m.out = kept.out.f32();
  m.logsum = kept.logsum.f32();
  return m;
}

void mix_vjp(const Ctx& ctx, Tape& tape, const ops::MlaArgs& a, const Kept& kept, const Tensor& dy) {
  const Workspace::Scope scope(*ctx.workspace);
  Workspace& memory = *ctx.workspace;
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  const Tensor delta = memory.tensor({tokens, heads}), dkeys = memory.tensor_like(kept.keys);
  const Tensor dshared = memory.tensor({tokens, heads * a.rope}, DType::bf16), dlatent = memory.tensor_like(kept.latent);
  MlaGateVjp gate{};
  gate.tokens = tokens;
  gate.heads = static_cast<int32_t>(heads);
  gate.value = static_cast<int32_t>(a.value);
  gate.out = kept.out.f32();
  gate.dy = dy.data;
  gate.delta = delta.f32();
  if (a.gate) {
    const Tape::Into dgate = tape.into(a.gate);
    K3_CHECK(dgate.fresh, "the output gate has one use");
    gate.gate = a.gate.data;
    gate.dgate = dgate.grad.data;
  }
  note(ctx, mla_gate_vjp_launch(gate, ctx.stream), "mla gate vjp");
  const Tape::Into dq = tape.into(a.q);
  K3_CHECK(dq.fresh, "queries have one use");
  MlaTrain m = attention_of(ctx, a, kept);
  m.d_out = dy.data;
  m.delta = delta.f32();
  m.dq = dq.grad.data;
  m.dkeys = dkeys.data;
  m.dshared = dshared.data;
  note(ctx, mla_train_vjp_launch(m, ctx.stream), "mla vjp");
  cuda::matmul(ctx, dkeys, Op::plain, weight_matrix(a.kv_b), Op::plain, dlatent, false);
  if (const Tensor dw = tape.parameter_grad(a.kv_b.data, a.kv_b.rows * a.kv_b.cols)) {
    cuda::matmul(ctx, dkeys, Op::transposed, kept.latent, Op::plain, dw.reshape({a.kv_b.rows, a.kv_b.cols}), true);
  }
  const Tape::Into dkv = tape.into(a.kv);
  cuda::rms_norm_vjp(ctx, a.kv.columns(0, a.rank), a.kv_norm, a.kv_eps, dlatent, dkv.grad.columns(0, a.rank), !dkv.fresh,
               tape.parameter_grad(a.kv_norm.data, a.kv_norm.size()));
  const Tensor to = dkv.grad.columns(a.rank, a.rank + a.rope);
  note(ctx,
       mla_shared_vjp_launch(dshared.data, tokens, static_cast<int32_t>(heads), static_cast<int32_t>(a.rope), to.data, to.stride(0), !dkv.fresh, ctx.stream),
       "mla shared key vjp");
}

}  // namespace

void mla_train(const Ctx& ctx, const ops::MlaArgs& a) noexcept {
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  Workspace& memory = *ctx.workspace;
  Kept kept;
  kept.latent = memory.tensor({tokens, a.rank}, DType::bf16);
  kept.keys = memory.tensor({tokens, a.kv_b.rows}, DType::bf16);
  kept.out = memory.tensor({tokens, heads * a.value});
  kept.logsum = memory.tensor({tokens, heads});
  cuda::rms_norm_forward(ctx, a.kv.columns(0, a.rank), a.kv_norm, a.kv_eps, kept.latent);
  cuda::matmul(ctx, kept.latent, Op::plain, weight_matrix(a.kv_b), Op::transposed, kept.keys, false);
  MlaTrain m = attention_of(ctx, a, kept);
  Tape* const tape = ctx.tape;
  if (tape != nullptr && !tape->repeating()) {
    if (const Tensor largest = tape->watched(a.kv_b.data, "max_logit")) m.largest = largest.f32();
  }
  note(ctx, mla_train_forward_launch(m, ctx.stream), "mla");
  note(ctx, gate_train_launch(kept.out.f32(), a.gate ? a.gate.data : nullptr, a.out.data, tokens * heads * a.value, ctx.stream), "mla gate");
  if (tape == nullptr) return;
  // Offsets belong to the batch, which outlives the step.
  tape->record([=](const Ctx& back) {
    const Tensor dy = tape->grad(a.out);
    if (!dy) return;
    mix_vjp(back, *tape, a, kept, dy);
    tape->done(a.out);
  });
}

}  // namespace k3::ops::cuda
