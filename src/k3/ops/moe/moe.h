// Purpose:  routed experts: out[t] = sum_j weights[t, j] * w2_e glu(w1_e z_t, w3_e z_t), e = ids[t, j].
// Shapes:   z [T, R] f32; ids [T, topk] i32; weights [T, topk] f32; per expert w1, w3 [F, R], w2 [R, F] in any
//           scheme (mxfp4 or unpacked); out [T, R] f32. An expert without weights is another rank's: it is left out.
// Units:    none.
// Memory:   out is overwritten; scratch from the workspace. Only chosen experts are read; tokens are grouped by
//           expert, so an expert's weights are read once per group of tokens that fits the scratch (about 1,300 of K3).
// Threads:  parallel over experts and rows inside; the sum over j is in the order of ids whatever the grouping
//           and the thread count, so results do not depend on neighbours in exact and deterministic.
// Errors:   K3_CHECK on shapes and on ids. T = 0 is legal.
// Source:   model.md 3.6, kernels.md 7. FP32 accumulation; policy bf16 rounds z and the activation to BF16.
//           With Ctx::int8_activations, i8 and mxfp4 weights: z and the activation in 8 bits (int8_dots.h).
//           Tolerance against moe_ref: that of linear, twice.
#pragma once

#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/router/router.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/weight.h"

namespace k3::ops {

struct ExpertWeights {
  Weight w1, w2, w3;  // gate, down, up
};

class ExpertStore;

// The experts of a layer in the memory of a GPU, packed for its kernels (cuda/moe_stream_pack.h), one after another.
struct ExpertBank {
  Scheme scheme = Scheme::bf16;                // bf16 or mxfp4
  int64_t experts = 0, width = 0, hidden = 0;  // R, F
  int32_t first = 0;                           // id of the first: those of other ranks are skipped
  int64_t routed = 0;                          // experts that tokens are routed to; 0: these
  const void* gate_up = nullptr;               // w1 and w3
  const void* down = nullptr;                  // w2
  const float* factors = nullptr;              // mxfp4
  ExpertStore* store = nullptr;                // instead of gate_up and down: experts that are not all on the GPU
  int64_t store_layer = 0;
  explicit operator bool() const { return gate_up != nullptr || store != nullptr; }
};

// Of one expert as it lies in a bank; 0 for schemes that no bank has.
int64_t packed_expert_bytes(const ExpertBank& bank);

// `bank` in place of `experts` on a GPU.
void moe(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, std::span<const ExpertWeights> experts,
         const Glu& activation, const Tensor& out, const ExpertBank& bank = {}) noexcept;

// The same in parts, for experts that are not all in memory at once: slot_out [T * topk, R] gets the unweighted result
// of every slot (t, j) whose expert is in `subset`; other rows stay as they are. Only experts of the subset need weights.
// After all of them moe_combine sums in the order of ids. Whatever the parts, `out` is bit for bit that of moe,
// if all experts have one scheme (mixed ones share the FP32 rows of whatever is at hand).
void moe_slots(const Ctx& ctx, const Tensor& z, const Tensor& ids, std::span<const int32_t> subset,
               std::span<const ExpertWeights> experts, const Glu& activation, const Tensor& slot_out) noexcept;
void moe_combine(const Ctx& ctx, const Tensor& slot_out, const Tensor& weights, const Tensor& out) noexcept;

// All of a layer's routed part: router (router.h), experts, and what follows their weighted sum; on a GPU one launch where tokens
// are few.
struct RoutedExperts {
  Tensor z, logits, bias;  // [T, R]; [T, E] f32; [E] f32 or empty
  RouterOptions route;
  std::span<const ExpertWeights> experts;
  ExpertBank bank;
  Glu activation;
  Tensor norm;  // [R] f32: the sum is normed (rms_norm.h), or
  float eps = 1e-5F;
  Tensor shared_hidden;  // [T, F']: its product with shared_down [R, F'] is added to the sum
  Weight shared_down;
  Tensor out;  // [T, R]
};
void routed_experts(const Ctx& ctx, const RoutedExperts& args) noexcept;

void moe_ref(const Tensor& z, const Tensor& ids, const Tensor& weights, std::span<const ExpertWeights> experts,
             const Glu& activation, bool round_to_bf16, const Tensor& out) noexcept;

}  // namespace k3::ops
