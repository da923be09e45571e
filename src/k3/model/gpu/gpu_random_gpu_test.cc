// Random weights made on a GPU: their distributions, and that models of them compute.
#include "k3/model/gpu/gpu_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "k3/model/init.h"
#include "k3/model/model.h"
#include "k3/model/rank_share.h"

namespace k3 {
namespace {

// A released config in small: every kind of layer, the widths that kernels want.
Config small(const char* name) {
  Config c = load_config(std::string(K3_SOURCE_DIR) + "/tests/data/configs/" + name).value();
  c.vision.reset();
  settle_random(c);
  c.num_hidden_layers = 5;
  c.attention.resize(5);
  c.vocab_size = 1024;
  c.hidden_size = 512;
  c.intermediate_size = 1024;
  c.num_experts = 32;
  c.num_experts_per_token = 4;
  c.moe_intermediate_size = 256;
  if (c.routed_expert_hidden_size) c.routed_expert_hidden_size = 256;
  if (c.attn_res_block_size) c.attn_res_block_size = 2;
  c.kda_num_heads = c.num_attention_heads = 8;
  return c;
}

class RandomOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
  }
  // Logits of a prompt and of steps after it and after a made-up history.
  void computes(const Config& config) {
    const Result<Model> model = Model::random(config, 3, Device{0}, pool_);
    ASSERT_TRUE(model.ok()) << model.error().message;
    RunnerOptions options;
    options.sequences = 2;
    options.ctx_tokens = 640;
    Runner runner = Runner::create(*model, pool_, options).value();
    std::vector<int32_t> ids(300);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 1024);
    const auto finite = [&](std::span<const int32_t> tokens) {
      const StepInput input{1, tokens, StepInput::Logits::last};
      const Result<Tensor> row = runner.step(std::span(&input, 1));
      ASSERT_TRUE(row.ok()) << row.error().message;
      const std::span<const float> logits(row->f32(), static_cast<size_t>(row->size()));
      EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
      EXPECT_TRUE(std::any_of(logits.begin(), logits.end(), [](float x) { return x != 0; }));
    };
    finite(ids);
    finite(std::span(ids).first(1));
    ASSERT_TRUE(runner.pretend_history(500, 9).ok());
    EXPECT_EQ(runner.length(1), 500);
    for (int i = 0; i < 3; ++i) finite(std::span(ids).subspan(static_cast<size_t>(i), 1));
  }
  ThreadPool pool_{2};
};

TEST_P(RandomOnGpu, WholeAndShareCompute) {
  Config config = small(GetParam());
  computes(config);
  config.experts_mxfp4 = !config.experts_mxfp4;
  computes(config);
  for (int64_t rank = 0; rank < 4; rank += 3) computes(rank_config(config, {.tp = 4, .ep = 4, .rank = rank}).value());
}

TEST_P(RandomOnGpu, DeviationIsTheConfigs) {
  const Config config = small(GetParam());
  const Model model = Model::random(config, 5, Device{0}, pool_).value();
  const ops::Weight& w = model.weights().lm_head;
  std::vector<uint16_t> bits(static_cast<size_t>(w.rows * w.cols));
  ASSERT_TRUE(copy_async(bits.data(), w.data, 2 * w.rows * w.cols, nullptr).ok());
  ASSERT_TRUE(synchronize(nullptr).ok());
  std::vector<float> values(bits.size());
  convert_to_float(bits.data(), DType::bf16, static_cast<int64_t>(bits.size()), values.data());
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 6 * config.initializer_range / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n) / config.initializer_range, 1, 0.01);
}

TEST_P(RandomOnGpu, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  Config config = small(GetParam());
  config.num_experts = 512;
  config.moe_intermediate_size = 1 << 19;
  const Result<Model> model = Model::random(config, 0, Device{0}, pool_);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Code::exhausted);
  EXPECT_NE(model.error().message.find("experts of"), std::string::npos) << model.error().message;
}

INSTANTIATE_TEST_SUITE_P(Released, RandomOnGpu, testing::Values("k3.json", "kimi-linear-48b.json"));

}  // namespace
}  // namespace k3
