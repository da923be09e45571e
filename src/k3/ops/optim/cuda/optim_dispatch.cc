// The optimizer ops on a GPU, except Muon (muon_dispatch.cc): lists are cut into launches.
#include "k3/ops/optim/cuda/optim_dispatch.h"

#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/op_state.h"
#include "k3/ops/optim/cuda/optim_args.h"

namespace k3::ops::cuda {
namespace {

int32_t blocks_of(int64_t count, int64_t block) { return static_cast<int32_t>((count + block - 1) / block); }

// Calls full() whenever the list has reached its capacity, and at the end if anything is left.
template <class Launch, class List, class Add, class Full>
void in_launches(const List& list, int capacity, Launch* launch, const Add& add, const Full& full) {
  launch->count = 0;
  launch->first_block[0] = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].count == 0) continue;
    const int32_t blocks = add(i, launch->count);
    launch->first_block[launch->count + 1] = launch->first_block[launch->count] + blocks;
    if (++launch->count < capacity) continue;
    full();
    launch->count = 0;
  }
  if (launch->count > 0) full();
}

}  // namespace

void adamw(const Ctx& ctx, std::span<const AdamwTensor<float>> tensors, const AdamwOptions& options, const float* scale) noexcept {
  const auto steps = static_cast<double>(options.step);
  const double c1 = 1 - std::pow(options.beta1, steps), c2 = 1 - std::pow(options.beta2, steps);
  AdamwLaunch a;
  a.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  a.beta2 = static_cast<float>(options.beta2);
  a.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  a.second_scale = static_cast<float>(1 / c2);
  a.eps = static_cast<float>(options.eps);
  a.scale = scale;
  in_launches(
      tensors, kAdamwList, &a,
      [&](size_t i, int32_t at) {
        const AdamwTensor<float>& t = tensors[i];
        a.tensors[at] = {t.weight, t.first, t.second, t.grad, t.bf16, t.count, static_cast<float>(1 - t.lr * t.decay),
                         static_cast<float>(t.lr / c1)};
        return blocks_of(t.count, kAdamwBlock);
      },
      [&] { ctx.gpu->note(CudaStatus{adamw_launch(a, ctx.stream)}, "adamw"); });
}

void grad_norm(const Ctx& ctx, std::span<const GradTensor<float>> tensors, double max_norm, GradNorm<float>* out) noexcept {
  static_assert(sizeof(GradResult) == sizeof(GradNorm<float>));
  int64_t blocks = 0;
  for (const GradTensor<float>& t : tensors) blocks += blocks_of(t.count, kGradBlock);
  const Workspace::Scope scope(*ctx.workspace);
  auto* const sums = static_cast<double*>(ctx.workspace->bytes((blocks + 1) * 8));
  auto* const owners = static_cast<int32_t*>(ctx.workspace->bytes((blocks + 1) * 4));
  GradLaunch a;
  int64_t done = 0;
  in_launches(
      tensors, kGradList, &a,
      [&](size_t i, int32_t at) {
        a.tensors[at] = {tensors[i].data, tensors[i].count};
        a.numbers[at] = static_cast<int32_t>(i);
        return blocks_of(tensors[i].count, kGradBlock);
      },
      [&] {
        a.sums = sums + done;
        a.owners = owners + done;
        ctx.gpu->note(CudaStatus{grad_sums_launch(a, ctx.stream)}, "grad_norm");
        done += a.first_block[a.count];
      });
  ctx.gpu->note(CudaStatus{grad_total_launch(sums, owners, blocks, max_norm, reinterpret_cast<GradResult*>(out), ctx.stream)}, "grad_norm");
}

void qk_clip(const Ctx& ctx, const QkClip<float>& a) noexcept {
  if (a.heads == 0) return;
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  ctx.gpu->note(CudaStatus{qk_clip_launch({narrow(a.heads), narrow(a.nope), narrow(a.rope), narrow(a.value), a.q, a.kv, a.q_bf16,
                                           a.kv_bf16, a.q_cols, a.kv_cols, a.max_logits, a.gamma, a.tau},
                                          ctx.stream)},
                "qk_clip");
}

void quantile_accumulate(const Ctx& ctx, const QuantileInput<float>& in, int32_t* histogram) noexcept {
  K3_CHECK(in.tokens < int64_t{1} << 27, "quantile: {} tokens at once", in.tokens);  // blocks of the grid
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor cutoffs = ctx.workspace->tensor({in.tokens});
  ctx.gpu->note(CudaStatus{quantile_accumulate_launch({in.scores, in.tokens, in.stride, static_cast<int32_t>(in.experts),
                                                       static_cast<int32_t>(in.topk), in.bias, in.valid, cutoffs.f32(), histogram},
                                                      ctx.stream)},
                "quantile_accumulate");
}

void quantile_update(const Ctx& ctx, int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept {
  K3_CHECK(reinterpret_cast<uintptr_t>(histogram) % 16 == 0, "quantile: histogram not aligned to 16 bytes");
  const Workspace::Scope scope(*ctx.workspace);
  auto* const scratch = static_cast<double*>(ctx.workspace->bytes((experts + 1) * 8));
  ctx.gpu->note(CudaStatus{quantile_update_launch(static_cast<int32_t>(experts), static_cast<int32_t>(topk), rate, histogram, bias, scratch,
                                                  ctx.stream)},
                "quantile_update");
}

void expert_load(const Ctx& ctx, const int32_t* ids, int64_t tokens, int64_t topk, int64_t, const uint8_t* valid, int32_t* load) noexcept {
  ctx.gpu->note(CudaStatus{expert_load_launch(ids, tokens, static_cast<int32_t>(topk), valid, load, ctx.stream)}, "expert_load");
}

void sign_balance(const Ctx& ctx, const int32_t* load, int64_t experts, double rate, float* bias) noexcept {
  ctx.gpu->note(CudaStatus{sign_balance_launch(load, static_cast<int32_t>(experts), static_cast<float>(rate), bias, ctx.stream)},
                "sign_balance");
}

namespace {

void fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out, int (*run)(const FakeQuantLaunch&, void*), const char* what) {
  if (in.dim(0) == 0 || in.dim(1) == 0) return;
  for (const Tensor* t : {&in, &out}) {
    K3_CHECK(reinterpret_cast<uintptr_t>(t->data) % 16 == 0 && t->stride(0) * dtype_bytes(t->dtype) % 16 == 0,
             "{}: rows of {} not aligned to 16 bytes", what, t->shape_text());
  }
  ctx.gpu->note(CudaStatus{run({in.data, out.data, in.dtype == DType::f32, out.dtype == DType::f32, in.stride(0), out.stride(0), in.dim(0),
                                in.dim(1)},
                               ctx.stream)},
                what);
}

}  // namespace

void mxfp4_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept {
  fake_quant(ctx, in, out, mxfp4_fake_quant_launch, "mxfp4_fake_quant");
}
void mxfp8_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept {
  fake_quant(ctx, in, out, mxfp8_fake_quant_launch, "mxfp8_fake_quant");
}

}  // namespace k3::ops::cuda
