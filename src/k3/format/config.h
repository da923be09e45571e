// Purpose:  a model's configuration, read from the released config.json of either family.
// Shapes:   none.
// Units:    layer indices here are zero-based; the published lists are one-based.
// Memory:   plain values.
// Threads:  immutable after parse.
// Errors:   every message names the file, the field by its dotted path and the values that contradict. corrupt: not
//           JSON, a wrong type, an impossible value, a contradiction. not_found: a required field or the file is
//           missing. unsupported: well formed, but no code for it here. Unknown fields are ignored, null means
//           absent. No input reaches a CHECK.
// Source:   model.md section 1. Features are detected by the presence of their field, never by model_type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

enum class AttentionKind { kda, mla };  // per layer; a third kind is expected

enum class Activation { silu, situ };

struct VisionConfig {
  int64_t patch_size = 14;
  int64_t init_pos_emb_height = 64, init_pos_emb_width = 64, init_pos_emb_time = 4;
  int64_t hidden_size = 1024;        // vt_hidden_size
  int64_t intermediate_size = 4096;  // vt_intermediate_size
  int64_t num_hidden_layers = 27;    // vt_num_hidden_layers
  int64_t num_attention_heads = 12;  // vt_num_attention_heads
  int64_t qkv_hidden_size = 1536;
  int64_t merge_height = 2, merge_width = 2;  // merge_kernel_size
  int64_t mm_hidden_size = 1024;
  int64_t text_hidden_size = 0;
  double projector_ln_eps = 1e-5;
};

struct Config {
  std::string model_type;    // top level
  std::string architecture;  // first of architectures
  bool nested = false;       // text_config present: tensors carry the prefix "language_model."

  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  Activation hidden_act = Activation::silu;
  double activation_situ_beta = 1.0;
  std::optional<double> activation_situ_linear_beta;
  double rms_norm_eps = 1e-5;
  double latent_norm_eps = 1e-6;  // q_a_layernorm, kv_a_layernorm: constructor default of the reference

  std::optional<int64_t> q_lora_rank;  // absent: direct q_proj
  int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  std::optional<bool> mla_use_output_gate;  // absent: the checkpoint decides; false without one

  int64_t first_k_dense_replace = 0, moe_layer_freq = 1;
  int64_t num_experts = 0, num_experts_per_token = 0, num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  std::optional<int64_t> routed_expert_hidden_size;  // absent: experts run at hidden_size
  std::optional<bool> latent_moe_use_norm;
  bool moe_renormalize = true;
  double routed_scaling_factor = 1.0;

  std::optional<int64_t> attn_res_block_size;  // absent: ordinary residual

  int64_t kda_num_heads = 0, kda_head_dim = 0, short_conv_kernel_size = 4;
  bool use_full_rank_gate = false;
  std::optional<double> gate_lower_bound;  // absent: softplus decay
  std::vector<AttentionKind> attention;    // [num_hidden_layers]

  bool experts_mxfp4 = false;  // quantization_config names mxfp4-pack-quantized (a checkpoint's tensors overrule it)
  bool trunk_int8 = false;     // trunk_quantization: our own extension (docs/formats.md); matrices may be I8 with scales
  double initializer_range = 0.02;
  int64_t max_position_embeddings = 0;  // or model_max_length
  int64_t num_nextn_predict_layers = 0;
  bool tie_word_embeddings = false;

  std::optional<int32_t> bos_token_id, eos_token_id, pad_token_id, media_placeholder_token_id;

  std::optional<VisionConfig> vision;

  // One rank's share of a model (model/rank_share.h); no file says so.
  std::optional<int64_t> shared_expert_width;  // absent: num_shared_experts * moe_intermediate_size
  std::optional<int64_t> local_experts;        // absent: all; the router chooses among num_experts either way
  int64_t first_local_expert = 0;

  bool is_moe(int64_t layer) const { return layer >= first_k_dense_replace && layer % moe_layer_freq == 0; }
  bool is_kda(int64_t layer) const { return attention[static_cast<size_t>(layer)] == AttentionKind::kda; }
  bool is_mla(int64_t layer) const { return attention[static_cast<size_t>(layer)] == AttentionKind::mla; }
  int64_t expert_width() const { return routed_expert_hidden_size.value_or(hidden_size); }
  int64_t shared_width() const { return shared_expert_width.value_or(num_shared_experts * moe_intermediate_size); }
  int64_t local_expert_count() const { return local_experts.value_or(num_experts); }
  int64_t kda_width() const { return kda_num_heads * kda_head_dim; }
};

// `source` names the text in messages (a path).
Result<Config> parse_config(std::string_view json, std::string_view source);

// A folder (its config.json) or a config file.
Result<Config> load_config(const std::string& path);

}  // namespace k3
