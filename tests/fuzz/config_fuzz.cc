// The text of config.json. An accepted configuration keeps the promises that the model code relies on.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto result = k3::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!result.ok()) {
    K3_CHECK(k3::is_utf8(result.error().message), "{}", result.error().message);
    return 0;
  }
  const k3::Config& c = *result;
  K3_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.num_hidden_layers > 0 && c.num_attention_heads > 0);
  K3_CHECK(static_cast<int64_t>(c.attention.size()) == c.num_hidden_layers);
  K3_CHECK(c.kda_num_heads > 0 && c.kda_head_dim > 0 && c.short_conv_kernel_size > 1);
  K3_CHECK(c.rms_norm_eps > 0 && c.activation_situ_beta > 0);
  K3_CHECK(!c.gate_lower_bound || (*c.gate_lower_bound >= -5 && *c.gate_lower_bound < 0));
  bool moe = false, dense = false;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) (c.is_moe(i) ? moe : dense) = true;
  K3_CHECK(!dense || c.intermediate_size > 0);
  K3_CHECK(!moe || (c.num_experts_per_token > 0 && c.num_experts_per_token <= c.num_experts && c.moe_intermediate_size > 0));
  if (moe && c.experts_mxfp4) K3_CHECK(c.expert_width() % 32 == 0 && c.moe_intermediate_size % 32 == 0);
  for (const auto& id : {c.bos_token_id, c.eos_token_id, c.pad_token_id, c.media_placeholder_token_id}) {
    K3_CHECK(!id || (*id >= 0 && *id < c.vocab_size));
  }
  return 0;
}
