// K3's real widths in a model of two layers (KDA with the dense MLP, then MLA with 8 latent experts): 3.2 GB written,
// loaded and run. Small models cannot show an index that overflows 32 bits, a tile that only 96 heads reach, or memory
// that grows with the vocabulary of 163,840.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/format/config_edit.h"
#include "k3/model/init.h"
#include "k3/model/model.h"
#include "k3/model/summary.h"

namespace k3 {
namespace {

class RealWidth : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = testing::TempDir() + "k3_real_width";
    std::filesystem::create_directories(folder_);
    const std::string source = read_file(std::string(K3_SOURCE_DIR) + "/tests/data/configs/k3.json").value();
    const std::string json = edit_config(remove_vision(source).value(),
                                         std::vector<std::string>{"num_hidden_layers=2", "linear_attn_config.kda_layers=[1]",
                                                                  "linear_attn_config.full_attn_layers=[2]", "num_experts=8",
                                                                  "num_experts_per_token=4", "attn_res_block_size=1"})
                                 .value();
    ASSERT_TRUE(write_file(folder_ + "/config.json", json).ok());
    const Config config = load_config(folder_).value();
    ThreadPool pool(available_threads());
    ASSERT_TRUE(write_random_checkpoint(config, folder_, 1, 2, pool, {}).ok());
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static std::string folder_;
};

std::string RealWidth::folder_;

std::vector<float> last_logits(const Model& model, ThreadPool& pool, bool deterministic, int64_t chunk, ops::Isa isa) {
  RunnerOptions options;
  options.policy = ops::Policy::exact;
  options.deterministic = deterministic;
  options.chunk_tokens = chunk;
  options.ctx_tokens = 64;
  options.isa = isa;
  Runner runner = Runner::create(model, pool, options).value();
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 4001 % 163840);
  const auto logits = runner.feed(0, ids).value();
  return {logits.begin(), logits.end()};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

// Logits have an RMS near 1 (a normalised row of 7,168 against rows of deviation 0.02); sums of 7,168 to 33,792 FP32 terms
// in another order move them by some 1e-6, twice the depth of this model by less than 1e-4.
TEST_F(RealWidth, EverySplitAndInstructionSetAgrees) {
  ThreadPool pool(available_threads());
  const Model model = Model::load(folder_, pool).value();
  const ops::Isa best = ops::detect_isa();
  const std::vector<float> whole = last_logits(model, pool, false, 512, best);
  for (const float x : whole) ASSERT_TRUE(std::isfinite(x));
  EXPECT_LT(largest_difference(whole, last_logits(model, pool, false, 7, best)), 1e-4);
  EXPECT_LT(largest_difference(whole, last_logits(model, pool, false, 512, ops::Isa::scalar)), 1e-4);
  const std::vector<float> fixed = last_logits(model, pool, true, 512, best);
  EXPECT_LT(largest_difference(whole, fixed), 1e-4);
  EXPECT_EQ(fixed, last_logits(model, pool, true, 1, best));
}

}  // namespace
}  // namespace k3
