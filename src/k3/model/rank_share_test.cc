#include "k3/model/rank_share.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/base/rng.h"
#include "k3/model/gpu/gpu_weights.h"
#include "k3/model/init.h"
#include "k3/model/layers.h"
#include "k3/model/model.h"
#include "k3/model/step_cost.h"
#include "k3/model/summary.h"

namespace k3 {
namespace {

Config released(const char* name) { return load_config(std::string(K3_SOURCE_DIR) + "/tests/data/configs/" + name).value(); }

int64_t bytes_of(const ModelSummary& s, Component c) { return s.components.at(c).size_bytes; }

TEST(RankShare, ReleasedK3InEightParts) {
  const Config whole = released("k3.json");
  const Result<Config> rank = rank_config(whole, {.tp = 8, .ep = 8, .rank = 3});
  ASSERT_TRUE(rank.ok()) << rank.error().message;
  EXPECT_EQ(rank->kda_num_heads, 12);
  EXPECT_EQ(rank->num_attention_heads, 12);
  EXPECT_EQ(rank->shared_width(), 768);
  EXPECT_EQ(rank->intermediate_size, 33792 / 8);
  EXPECT_EQ(rank->num_experts, 896);  // the router's
  EXPECT_EQ(rank->local_expert_count(), 112);
  EXPECT_EQ(rank->first_local_expert, 336);
  EXPECT_EQ(rank->num_experts_per_token, 16);
  EXPECT_EQ(rank->hidden_size, whole.hidden_size);
  EXPECT_EQ(rank->vocab_size, whole.vocab_size);
  EXPECT_TRUE(check_gpu_config(*rank).ok());

  const ModelSummary all = summarise(whole), one = summarise(*rank);
  for (const Component c : {Component::routed_experts, Component::shared_experts, Component::dense_mlp}) {
    EXPECT_EQ(bytes_of(one, c) * 8, bytes_of(all, c)) << component_name(c);
  }
  for (const Component c : {Component::router, Component::latent, Component::lm_head, Component::embedding}) {
    EXPECT_EQ(bytes_of(one, c), bytes_of(all, c)) << component_name(c);
  }
  EXPECT_EQ(one.state_values_per_sequence * 8, all.state_values_per_sequence);
  EXPECT_EQ(one.latent_values_per_token, all.latent_values_per_token);  // one latent for all heads
  // A token's 16 experts are this rank's for one eighth.
  const CostModel cost = cost_model(*rank, one, 2), cost_all = cost_model(whole, all, 2);
  EXPECT_DOUBLE_EQ(cost.expert_bytes * 8, cost_all.expert_bytes);
  // 28 experts of the 112, said as if of 896.
  const double touched = decode_cost(cost, 1, 0, 1, 8.0 * 28).weight_bytes, none = decode_cost(cost, 1, 0, 1, 0.0).weight_bytes;
  EXPECT_NEAR(touched - none, 28.0 * 17547264 * static_cast<double>(one.moe_layers), 1e3);
}

TEST(RankShare, RanksCoverTheExpertsOnce) {
  const Config whole = released("k3.json");
  std::vector<int> owners(896, 0);
  for (int64_t r = 0; r < 16; ++r) {
    const Config rank = rank_config(whole, {.tp = 1, .ep = 16, .rank = r}).value();
    for (int64_t e = 0; e < rank.local_expert_count(); ++e) ++owners[static_cast<size_t>(rank.first_local_expert + e)];
    // The parameter table names the rank's own experts.
    int64_t first = -1, count = 0;
    for_each_param(rank, [&](const ParamFamily& family, int64_t layer, int64_t expert) {
      if (family.id != ParamId::expert_w1 || layer != 1) return;
      if (first < 0) first = expert;
      ++count;
    });
    EXPECT_EQ(first, rank.first_local_expert);
    EXPECT_EQ(count, 56);
  }
  for (const int n : owners) EXPECT_EQ(n, 1);
}

TEST(RankShare, WholeIsWhole) {
  const Config whole = released("kimi-linear-48b.json");
  const Config rank = rank_config(whole, {}).value();
  EXPECT_EQ(summarise(rank).total.size_bytes, summarise(whole).total.size_bytes);
  EXPECT_EQ(summarise(rank).active_bytes, summarise(whole).active_bytes);
}

// Ranks draw the same router and each its own experts, by name: their sums make the whole layer's output.
TEST(RankShare, SharesOfALayerSumToTheWhole) {
  Config whole = load_config(std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/kl-a").value();  // 12 experts, top 4, no latent
  whole.num_shared_experts = 0;
  settle_random(whole);
  constexpr int64_t kTokens = 9, kLayer = 2;
  ThreadPool pool(2);
  std::vector<float> input(static_cast<size_t>(kTokens * whole.hidden_size));
  Rng(1, 2).fill_normal(0, 1, input);
  const auto layer = [&](const Config& config) {
    const Model model = Model::random(config, 4, Device{}, pool).value();
    RunnerOptions options;
    options.policy = ops::Policy::exact;
    options.ctx_tokens = 16;
    Runner runner = Runner::create(model, pool, options).value();
    std::vector<float> out(input.size());
    const Tensor x(input.data(), DType::f32, {kTokens, config.hidden_size}), y(out.data(), DType::f32, {kTokens, config.hidden_size});
    EXPECT_TRUE(moe_layer(runner.ctx(), config, model.weights().layers[kLayer].moe, kLayer, nullptr, {.out = x}, y).ok());
    return out;
  };
  const std::vector<float> want = layer(whole);
  std::vector<double> sum(want.size(), 0);
  for (int64_t r = 0; r < 4; ++r) {
    const std::vector<float> part = layer(rank_config(whole, {.ep = 4, .rank = r}).value());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(part[i]);
  }
  double norm = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    norm += std::pow(static_cast<double>(want[i]), 2);
    error += std::pow(sum[i] - static_cast<double>(want[i]), 2);
  }
  ASSERT_GT(norm, 0);
  EXPECT_LT(std::sqrt(error / norm), 1e-6);
}

TEST(RankShare, RefusesByName) {
  const auto refused = [](const RankShare& share, std::string_view what) {
    const Result<Config> rank = rank_config(released("k3.json"), share);
    ASSERT_FALSE(rank.ok());
    EXPECT_EQ(rank.error().code, Code::invalid_argument);
    EXPECT_NE(rank.error().message.find(what), std::string::npos) << rank.error().message;
  };
  refused({.tp = 5}, "linear_attn_config.num_heads = 96");
  refused({.ep = 9}, "num_experts = 896");
  refused({.tp = 2, .rank = 2}, "no rank 2 among 2");
  refused({.tp = 0}, "--tp 0");
}

}  // namespace
}  // namespace k3
