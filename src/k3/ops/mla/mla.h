// Purpose:  multi-head latent attention over a paged latent cache, absorbed and expanded.
// Shapes:   q [T, H, nope + rope] f32; kv_b [H * (nope + v), R] rows per head [nope keys | v values];
//           latent rows of width R + rope: [normalised latent | shared key, neither normalised nor rotated];
//           offsets [B + 1]; history [B] tokens in the cache before this step; caches [B]; out [T, H, v].
// Units:    scale is (nope + rope)^-0.5 in both forms.
// Memory:   latent_append writes the step's rows (rounded to the cache dtype) at history[s] + i; mla reads the
//           cache including those rows, so a token sees the same latent in its own step and later.
// Threads:  parallel over sequences, heads and query blocks inside; independent of the thread count.
// Errors:   K3_CHECK on shapes. T = 0 is legal.
// Source:   model.md 3.4, kernels.md 8. Causal, FP32 softmax, no positions.
//           Tolerance against mla_ref (double, on the same stored latent): norm ratio 1e-5 in both forms (FP32
//           throughout). absorbed is one fixed order per token (deterministic); expanded forms keys and values
//           block by block and is for prefill. kv_b products do not round their inputs.
//           Policy bf16, not deterministic, BF16 units, dimensions multiples of 32 (mla_matrix.h): expanded rounds q, keys,
//           values and weights to BF16, and the latents of an FP32 cache; sums and softmax stay FP32, and weights are
//           divided by the sum of what they were rounded to. Rounding errs by at most 2^-8, in the root mean square by
//           0.85 2^-9 < 2^-9. On random data errors of values and weights show in the norm as they are, those of q and keys
//           times s, the standard deviation of the scores (an error of d in a score is one of d in its weight):
//           norm ratio 2^-9 sqrt(2 + 2 s^2), of an FP32 cache 2^-9 sqrt(3 + 3 s^2).
#pragma once

#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/paged.h"
#include "k3/ops/weight.h"

namespace k3::ops {

enum class MlaForm { automatic, absorbed, expanded };

struct MlaArgs {
  Tensor q;
  Weight kv_b;
  int64_t nope = 0, rope = 0, value = 0, rank = 0;
  std::span<const int64_t> offsets;
  std::span<const int64_t> history;
  std::span<const PagedKv> caches;
  PagedTable table;  // instead of caches on a GPU
  Tensor out;
  Tensor out_rest;  // on a GPU: [T, H * value] for what rounding cuts off out, zeros where the kernel does not know it; or none
  Tensor gate;  // [T, H * value]: out is multiplied by its sigmoid; empty: none
  // Not empty: latent_append with these first (what a GPU does in the same launch).
  Tensor kv, kv_norm;
  float kv_eps = 0;
  MlaForm form = MlaForm::automatic;
};

// kv [T, R + rope] raw; norm_weight [R]; eps 1e-6 in released models.
void latent_append(const Ctx& ctx, const Tensor& kv, const Tensor& norm_weight, float eps, std::span<const int64_t> offsets,
                   std::span<const int64_t> history, std::span<const PagedKv> caches, const PagedTable& table = {}) noexcept;

void mla(const Ctx& ctx, const MlaArgs& args) noexcept;
void mla_ref(const MlaArgs& args) noexcept;

}  // namespace k3::ops
