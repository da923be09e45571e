// The parameter table: one row per parameter family of both model families.
//
// Loader, initialiser, converter, inspect, and later optimizer, sharding and the planner's byte counts read this
// table; no second list of tensor names exists. A row says which tensor, on which layers, of what shape, how it
// is stored in the released layout, how it shards, how it trains and how it is initialised.
// Source: model.md 2.2-2.4; training.md 2.2 for the optimizer groups.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/format/config.h"
#include "k3/tensor/dtype.h"

namespace k3 {

enum class ParamId {
  input_layernorm,
  post_attention_layernorm,
  self_attention_res_norm,
  self_attention_res_proj,
  mlp_res_norm,
  mlp_res_proj,
  kda_q_proj,
  kda_k_proj,
  kda_v_proj,
  kda_q_conv,
  kda_k_conv,
  kda_v_conv,
  kda_a_log,
  kda_dt_bias,
  kda_f_a_proj,
  kda_f_b_proj,
  kda_b_proj,
  kda_g_proj,
  kda_g_a_proj,
  kda_g_b_proj,
  kda_o_norm,
  kda_o_proj,
  mla_q_a_proj,
  mla_q_a_layernorm,
  mla_q_b_proj,
  mla_q_proj,
  mla_kv_a_proj,
  mla_kv_a_layernorm,
  mla_kv_b_proj,
  mla_g_proj,
  mla_o_proj,
  mlp_gate_proj,
  mlp_up_proj,
  mlp_down_proj,
  router_gate,
  router_bias,
  routed_down_proj,
  routed_norm,
  routed_up_proj,
  shared_gate_proj,
  shared_up_proj,
  shared_down_proj,
  expert_w1,
  expert_w2,
  expert_w3,
  embed_tokens,
  final_norm,
  output_res_norm,
  output_res_proj,
  lm_head,
  mm_proj_0,
  mm_proj_2,
  mm_post_norm,
  patch_embed,
  patch_pos_emb,
  vision_norm0,
  vision_norm1,
  vision_wqkv,
  vision_wo,
  vision_fc0,
  vision_fc1,
  vision_final_norm,
};

enum class ParamScope { layer, expert, global, vision, vision_block };

// For tables that people read.
enum class Component {
  routed_experts,
  kda,
  mla,
  shared_experts,
  latent,
  router,
  dense_mlp,
  embedding,
  lm_head,
  norms,
  vision_tower,
  projector,
};
std::string_view component_name(Component component);

enum class ParamStore {
  bf16,
  f32,
  small,   // F32 in K3, BF16 in Kimi-Linear
  expert,  // MXFP4 packed + scales when the config says so, else BF16
};

enum class ParamShard { replicated, rows, columns, heads, experts, vocabulary };

enum class OptimizerGroup {
  none,
  adamw,          // vectors, embeddings, lm_head, degenerate shapes
  muon,           // the whole matrix is one Newton-Schulz unit
  muon_per_head,  // one unit per head of rows
  muon_per_kv,    // kv_b: keys and values of each head apart
};

enum class ParamInit { normal, ones, zeros, conv, dt_bias };

struct ParamFamily {
  ParamId id;
  std::string_view pattern;  // "{l}" layer or block, "{e}" expert; without the prefix of the family
  ParamScope scope;
  Component component;
  bool (*present)(const Config&, int64_t layer);
  std::vector<int64_t> (*shape)(const Config&);  // logical shape, before packing
  ParamStore store;
  bool matrix;  // multiplied by an activation: keeps its storage dtype in memory, counts in FLOPs
  ParamShard shard;
  OptimizerGroup optimizer;
  ParamInit init;
};

// Large matrices that `convert --trunk int8` packs and that may be I8 in a checkpoint: projections, dense MLP, shared
// experts, latent projections, lm_head. Not: the router (decides, in FP32), kv_b (absorbed attention reads it transposed),
// b_proj (a row per head), the embedding (rows are copied).
bool may_be_int8(const ParamFamily& family, const Config& config);

std::span<const ParamFamily> param_table();
const ParamFamily& param_family(ParamId id);

// The tensor's full name; for packed experts without "_packed" / "_scale", for I8 matrices without "_scale".
std::string param_name(const Config& config, ParamId id, int64_t layer = -1, int64_t expert = -1);

// Values of a tensor of these dims; check_sizes (summary.h) says that the product of a config's fits.
int64_t element_count(std::span<const int64_t> dims);

// A tensor of a checkpoint in the released layout.
struct ParamTensor {
  const ParamFamily* family = nullptr;
  std::string name;
  std::vector<int64_t> dims;
  DType dtype = DType::bf16;
  int64_t params = 0;  // logical weights; 0 for scales
  int64_t layer = -1;
  int64_t expert = -1;

  int64_t size_bytes() const;
};

// Visits every parameter (one call per family, layer and expert; expert < 0 for others) in checkpoint order:
// layers, then embedding, head and final norm, projector, tower.
void for_each_param(const Config& config,
                    const std::function<void(const ParamFamily&, int64_t layer, int64_t expert)>& visit);

// Visits every stored tensor; a packed expert matrix gives two, so does one of an 8-bit trunk.
void for_each_tensor(const Config& config, const std::function<void(const ParamTensor&)>& visit);

}  // namespace k3
