// Purpose:  the whole token mixer of a KDA layer for training: its forward, which keeps what the backward needs, and its vjp.
// Shapes:   q_in, k_in, v_in (projections before the convolution), z (decay input f_b(f_a x)), gate, y and their gradients
//           [T, H * D]; b [T, H]; taps [H * D, K], the last one multiplies the current token, K at most 8; a_log [H];
//           dt_bias [H * D]; norm [D]; offsets [B + 1]: where the packed sequences start, empty ones allowed; states
//           [B, H, Dv = D, Dk = D], V-first as kda.h has them. All contiguous; D at most 256.
//           On the CPU everything is F32 (chunks of 16 tokens), or everything F64 (the reference). On a GPU activations and
//           their gradients are BF16 (b and db may be F32), parameters, parameter gradients and states F32, D at most 128.
// Units:    decay g as natural logarithm, as in kda.h.
// Memory:   y and the gradients of activations are overwritten (each may lie where its input lies; on a GPU not dq_in, dk_in and
//           dv_in); gradients of parameters are added to. KdaTrainSaved lies in ctx.workspace of the forward and lives as long as the caller's scope there:
//           states every kKdaTrainStride tokens, T / 64 + B of them a head. Everything else is recomputed: the vjp must be
//           given the same arguments. Scratch from the workspace, given back.
// Threads:  parallel over (sequence, head) inside; every sum has one order, whatever the thread count.
// Errors:   K3_CHECK on shapes; kda_train_supported says beforehand what a device cannot do. An empty sequence passes its
//           state (and the gradient of it) through. A GPU's errors: Ctx::gpu, as dispatch.h says.
// Source:   model.md 3.3, training.md 9, kernels.md 3: convolution and SiLU, L2 norm with 1e-6 added to the SUM, decay and
//           beta, delta rule, then y = RMSNorm_head(o) * norm * sigmoid(gate). State and window start afresh at each offset.
//           The reference is a plain recurrence a token and its plain reverse, in double; it is checked by finite differences.
//           Tolerance of the F32 form against it, norm ratio of each tensor: 1e-5 (training.md 14.1). da_log is a sum that
//           cancels: 1e-5 of the sum of its |terms|. On a GPU: train/cuda/kda_train_cuda.h.
#pragma once

#include <optional>
#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

constexpr int64_t kKdaTrainStride = 64;  // tokens between two kept states

struct KdaTrainArgs {
  Tensor q_in, k_in, v_in, z, b, gate;
  Tensor taps[3];  // of q, k, v
  Tensor a_log, dt_bias, norm;
  std::optional<float> lower_bound;  // none: unbounded decay (Kimi-Linear)
  float eps = 1e-5F;                 // of the output norm
  std::span<const int64_t> offsets;
  const int32_t* device_offsets = nullptr;  // on a GPU: the same numbers in its memory
  Tensor initial;                           // states before each sequence; none: zero
  Tensor final;                             // receives the states after each sequence; none: not wanted
};

struct KdaTrainSaved {
  Tensor states;  // [rows, H, ...] in the layout of the device: after 0, 64, ... tokens of each sequence; row: kda_train_row
};

// Row of KdaTrainSaved::states that holds the state before token 64 * block of a sequence.
constexpr int64_t kda_train_row(int64_t sequence_start, int64_t sequence, int64_t block) {
  return sequence_start / kKdaTrainStride + sequence + block;
}
constexpr int64_t kda_train_rows(int64_t tokens, int64_t sequences) { return tokens / kKdaTrainStride + sequences; }

struct KdaTrainGrads {
  Tensor dq_in, dk_in, dv_in, dz, db, dgate;  // overwritten
  Tensor dtaps[3], da_log, ddt_bias, dnorm;   // added to
  Tensor d_initial;                           // overwritten; none: not wanted
  Tensor d_final;                             // gradient of KdaTrainArgs::final; none: zero
};

// unsupported: no kernel for such heads on the device of `ctx`.
Status kda_train_supported(const Ctx& ctx, int64_t heads, int64_t dim, int64_t taps);

// saved null: nothing is kept.
void kda_train_forward(const Ctx& ctx, const KdaTrainArgs& args, const Tensor& y, KdaTrainSaved* saved) noexcept;
void kda_train_vjp(const Ctx& ctx, const KdaTrainArgs& args, const KdaTrainSaved& saved, const Tensor& dy,
                   const KdaTrainGrads& grads) noexcept;

// All tensors F64; nothing is kept between the two.
void kda_train_forward_ref(const KdaTrainArgs& args, const Tensor& y) noexcept;
void kda_train_vjp_ref(const KdaTrainArgs& args, const Tensor& dy, const KdaTrainGrads& grads) noexcept;

}  // namespace k3::ops
