#include "k3/model/rank_share.h"

#include <algorithm>

namespace k3 {

Result<Config> rank_config(const Config& whole, const RankShare& share) {
  if (share.tp < 1 || share.ep < 1 || share.rank < 0 || share.rank >= std::max(share.tp, share.ep)) {
    return fail(Code::invalid_argument, "there is no rank {} among {} (--tp {} --ep {})", share.rank, std::max(share.tp, share.ep), share.tp,
                share.ep);
  }
  Config config = whole;
  const auto divide = [](int64_t& field, std::string_view name, std::string_view option, int64_t by) -> Status {
    if (field % by != 0) return fail(Code::invalid_argument, "{} = {} cannot be divided by {} {}", name, field, option, by);
    field /= by;
    return {};
  };
  bool kda = false, mla = false, dense = false, moe = false;
  for (int64_t l = 0; l < whole.num_hidden_layers; ++l) {
    (whole.is_kda(l) ? kda : mla) = true;
    (whole.is_moe(l) ? moe : dense) = true;
  }
  if (kda) K3_TRY(divide(config.kda_num_heads, "linear_attn_config.num_heads", "--tp", share.tp));
  if (mla) K3_TRY(divide(config.num_attention_heads, "num_attention_heads", "--tp", share.tp));
  if (dense) K3_TRY(divide(config.intermediate_size, "intermediate_size", "--tp", share.tp));
  if (!moe) return config;
  if (whole.num_shared_experts > 0) {
    int64_t width = whole.shared_width();
    K3_TRY(divide(width, "num_shared_experts * moe_intermediate_size", "--tp", share.tp));
    config.shared_expert_width = width;
  }
  int64_t experts = whole.num_experts;
  K3_TRY(divide(experts, "num_experts", "--ep", share.ep));
  config.local_experts = experts;
  config.first_local_expert = share.rank % share.ep * experts;
  return config;
}

}  // namespace k3
