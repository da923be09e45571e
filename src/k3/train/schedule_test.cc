#include "k3/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>
#include <sstream>

namespace k3::train {
namespace {

TEST(Schedule, WarmsUpInOnePercentRoundedUp) {
  EXPECT_EQ(warmup_steps({.total_steps = 1000}), 10);
  EXPECT_EQ(warmup_steps({.total_steps = 1001}), 11);
  EXPECT_EQ(warmup_steps({.total_steps = 300}), 3);  // 0.01 * 300 is a rounding above 3
  EXPECT_EQ(warmup_steps({.total_steps = 20}), 1);
  EXPECT_EQ(warmup_steps({.total_steps = 0}), 1);
}

TEST(Schedule, LineThenCosine) {
  const LearningRate rate{.peak = 6e-3, .minimum = 1e-4, .total_steps = 2000};
  EXPECT_DOUBLE_EQ(learning_rate(rate, 0), 6e-3 / 20);
  EXPECT_DOUBLE_EQ(learning_rate(rate, 9), 6e-3 / 2);
  EXPECT_DOUBLE_EQ(learning_rate(rate, 19), 6e-3);
  EXPECT_DOUBLE_EQ(learning_rate(rate, 20), 6e-3);
  EXPECT_NEAR(learning_rate(rate, 1010), (6e-3 + 1e-4) / 2, 1e-15);
  EXPECT_NEAR(learning_rate(rate, 515), 1e-4 + 0.5 * (6e-3 - 1e-4) * (1 + std::cos(std::numbers::pi / 4)), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(rate, 2000), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(rate, 5000), 1e-4);
  for (int64_t s = 20; s < 2000; ++s) EXPECT_GT(learning_rate(rate, s), learning_rate(rate, s + 1)) << s;
}

TEST(Schedule, OneStepRun) {
  const LearningRate rate{.peak = 1, .minimum = 0.5, .total_steps = 1};
  EXPECT_EQ(learning_rate(rate, 0), 1);
  EXPECT_EQ(learning_rate(rate, 1), 0.5);
}

TEST(Schedule, MatricesAloneDecay) {
  for (const ParamFamily& family : param_table()) {
    const bool vector = !family.matrix;
    EXPECT_EQ(weight_decay(family), vector ? 0 : 0.1) << family.pattern;
    if (family.optimizer == OptimizerGroup::muon || family.optimizer == OptimizerGroup::muon_per_head ||
        family.optimizer == OptimizerGroup::muon_per_kv) {
      EXPECT_EQ(weight_decay(family, 0.3), 0.3) << family.pattern;
    }
  }
  EXPECT_EQ(weight_decay(param_family(ParamId::kda_a_log)), 0);
  EXPECT_EQ(weight_decay(param_family(ParamId::kda_dt_bias)), 0);
  EXPECT_EQ(weight_decay(param_family(ParamId::kda_q_conv)), 0);
  EXPECT_EQ(weight_decay(param_family(ParamId::mlp_res_proj)), 0);
}

Config config_of(const std::string& name) {
  std::ifstream file(std::string(K3_SOURCE_DIR) + "/tests/data/configs/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return parse_config(text.str(), name).value();
}

// Units lie inside the matrix, apart from each other, and together they are all of it.
TEST(Schedule, UnitsCoverEveryMatrixOnce) {
  for (const char* name : {"k3.json", "kimi-linear-48b.json"}) {
    const Config config = config_of(name);
    for (const ParamFamily& family : param_table()) {
      bool somewhere = family.scope != ParamScope::layer;
      for (int64_t l = 0; l < config.num_hidden_layers && !somewhere; ++l) somewhere = family.present(config, l);
      if (!somewhere || family.scope == ParamScope::vision || family.scope == ParamScope::vision_block) continue;
      const std::vector<UnitsOfRows> parts = ns_units(config, family);
      const bool muon = family.optimizer != OptimizerGroup::none && family.optimizer != OptimizerGroup::adamw;
      EXPECT_EQ(!parts.empty(), muon) << family.pattern;
      if (!muon) continue;
      const std::vector<int64_t> shape = family.shape(config);
      std::vector<int> covered(static_cast<size_t>(shape[0]));
      for (const UnitsOfRows& part : parts) {
        EXPECT_EQ(part.units.cols, shape[1]);
        for (int64_t u = 0; u < part.units.count; ++u) {
          ASSERT_EQ(part.units.stride % shape[1], 0);
          const int64_t first = part.first_row + u * part.units.stride / shape[1];
          for (int64_t r = first; r < first + part.units.rows; ++r) ++covered.at(static_cast<size_t>(r));
        }
      }
      for (const int times : covered) ASSERT_EQ(times, 1) << family.pattern;
    }
  }
}

TEST(Schedule, UnitsOfTheReport) {
  const Config config = config_of("k3.json");
  const auto of = [&](ParamId id) { return ns_units(config, param_family(id)); };
  EXPECT_EQ(of(ParamId::kda_q_proj)[0].units.count, 96);
  EXPECT_EQ(of(ParamId::kda_q_proj)[0].units.rows, 128);
  EXPECT_EQ(of(ParamId::mla_q_b_proj)[0].units.rows, 192);
  EXPECT_EQ(of(ParamId::mla_kv_b_proj)[0].units.count, 192);
  EXPECT_EQ(of(ParamId::mla_kv_b_proj)[0].units.rows, 128);
  EXPECT_EQ(of(ParamId::mla_g_proj)[0].units.count, 96);
  EXPECT_EQ(of(ParamId::kda_o_proj)[0].units.count, 1);
  EXPECT_TRUE(of(ParamId::kda_b_proj).empty());
  Config uneven = config;
  uneven.v_head_dim = 64;
  const auto parts = ns_units(uneven, param_family(ParamId::mla_kv_b_proj));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].first_row, 128);
  EXPECT_EQ(parts[1].units.rows, 64);
  EXPECT_EQ(parts[1].units.stride, 192 * config.kv_lora_rank);
}

}  // namespace
}  // namespace k3::train
