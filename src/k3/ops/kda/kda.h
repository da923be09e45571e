// Purpose:  Kimi Delta Attention: gated delta rule with per-channel decay, over packed sequences.
// Shapes:   q, k, v, z [T, H, D] f32 contiguous (after conv and SiLU; z is the decay input f_b(f_a x));
//           b [T, H] beta logits; a_log [H]; dt_bias [H, D]; offsets [B + 1];
//           states[s] -> [H, Dv = D, Dk = D] state_dtype of sequence s, V-first; out [T, H, D].
// Units:    decay g as natural logarithm: lower_bound * sigmoid(exp(a_log) * (z + dt_bias)), or without a
//           lower bound -exp(a_log) * softplus(z + dt_bias).
// Memory:   out is overwritten, states are read and replaced; each export receives a copy of the state after
//           the given number of tokens of its sequence (of this call). A BF16 state is FP32 inside a call and rounded to
//           nearest when it is stored; with Ctx::deterministic after every token, so that how tokens are split into calls
//           does not show. Scratch from the workspace.
// Threads:  parallel over (sequence, head) inside; results do not depend on the thread count.
// Errors:   K3_CHECK on shapes. Empty sequences leave their state as it is.
// Source:   model.md 3.3, kernels.md 1-2. q and k are L2-normalised with 1e-6 added to the SUM of squares, q is
//           scaled by D^-0.5 afterwards; the output is read after the update.
//           Tolerance against kda_ref (double): norm ratio 1e-5 for out and state (kernels.md 9). Form tiles: 1e-4, twice
//           the 4.6e-5 by which one product of split operands can be off (kda_tiles_impl.h); measured 8e-6, and 3e-5 for
//           like keys that stay in memory. kernels.md 9 allows BF16 operands 6e-3, and 2e-2 for such keys.
//           Form recurrent is one fixed order per token (deterministic); chunk works in 16-token chunks with
//           the inverse by forward substitution, and for unbounded gates never forms e^{-G}.
#pragma once

#include <optional>
#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/paged.h"
#include "k3/ops/short_conv/short_conv.h"
#include "k3/ops/weight.h"

namespace k3::ops {

// tiles: the chunk form with its products on BF16 tiles, emulated below amx (slow, for tests); D a multiple of 32, at least
// avx512bf16. automatic: recurrent for short runs or deterministic, else tiles where kda_on_tiles says so, else chunk.
enum class KdaForm { automatic, recurrent, chunk, tiles };

// Where automatic takes tiles for its chunks.
constexpr bool kda_on_tiles(const Ctx& ctx, int64_t dim) {
  return ctx.isa >= Isa::amx && ctx.policy == Policy::bf16 && !ctx.deterministic && dim % 32 == 0;
}

struct KdaExport {
  int64_t sequence = 0;
  int64_t tokens = 0;      // 1 .. length of the sequence in this call; any position, on the chunk grid or not
  void* state = nullptr;   // [H, D, D] state_dtype
};

struct KdaArgs {
  Tensor q, k, v, z, b;
  Tensor a_log, dt_bias;
  std::optional<float> lower_bound;
  std::span<const int64_t> offsets;
  std::span<void* const> states;
  DType state_dtype = DType::f32;  // f32 or bf16
  std::span<const KdaExport> exports;
  Tensor out;
  KdaForm form = KdaForm::automatic;
};

void kda(const Ctx& ctx, const KdaArgs& args) noexcept;
void kda_ref(const KdaArgs& args) noexcept;

// The whole token mixer of a KDA layer in one pass over each head: convolution with SiLU of q, k and v (short_conv), the
// recurrence, then the gated RMSNorm per head. One parallel region; the arithmetic is that of the three ops.
// args.q, k, v hold projections and are overwritten by their convolutions; args.out is overwritten by the recurrence's
// output. taps [H * D, K]; tails[3 * s + part] of sequence s; gate, y [T, H * D]. D is at most 256. export_tails, when
// given: [3 * e + part] receives the conv tail at the position of kda.exports[e].
struct KdaMixArgs {
  KdaArgs kda;
  const Tensor* taps[3] = {};
  std::span<const ConvTail> tails;
  std::span<const ConvTail> export_tails;
  Tensor norm;  // [D]
  Tensor gate;
  float eps = 0;
  Tensor y;
  Tensor y_rest;  // on a GPU: as y, for what rounding cuts off y; or none
  // Second factors of low-rank projections, still to be applied: kda.z = z_low z_up^T, gate = gate_low gate_up^T.
  Tensor z_low, gate_low;  // [T, rank], or none
  Weight z_up, gate_up;
};
void kda_mix(const Ctx& ctx, const KdaMixArgs& args) noexcept;

// The same for sequences whose states and tails lie in slots: fills states, tails and exports of `args` from them. On a GPU:
// q, k, v, z, gate and y BF16, b FP32 or BF16, rows may be strided; `device_exports` are `exports` in device memory.
void kda_mix(const Ctx& ctx, KdaMixArgs args, const StateSlots& state, std::span<const StateExport> exports,
             const DeviceExports& device_exports = {}) noexcept;

// In training: no slots are touched, every sequence begins afresh (kda_train.h). args.kda.q .. y as above.
void kda_mix_train(const Ctx& ctx, const KdaMixArgs& args) noexcept;

// Log decay alone, g [T, H, D] (also used by tests): exposed because it is the classic trap.
void kda_decay_ref(const Tensor& z, const Tensor& a_log, const Tensor& dt_bias, std::optional<float> lower_bound,
                   const Tensor& g) noexcept;

}  // namespace k3::ops
