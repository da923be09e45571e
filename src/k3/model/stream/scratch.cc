// How much workspace a step takes: follows forward.cc, the layer functions and what their ops take from the workspace.
#include <algorithm>

#include "k3/model/stream/memory_plan.h"
#include "k3/ops/mla/mla_matrix.h"

namespace k3 {
namespace {

// Of one worker: panels of widened weights, recurrence and attention tiles.
constexpr int64_t kWorkerBytes = int64_t{1} << 20;
// Queries and partial sums that absorbed attention takes at a time (ops/mla).
constexpr int64_t kAttentionFloats = int64_t{8} << 20;
constexpr int64_t kSegment = 2048;  // cached tokens of one partial sum
// Hidden activations that a moe call takes at a time (ops/moe).
constexpr int64_t kMostHidden = int64_t{64} << 20;

int64_t kda_floats(const Config& c, int64_t t) {
  const int64_t prepared = t * std::max(c.hidden_size, c.kda_width());
  return t * (5 * c.kda_width() + c.kda_num_heads + 2 * c.kda_head_dim) + 2 * prepared;
}

int64_t mla_floats(const Config& c, int64_t t, int64_t ctx_tokens, int threads) {
  const int64_t heads = c.num_attention_heads, query = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  const int64_t value = heads * c.v_head_dim, latent = c.kv_lora_rank + c.qk_rope_head_dim;
  const int64_t layer = t * (query + c.q_lora_rank.value_or(0) + latent + 2 * value);
  const int64_t prepared = t * std::max({c.hidden_size, value, c.q_lora_rank.value_or(0)});
  const int64_t segments = (ctx_tokens + kSegment - 1) / kSegment;
  const int64_t per_token = heads * (latent + 64) * (1 + segments);
  const int64_t absorbed = std::min(kAttentionFloats, t * per_token) + per_token + threads * 128 * (latent + 64 + heads);
  const int64_t head = (c.qk_nope_head_dim + c.v_head_dim + 16) * (c.kv_lora_rank + 16);
  const int64_t expanded = threads * (head + 128 * (latent + query / heads + c.v_head_dim) +
                                      t * (query / heads + c.v_head_dim + 256));
  // On any processor: a plan does not depend on where it is made.
  const ops::MlaDims dims{heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.kv_lora_rank};
  const int64_t matrix = ops::mla_matrix_can(dims, ops::Scheme::bf16) ? ops::mla_matrix_scratch(dims, t, threads) : 0;
  return layer + prepared + std::max({absorbed, expanded, matrix});
}

int64_t mlp_floats(int64_t t, int64_t input, int64_t width) { return t * (2 * width + std::max(input, width)); }

int64_t moe_floats(const Config& c, int64_t t, int threads) {
  const int64_t slots = t * c.num_experts_per_token, width = c.expert_width(), inner = c.moe_intermediate_size;
  const int64_t routing = t * (3 * c.num_experts + 4 * c.num_experts_per_token) + t * c.hidden_size;
  // Hidden rows of as many slots as are taken at once; AMX packs its inputs beside their BF16 rows, whole 16 tokens an expert.
  const int64_t at_once = std::min(slots, kMostHidden / inner + c.num_experts_per_token);
  const int64_t packed = std::min(16 * at_once, at_once + 15 * c.num_experts) * std::max(width, inner) / 2;
  const int64_t hidden = std::max(at_once * inner, at_once * inner / 2 + packed);
  const int64_t tiles = threads * slots * 160;  // columns of a block, row pointers
  const int64_t experts = 4 * t * width + slots * width + hidden + tiles + slots * 8 + c.num_experts * 32;
  const int64_t shared = t * c.hidden_size + mlp_floats(t, c.hidden_size, c.num_shared_experts * inner);
  return routing + experts + shared;
}

}  // namespace

int64_t step_scratch_bytes(const Config& c, int64_t t, int64_t logit_rows, int64_t ctx_tokens, int threads) {
  const int64_t blocks = c.attn_res_block_size ? (c.num_hidden_layers + *c.attn_res_block_size - 1) / *c.attn_res_block_size : 0;
  const int64_t stream = t * c.hidden_size * (3 + blocks);
  const int64_t head = logit_rows * c.hidden_size * (3 + blocks);
  int64_t layer = head;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    layer = std::max({layer, c.is_kda(l) ? kda_floats(c, t) : mla_floats(c, t, ctx_tokens, threads),
                      c.is_moe(l) ? moe_floats(c, t, threads) : mlp_floats(t, c.hidden_size, c.intermediate_size)});
  }
  // Rounding to 64 bytes, pointers and small vectors of a call: an eighth and a constant are more than they need.
  const int64_t floats = stream + layer;
  return floats * 4 + floats / 2 + threads * kWorkerBytes + (int64_t{4} << 20);
}

}  // namespace k3
