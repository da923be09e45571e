// Bytes and FLOPs of steps against values worked out by hand and against the published cost of K3.
#include "k3/model/step_cost.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace k3 {
namespace {

// A K3 of 13 layers: 9 KDA, 4 MLA (the last two together), the first dense. Released proportions, two sizes.
struct Sizes {
  int hidden, heads, q_lora, experts, topk, latent, inter, dense;
};
constexpr Sizes kBench = {1024, 12, 384, 64, 8, 512, 448, 4608};
constexpr Sizes kBig = {2048, 24, 512, 192, 16, 1024, 896, 9216};

CostModel cost_of(const Sizes& s, int64_t element_bytes = 2) {
  const std::string json = fmt::format(
      R"({{"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": {{
        "hidden_size": {}, "num_hidden_layers": 13, "vocab_size": 32768, "rms_norm_eps": 1e-5, "hidden_act": "situ",
        "num_attention_heads": {}, "q_lora_rank": {}, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "num_experts": {}, "num_experts_per_token": {}, "num_shared_experts": 2,
        "routed_expert_hidden_size": {}, "moe_intermediate_size": {}, "intermediate_size": {}, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "activation_situ_beta": 4.0, "mla_use_output_gate": true, "latent_moe_use_norm": true,
        "attn_res_block_size": 4, "linear_attn_config": {{"num_heads": {}, "head_dim": 128, "short_conv_kernel_size": 4,
        "use_full_rank_gate": true, "gate_lower_bound": -5.0, "full_attn_layers": [4, 8, 12, 13],
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11]}},
        "quantization_config": {{"format": "mxfp4-pack-quantized"}}}}}})",
      s.hidden, s.heads, s.q_lora, s.experts, s.topk, s.latent, s.inter, s.dense, s.heads);
  Config config = parse_config(json, "test").value();
  return cost_model(config, summarise(config), element_bytes);
}

CostModel released_k3() {
  const Config config = load_config(std::string(K3_SOURCE_DIR) + "/tests/data/configs/k3.json").value();
  return cost_model(config, summarise(config), 2);
}

TEST(DistinctExperts, OfK3) {
  // 896 choose 16, for 1, 2, 4, ... 128 tokens.
  const double expected[] = {16, 31.7, 62.3, 120, 224, 393, 613, 807};
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(distinct_experts(896, 16, 1 << i), expected[i], 0.5) << (1 << i);
  EXPECT_EQ(distinct_experts(896, 16, 0), 0);
  EXPECT_EQ(distinct_experts(0, 0, 5), 0);
  EXPECT_EQ(distinct_experts(7, 7, 3), 7);
  EXPECT_NEAR(distinct_experts(64, 8, 4), 64 * (1 - 2401.0 / 4096), 1e-9);
}

TEST(DecodeCost, BenchModelByHand) {
  const CostModel m = cost_of(kBench);
  EXPECT_EQ(m.expert_bytes, 12 * 3 * 512 * 448 * 17 / 32);  // 12 layers, w1 w2 w3, 4.25 bits a weight
  EXPECT_EQ(m.head_bytes, 2 * 32768 * 1024);
  EXPECT_EQ(m.state_bytes, 9 * 12 * (128 * 128 * 4 + 3 * 3 * 128 * 2));  // state FP32, three tails of three BF16 rows
  EXPECT_EQ(m.latent_bytes, 4 * (512 + 64) * 2);
  const StepCost one = decode_cost(m, 1, 0, 1);
  EXPECT_NEAR(one.bytes() / 1e6, 440, 1);
  EXPECT_NEAR(one.matrix_flops / 1e9, 0.52, 0.005);
  EXPECT_EQ(one.recurrence_flops, 7.0 * 9 * 12 * 128 * 128);
  EXPECT_EQ(one.attention_flops, 4 * 12 * 2 * (2 * 512 + 64));  // the token itself
  // Four sequences share the trunk: 3.1 times the speed of one when only bytes count.
  EXPECT_NEAR(4 * one.bytes() / decode_cost(m, 4, 0, 1).bytes(), 3.1, 0.05);
}

TEST(DecodeCost, BigModel) {
  const CostModel m = cost_of(kBig);
  const StepCost one = decode_cost(m, 1, 0, 1);
  // 1,644.8 MB of matrices and 1.0 MB of norms; 14.65 MB of state are read and written.
  EXPECT_NEAR(one.weight_bytes / 1e6, 1645.8, 0.1);
  EXPECT_EQ(m.state_bytes, 9 * 24 * (128 * 128 * 4 + 3 * 3 * 128 * 2));
  EXPECT_NEAR(one.bytes() / 1e9, 1.6751, 0.0001);
  EXPECT_NEAR(one.matrix_flops / 1e9, 2.42, 0.02);
}

