// How much device workspace a step takes: follows forward.cc, the layer functions and what ops/*/cuda/*_dispatch.cc take (but for the second
// rows of one token: the slack has room for them).
#include <algorithm>

#include "k3/model/gpu/gpu_plan.h"
#include "k3/ops/mla/cuda/mla_parts.h"

namespace k3 {
namespace {

constexpr int64_t kBf16 = 2;
constexpr int64_t kStreamTokens = 256;                     // most of the streaming expert kernels
constexpr int64_t kAbsorbedTokens = 8;                     // of a sequence in absorbed attention
constexpr int64_t kSegmentMap = int64_t{128} << 10;        // of a head's piece in the segmented recurrence
constexpr int64_t kSegments = 1024;                        // it cuts no finer than fills the GPU
constexpr int64_t kDecodeParts = int64_t{64} << 20;        // partial sums of absorbed attention: two a multiprocessor

int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

int64_t kda_bytes(const Config& c, int64_t t, int64_t sequences) {
  const int64_t rows = t * (10 * c.kda_width() + c.kda_num_heads + 2 * c.kda_head_dim) * kBf16;
  const int64_t pieces = std::min((t / 16 + sequences) * c.kda_num_heads, kSegments + sequences * c.kda_num_heads);
  return rows + pieces * kSegmentMap;
}

int64_t mla_bytes(const Config& c, int64_t t, int64_t prompt_keys, int64_t sequences) {
  const int64_t heads = c.num_attention_heads, query = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  const int64_t latent = c.kv_lora_rank + c.qk_rope_head_dim, value = heads * c.v_head_dim;
  const int64_t layer = t * (query + latent + c.q_lora_rank.value_or(0) + 2 * value) * kBf16;
  const int64_t absorbed = std::min(t, kAbsorbedTokens * sequences) * heads * (latent + c.kv_lora_rank) * kBf16 + kDecodeParts;
  // Keys come in parts; between those the outputs of all tokens, and a sum each, are FP32.
  const int64_t part = std::min(prompt_keys, ops::cuda::mla_part_keys(heads)), between = prompt_keys > part ? t * heads * (c.v_head_dim + 1) * 4 : 0;
  const int64_t expanded = part * (latent + heads * (c.qk_nope_head_dim + c.v_head_dim)) * kBf16 + between;
  return layer + std::max(absorbed, expanded);
}

int64_t moe_bytes(const Config& c, int64_t t) {
  const int64_t slots = t * c.num_experts_per_token, width = c.expert_width(), inner = c.moe_intermediate_size;
  const int64_t routing = t * c.num_experts * 4 + slots * 8;
  const int64_t rows = t * (2 * width + 2 * c.num_shared_experts * inner + c.hidden_size) * kBf16;
  const int64_t few = std::min(slots, kStreamTokens * c.num_experts_per_token) * width * 4;
  const int64_t many = slots * (width + up(width, 32) + up(inner, 32)) * kBf16 + slots * 16 + (t / 512 + 8) * c.num_experts * 4;
  return routing + rows + std::max(few, many);
}

}  // namespace

int64_t gpu_scratch_bytes(const Config& c, int64_t t, int64_t logit_rows, int64_t prompt_keys, int64_t sequences) {
  const int64_t blocks = c.attn_res_block_size ? (c.num_hidden_layers + *c.attn_res_block_size - 1) / *c.attn_res_block_size : 0;
  // Prefix, its rest, inputs and outputs of sub-layers, bank; of the rows with logits the same but for the inputs, and the last norm.
  const int64_t stream = t * c.hidden_size * (4 + blocks) * kBf16, head = logit_rows * c.hidden_size * (4 + blocks) * kBf16;
  int64_t layer = head;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const int64_t mlp = 2 * t * c.intermediate_size * kBf16;
    layer = std::max({layer, c.is_kda(l) ? kda_bytes(c, t, sequences) : mla_bytes(c, t, prompt_keys, sequences),
                      c.is_moe(l) ? moe_bytes(c, t) : mlp});
  }
  // Rounding of each piece to 256 bytes and tables: a sixteenth and a constant are more than they need.
  const int64_t bytes = stream + layer;
  return bytes + bytes / 16 + (int64_t{4} << 20);
}

}  // namespace k3
