// Weights of a loaded text model, as the layers use them: matrices in their stored scheme, small vectors widened
// to FP32, the AttnRes norm and projection folded into one query per site.
//
// Purpose, memory: WeightSet owns every byte (one arena per layer plus one for the rest); the views inside stay
// valid as long as it lives and are immutable after load.
// Errors: load_weights names shard, tensor and fact: missing tensor, shape against config, dtype, A_log padding
// that is not zero, MXFP4 scale bytes >= 253, 8-bit trunk: no trunk_quantization, scale bytes of 255.
// Source: model.md 2.2-2.5, 3.
#pragma once

#include <functional>
#include <vector>

#include "k3/base/result.h"
#include "k3/base/threads.h"
#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/ops/moe/expert_store.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/weight.h"
#include "k3/tensor/tensor.h"

namespace k3 {

struct KdaWeights {
  ops::Weight q, k, v, f_a, f_b, b, o;
  ops::Weight g;                  // full-rank output gate, or
  ops::Weight g_a, g_b;           // low rank
  Tensor q_conv, k_conv, v_conv;  // [H * D, K]
  Tensor a_log;                   // [H]
  Tensor dt_bias;                 // [H, D]
  Tensor o_norm;                  // [D]
};

struct MlaWeights {
  ops::Weight q;         // direct, or
  ops::Weight q_a, q_b;  // through a normalised latent
  Tensor q_a_norm;       // [q rank]
  ops::Weight kv_a, kv_b, o;
  ops::Weight g;     // output gate, absent in Kimi-Linear
  Tensor kv_a_norm;  // [R]
};

struct MlpWeights {
  ops::Weight gate, up, down;
  explicit operator bool() const { return static_cast<bool>(gate); }
};

struct MoeWeights {
  ops::Weight router;
  Tensor router_bias;    // [E]
  ops::Weight down, up;  // latent projections, absent when experts run at full width
  Tensor latent_norm;    // [R], absent without latent_moe_use_norm
  MlpWeights shared;     // absent without shared experts
  std::vector<ops::ExpertWeights> experts;
  ops::ExpertBank bank;  // on a GPU, instead
};

struct LayerWeights {
  Tensor input_norm, post_attention_norm;     // [hidden]
  Tensor attention_res_query, mlp_res_query;  // [hidden] FP32 norm * projection; absent without AttnRes
  KdaWeights kda;                             // one of the two is filled, by Config::attention
  MlaWeights mla;
  MlpWeights mlp;  // dense layers
  MoeWeights moe;  // the others
};

struct WeightSet {
  ops::Weight embed, lm_head;
  Tensor final_norm;        // [hidden]
  Tensor output_res_query;  // [hidden]
  std::vector<LayerWeights> layers;
  std::vector<Storage> arenas;
  std::unique_ptr<ops::ExpertStore> experts;  // on a GPU: those of layers that do not fit it
  int64_t size_bytes = 0;                     // without what `experts` holds
};

// Stored bytes of everything but the vision parts.
int64_t text_weight_bytes(const Config& config);

// Settles what a config may leave to the checkpoint (MLA gate, latent norm, rank of the KDA gate, packed experts)
// by looking for the tensors.
void resolve_by_tensors(const Checkpoint& checkpoint, Config& config);

using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

Result<WeightSet> load_weights(const Checkpoint& checkpoint, const Config& config, ThreadPool& pool,
                               const LoadProgress& progress);

}  // namespace k3