TEST(DecodeCost, ManyStepsAreTheirSum) {
  const CostModel m = cost_of(kBench, 4);
  const StepCost all = decode_cost(m, 3, 100, 5);
  StepCost sum;
  for (int i = 0; i < 5; ++i) {
    const StepCost step = decode_cost(m, 3, 100 + i, 1);
    sum.weight_bytes += step.weight_bytes;
    sum.cache_bytes += step.cache_bytes;
    sum.matrix_flops += step.matrix_flops;
    sum.attention_flops += step.attention_flops;
    sum.recurrence_flops += step.recurrence_flops;
  }
  EXPECT_DOUBLE_EQ(all.weight_bytes, sum.weight_bytes);
  EXPECT_DOUBLE_EQ(all.cache_bytes, sum.cache_bytes);
  EXPECT_DOUBLE_EQ(all.matrix_flops, sum.matrix_flops);
  EXPECT_DOUBLE_EQ(all.attention_flops, sum.attention_flops);
  EXPECT_DOUBLE_EQ(all.recurrence_flops, sum.recurrence_flops);
  EXPECT_EQ(m.latent_bytes, 2 * cost_of(kBench, 2).latent_bytes);
  EXPECT_EQ(decode_cost(m, 1, 0, 0).bytes(), 0);
}

TEST(PrefillCost, OfK3AsPublished) {
  const CostModel m = released_k3();
  EXPECT_NEAR(m.trunk_flops / 1e9, 206.0, 0.1);
  EXPECT_NEAR(m.chunk_flops / 1e9, 0.814, 0.001);
  EXPECT_NEAR(prefill_cost(m, 1, 0, 8192, 8192).flops() / 1e15, 1.744, 0.002);
  EXPECT_NEAR(prefill_cost(m, 1, 0, 131072, 8192).flops() / 1e15, 39.8, 0.05);
}

TEST(PrefillCost, ChunksReadTheTrunkAgain) {
  const CostModel m = cost_of(kBench);
  const StepCost whole = prefill_cost(m, 1, 0, 1024, 1024), halves = prefill_cost(m, 1, 0, 1024, 512);
  EXPECT_EQ(whole.flops(), halves.flops());
  EXPECT_NEAR(whole.weight_bytes, m.trunk_bytes + m.head_bytes + 64 * m.expert_bytes, 1);  // all experts are hit
  EXPECT_NEAR(halves.weight_bytes, 2 * (m.trunk_bytes + 64 * m.expert_bytes) + m.head_bytes, 1);
  EXPECT_EQ(whole.cache_bytes, 2 * m.state_bytes + 1024 * m.latent_bytes);
  EXPECT_EQ(halves.cache_bytes, 4 * m.state_bytes + (512 + 1024) * m.latent_bytes);
}

TEST(PrefillCost, OfSeveralSequences) {
  const CostModel m = cost_of(kBench);
  const StepCost one = prefill_cost(m, 1, 0, 128, 512), four = prefill_cost(m, 4, 0, 128, 512);
  EXPECT_DOUBLE_EQ(four.flops(), 4 * one.flops());
  EXPECT_NEAR(four.weight_bytes, one.weight_bytes, 1e-3 * one.weight_bytes);  // one forward of 512 tokens
  // After a history each token attends to that too.
  const StepCost later = prefill_cost(m, 1, 100, 10, 512);
  EXPECT_EQ(later.attention_flops, (10 * 100 + 55) * m.expanded_pair_flops);
  EXPECT_EQ(m.expanded_pair_flops, 4 * 12 * 2 * (128 + 64 + 128));
  EXPECT_EQ(prefill_cost(m, 1, 0, 0, 512).bytes(), 0);
  // More sequences than tokens in a forward: one token of each at a time.
  EXPECT_GT(prefill_cost(m, 8, 0, 2, 4).weight_bytes, m.trunk_bytes);
}

TEST(Floor, IsTheSlowerOfTheTwo) {
  StepCost cost;
  cost.weight_bytes = 30e9;
  cost.cache_bytes = 10e9;
  cost.matrix_flops = 60e9;
  cost.attention_flops = 15e9;
  cost.recurrence_flops = 5e9;
  const Floor reading = floor_of(cost, 20e9, 80e9), computing = floor_of(cost, 40e9, 20e9);
  EXPECT_DOUBLE_EQ(reading.seconds, 2);
  EXPECT_TRUE(reading.by_reading);
  EXPECT_DOUBLE_EQ(computing.seconds, 4);
  EXPECT_FALSE(computing.by_reading);
}

}  // namespace
}  // namespace k3
