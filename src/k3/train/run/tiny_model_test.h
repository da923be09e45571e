// The smallest model that has everything: KDA and MLA, dense MLP and latent experts in MXFP4, AttnRes. Some ten thousand parameters.
#pragma once

#include <string>

namespace k3::train {

inline std::string tiny_model_json(int64_t vocab) {
  return R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear", "vocab_size": )" + std::to_string(vocab) +
         R"(, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
      "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5, "q_lora_rank": 16,
      "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "mla_use_nope": true, "mla_use_output_gate": true,
      "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1,
      "moe_intermediate_size": 32, "routed_expert_hidden_size": 32, "latent_moe_use_norm": true, "moe_router_activation_func": "sigmoid",
      "moe_renormalize": true, "routed_scaling_factor": 1.0, "use_grouped_topk": true, "num_expert_group": 1, "topk_group": 1,
      "attn_res_block_size": 2, "initializer_range": 0.02, "max_position_embeddings": 4096,
      "linear_attn_config": {"num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4, "use_full_rank_gate": true, "gate_lower_bound": -5.0,
        "full_attn_layers": [3], "kda_layers": [1, 2]},
      "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true}}}, "ignore": []}}})";
}

}  // namespace k3::train
