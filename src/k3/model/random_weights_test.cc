// Random weights without a checkpoint are those that `k3 init` writes, bit for bit.
#include "k3/model/random_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "k3/model/init.h"
#include "k3/model/model.h"

namespace k3 {
namespace {

std::vector<float> logits_of(const Model& model, ThreadPool& pool) {
  RunnerOptions options;
  options.ctx_tokens = 64;
  Runner runner = Runner::create(model, pool, options).value();
  const std::vector<int32_t> ids = {1, 5, 2, 7, 3, 3, 8};
  const std::span<const float> row = runner.feed(0, ids).value();
  return {row.begin(), row.end()};
}

class RandomWeights : public testing::TestWithParam<const char*> {};

TEST_P(RandomWeights, AreThoseOfInit) {
  const std::string path = std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/" + GetParam();
  Config config = load_config(path).value();
  config.vision.reset();
  settle_random(config);
  ThreadPool pool(2);
  const std::string folder = testing::TempDir() + "k3_random_weights_" + std::to_string(getpid());  // cases run side by side
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_random_checkpoint(config, folder, 7, 2, pool, {}).ok());
  std::filesystem::copy_file(path + "/config.json", folder + "/config.json");
  const Model stored = Model::load(folder, pool).value();
  int64_t last = 0, total = 0;
  const Result<Model> made = Model::random(config, 7, Device{}, pool, [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  });
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(last, total);
  EXPECT_EQ(made->weights().size_bytes, stored.weights().size_bytes);
  EXPECT_EQ(logits_of(*made, pool), logits_of(stored, pool));
}

INSTANTIATE_TEST_SUITE_P(Oracle, RandomWeights, testing::Values("k3-a", "k3-c", "kl-a", "mix-a"));

TEST(RandomWeightsErrors, NameWhatIsWrong) {
  Config config = load_config(std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/k3-a").value();
  ThreadPool pool(1);
  config.trunk_int8 = true;
  const Result<Model> packed = Model::random(config, 0, Device{}, pool);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Code::unsupported);
}

// A history that nothing has written: lengths are real, numbers are finite, and a step goes on from there.
TEST(RandomHistory, IsLongAndFinite) {
  Config config = load_config(std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/k3-a").value();
  config.vision.reset();
  settle_random(config);
  ThreadPool pool(2);
  const Model model = Model::random(config, 1, Device{}, pool).value();
  for (const ops::Policy policy : {ops::Policy::exact, ops::Policy::bf16}) {
    RunnerOptions options;
    options.policy = policy;
    options.sequences = 2;
    options.ctx_tokens = 300;
    Runner runner = Runner::create(model, pool, options).value();
    ASSERT_TRUE(runner.pretend_history(290, 5).ok());
    EXPECT_EQ(runner.length(1), 290);
    EXPECT_EQ(runner.room(0), 10);
    const std::vector<int32_t> ids = {4, 9};
    const std::span<const float> row = runner.feed(1, ids).value();
    EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
    EXPECT_EQ(runner.length(1), 292);
    EXPECT_EQ(runner.length(0), 290);
    const Status over = runner.pretend_history(301, 5);
    ASSERT_FALSE(over.ok());
    EXPECT_EQ(over.error().code, Code::exhausted);
  }
}

}  // namespace
}  // namespace k3
