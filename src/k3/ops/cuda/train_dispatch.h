// Purpose:  the training forms of ops on a GPU: what each op's x_train function calls when Ctx::device is one.
// Shapes:   those of the op's x_train.h; activations and their gradients BF16, router logits and theirs FP32, matrices BF16 copies of FP32
//           masters, other parameters FP32, gradients of parameters FP32.
// Units:    none.
// Memory:   scratch from the workspace; what a backward wants stays there while it retains.
// Threads:  everything is queued on Ctx::stream, nothing waits; ids, targets, offsets and sums of losses are those of Ctx::step.
// Errors:   as dispatch.h says.
// Source:   training.md; tolerances in the headers of the kernels (cuda/train_rows.h, gemm/cuda/mma_train.h, moe/train/cuda/moe_train.h,
//           mla/cuda/mla_train.h). No float atomics: the same step gives the same bits.
#pragma once

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/matmul/matmul.h"

namespace k3::ops {

namespace cuda {

// a, b BF16 (FP32: rounded first), c BF16 or FP32.
void matmul(const Ctx& ctx, const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c, bool accumulate) noexcept;
// y (+)= x, contiguous and of one dtype.
void accumulate(const Ctx& ctx, const Tensor& x, const Tensor& y, bool add) noexcept;
void narrow(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept;  // FP32 to BF16
void rms_norm_forward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;
void rms_norm_vjp(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& dout, const Tensor& dx, bool accumulate,
                  const Tensor& dweight) noexcept;
void attn_res_site_train(const Ctx& ctx, const ops::AttnResSite& site) noexcept;
void fold_query(const Ctx& ctx, const Tensor& norm, const Tensor& projection, const Tensor& query) noexcept;
void glu_train(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& kind, const Tensor& out) noexcept;
void glu_vjp(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& kind, const Tensor& dout, const Tensor& dgate,
             const Tensor& dup) noexcept;
void embedding_train(const Ctx& ctx, const Weight& table, const Tensor& out) noexcept;
void embedding_vjp(const Ctx& ctx, const Tensor& dout, const Tensor& dtable) noexcept;
// Adds the summed loss to Ctx::step's nats.
void cross_entropy(const Ctx& ctx, const Tensor& x, const Weight& head, double scale) noexcept;
void routed_experts_train(const Ctx& ctx, const ops::RoutedExperts& args) noexcept;
void mla_train(const Ctx& ctx, const ops::MlaArgs& args) noexcept;

// unsupported, with the size that no kernel of training takes.
struct TrainSizes {
  int64_t hidden = 0, experts = 0, topk = 0, expert_hidden = 0;
  int64_t mla_nope = 0, mla_rope = 0, mla_value = 0;
  int64_t kda_heads = 0, kda_dim = 0, kda_taps = 0;
  int64_t blocks = 0;  // of AttnRes
};
Status check_train_sizes(const TrainSizes& sizes);

}  // namespace cuda
}  // namespace k3::ops
