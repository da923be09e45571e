// The parameter table against released totals and against every checkpoint in the repository.
#include "k3/model/params.h"

#include <gtest/gtest.h>

#include <set>

#include "k3/format/checkpoint.h"
#include "k3/model/summary.h"
#include "k3/model/weights.h"

namespace k3 {
namespace {

std::string path(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }

struct Released {
  const char* config;
  int64_t params, tensors, size_bytes;
  double active_billions;
};

TEST(Params, ReleasedTotalsToTheByte) {
  for (const Released& r : {Released{"tests/data/configs/k3.json", 2779931837184, 497220, 1560860324864, 104.19},
                            Released{"tests/data/configs/kimi-linear-48b.json", 49122681728, 20493, 98245528576, 3.11}}) {
    Config config = load_config(path(r.config)).value();
    if (!config.latent_moe_use_norm) config.latent_moe_use_norm = false;
    const ModelSummary summary = summarise(config);
    EXPECT_EQ(summary.total.params, r.params) << r.config;
    EXPECT_EQ(summary.total.tensors, r.tensors);
    EXPECT_EQ(summary.total.size_bytes, r.size_bytes);
    EXPECT_NEAR(static_cast<double>(summary.active_params) / 1e9, r.active_billions, 0.005);
    // The closed form of the summary and the enumeration of tensors are two ways to the same totals.
    int64_t params = 0, size_bytes = 0;
    std::set<std::string> names;
    for_each_tensor(config, [&](const ParamTensor& t) {
      params += t.params;
      size_bytes += t.size_bytes();
      names.insert(t.name);
    });
    EXPECT_EQ(params, r.params);
    EXPECT_EQ(size_bytes, r.size_bytes);
    EXPECT_EQ(static_cast<int64_t>(names.size()), r.tensors);
  }
}

TEST(Params, K3CostsOfTheSpecification) {
  const ModelSummary s = summarise(load_config(path("tests/data/configs/k3.json")).value());
  EXPECT_EQ(s.components.at(Component::kda).params, 69 * 443740416LL);
  EXPECT_EQ(s.components.at(Component::mla).params, 24 * 232196096LL);
  EXPECT_EQ(s.components.at(Component::routed_experts).size_bytes, 1446456066048LL);
  EXPECT_EQ(s.components.at(Component::norms).params, 4021248);
  EXPECT_EQ(s.components.at(Component::vision_tower).params, 401214464);
  EXPECT_EQ(s.latent_values_per_token, 13824);
  EXPECT_EQ(s.state_values_per_sequence, 108527616);
  EXPECT_EQ(s.conv_values_per_sequence, 7630848);
  EXPECT_NEAR(s.matrix_flops_per_token / 1e9, 208.3, 0.1);
  EXPECT_NEAR(s.recurrence_flops_per_token / 1e9, 0.76, 0.01);
  EXPECT_NEAR(s.attention_flops_per_context / 1e9, 0.00501, 0.00001);
}

class RealCheckpoint : public testing::TestWithParam<const char*> {};

// No tensor of the table is missing in the files, none of the files' tensors is unknown to the table.
TEST_P(RealCheckpoint, HoldsExactlyTheTableTensors) {
  const std::string folder = path(GetParam());
  Config config = load_config(folder).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  resolve_by_tensors(checkpoint, config);
  std::set<std::string> stored, expected;
  checkpoint.for_each_name([&](std::string_view name, int32_t) { stored.emplace(name); });
  for_each_tensor(config, [&](const ParamTensor& t) {
    expected.insert(t.name);
    const TensorInfo info = checkpoint.find(t.name).value();
    if (t.family->id == ParamId::kda_a_log) return;  // three released shapes
    EXPECT_EQ(info.dims, t.dims) << t.name;
  });
  EXPECT_EQ(stored, expected);
}

// The summary of stored sizes is the sum of the tensors' bytes, whatever their dtypes.
TEST_P(RealCheckpoint, StoredSizesAddUp) {
  const std::string folder = path(GetParam());
  Config config = load_config(folder).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  resolve_by_tensors(checkpoint, config);
  ModelSummary summary = summarise(config);
  ASSERT_TRUE(use_stored_sizes(checkpoint, config, summary).ok());
  int64_t size = 0, tensors = 0;
  checkpoint.for_each_name([&](std::string_view name, int32_t) {
    size += checkpoint.find(name).value().size_bytes;
    ++tensors;
  });
  EXPECT_EQ(summary.total.size_bytes, size);
  EXPECT_EQ(summary.total.tensors, tensors);
  EXPECT_GT(summary.active_bytes, 0);
  EXPECT_LT(summary.active_bytes, size);
}

INSTANTIATE_TEST_SUITE_P(All, RealCheckpoint,
                         testing::Values("models/k3-mini", "tests/data/oracle-models/k3-a", "tests/data/oracle-models/k3-b",
                                         "tests/data/oracle-models/k3-c", "tests/data/oracle-models/k3-d",
                                         "tests/data/oracle-models/k3-e", "tests/data/oracle-models/k3-f",
                                         "tests/data/oracle-models/kl-a", "tests/data/oracle-models/kl-b",
                                         "tests/data/oracle-models/mix-a", "tests/data/oracle-models/mix-b"));

TEST(Params, EveryMatrixHasAnOptimizerAndEveryVectorIsSmall) {
  const Config config = load_config(path("tests/data/configs/k3.json")).value();
  for (const ParamFamily& f : param_table()) {
    EXPECT_EQ(&param_family(f.id), &f) << f.pattern;  // the table is in the order of the enum
    const bool muon = f.optimizer != OptimizerGroup::adamw && f.optimizer != OptimizerGroup::none;
    if (muon) {
      EXPECT_TRUE(f.matrix) << f.pattern;
      EXPECT_EQ(f.shape(config).size(), 2U) << f.pattern;
    }
  }
}

}  // namespace
}  // namespace k3
