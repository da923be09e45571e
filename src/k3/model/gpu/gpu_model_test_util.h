// Small models for tests of whole models on a GPU.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/model/init.h"
#include "k3/model/model.h"

namespace k3 {

inline bool gpu_present() { return device_memory(Device{0}).ok(); }

// K3's kinds of layers, MXFP4 experts, AttnRes blocks of 3, the head sizes of the released models.
inline constexpr const char* kRandomConfig = R"json({"model_type":"kimi_linear","dtype":"bfloat16","hidden_size":256,
"num_hidden_layers":9,"vocab_size":1024,"rms_norm_eps":1e-05,"hidden_act":"situ","num_attention_heads":4,"num_key_value_heads":4,
"q_lora_rank":96,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"mla_use_nope":true,"num_experts":4,
"num_experts_per_token":4,"num_shared_experts":2,"moe_intermediate_size":64,"intermediate_size":512,"routed_scaling_factor":1.0,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","use_grouped_topk":true,"num_expert_group":1,"topk_group":1,
"moe_layer_freq":1,"first_k_dense_replace":1,"num_nextn_predict_layers":0,"bos_token_id":0,"eos_token_id":1,
"tie_word_embeddings":false,"linear_attn_config":{"num_heads":4,"head_dim":128,"short_conv_kernel_size":4,
"full_attn_layers":[4,8,9],"kda_layers":[1,2,3,5,6,7],"gate_lower_bound":-5.0,"use_full_rank_gate":true},
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"mla_use_output_gate":true,"routed_expert_hidden_size":128,
"latent_moe_use_norm":true,"attn_res_block_size":3,"max_position_embeddings":65536,"initializer_range":0.06,
"topk_method":"noaux_tc","quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized",
"config_groups":{"group_0":{"format":"mxfp4-pack-quantized","targets":["Linear"],"input_activations":null,"output_activations":null,
"weights":{"num_bits":4,"type":"float","group_size":32,"strategy":"group","symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"}}},
"ignore":[]}})json";

// Its folder.
inline std::string write_random_model(ThreadPool& pool, const std::string& name = "k3_gpu_model") {
  const std::string folder = std::filesystem::temp_directory_path().string() + "/" + name;
  std::filesystem::create_directories(folder);
  K3_CHECK(write_file(folder + "/config.json", kRandomConfig).ok(), "{}", folder);
  K3_CHECK(write_random_checkpoint(load_config(folder).value(), folder, 3, 1, pool, {}).ok(), "{}", folder);
  return folder;
}

inline std::vector<int32_t> random_ids(const Model& model, int64_t count, uint64_t seed) {
  const Rng rng(seed, 5);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(rng.uniform(static_cast<uint64_t>(i)) * static_cast<double>(model.config().vocab_size)));
  }
  return ids;
}

}  // namespace k3
