// Prompts whose cached tokens are expanded in parts, on a model with K3's number of heads: the same logits, as far as BF16 goes, as
// single tokens in the absorbed form have, which never expand anything.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "k3/model/gpu/gpu_model_test_util.h"
#include "k3/ops/mla/cuda/mla_parts.h"

namespace k3 {
namespace {

constexpr double kNormRatio = 3e-2;  // kernels.md 9: BF16 from one order of sums to another
constexpr int64_t kCtx = 24576, kChunk = 2048, kHistory = 22400, kHeads = 96, kVocab = 1024;

// Two layers of each kind; weights so small that BF16 alone keeps rows within the bound.
std::string config_text() {
  std::string text = kRandomConfig;
  const auto set = [&](std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    K3_CHECK(at != std::string::npos, "{}", from);
    text.replace(at, from.size(), to);
  };
  set("\"num_attention_heads\":4,\"num_key_value_heads\":4", "\"num_attention_heads\":96,\"num_key_value_heads\":96");
  set("\"num_hidden_layers\":9", "\"num_hidden_layers\":4");
  set("\"full_attn_layers\":[4,8,9],\"kda_layers\":[1,2,3,5,6,7]", "\"full_attn_layers\":[2,4],\"kda_layers\":[1,3]");
  set("\"initializer_range\":0.06", "\"initializer_range\":0.02");
  return text;
}

class LongContext : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_present()) GTEST_SKIP() << "no GPU";
    folder_ = testing::TempDir() + "k3_long_context";
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(write_file(folder_ + "/config.json", config_text()).ok());
    ASSERT_TRUE(write_random_checkpoint(load_config(folder_).value(), folder_, 3, 1, pool_, {}).ok());
    LoadOptions options;
    options.device = Device{0};
    Result<Model> model = Model::load(folder_, pool_, options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::make_unique<Model>(*std::move(model));
    RunnerOptions sizes;
    sizes.sequences = 2;
    sizes.ctx_tokens = kCtx;
    sizes.chunk_tokens = kChunk;
    sizes.policy = ops::Policy::bf16;
    Result<Runner> runner = Runner::create(*model_, pool_, sizes);
    ASSERT_TRUE(runner.ok()) << runner.error().message;
    runner_.emplace(*std::move(runner));
    ids_ = random_ids(*model_, kHistory + 100, 7);
    ASSERT_TRUE(runner_->feed(0, std::span(ids_).first(kHistory)).ok());
    ASSERT_TRUE(runner_->save(0, [&](std::span<const std::byte> part) {
                     saved_.insert(saved_.end(), part.begin(), part.end());
                     return Status();
                   }).ok());
    back(1);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  void back(int32_t sequence) {
    size_t at = 0;
    ASSERT_TRUE(runner_->restore(sequence, kHistory, [&](std::span<std::byte> part) {
                     std::copy_n(saved_.begin() + static_cast<int64_t>(at), part.size(), part.begin());
                     at += part.size();
                     return Status();
                   }).ok());
  }

  // Logits of the tokens behind the history, so many in a step.
  std::vector<float> rows(int32_t sequence, int64_t begin, int64_t count, int64_t piece) {
    std::vector<float> out;
    for (int64_t at = begin; at < begin + count; at += piece) {
      const std::span<const int32_t> tokens = std::span(ids_).subspan(static_cast<size_t>(kHistory + at), static_cast<size_t>(piece));
      const StepInput input{sequence, tokens, StepInput::Logits::all};
      const Tensor logits = runner_->step(std::span(&input, 1)).value();
      out.insert(out.end(), logits.f32(), logits.f32() + logits.size());
    }
    return out;
  }

  void expect_close(std::span<const float> got, std::span<const float> want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size());
    double worst = 0;
    for (size_t row = 0; row < want.size() / kVocab; ++row) {
      double error = 0, norm = 0;
      for (size_t i = row * kVocab; i < (row + 1) * kVocab; ++i) {
        error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
        norm += std::pow(static_cast<double>(want[i]), 2);
      }
      const double ratio = std::sqrt(error / norm);
      worst = std::max(worst, std::isfinite(ratio) ? ratio : 1e9);
    }
    fmt::print("{}: worst of {} rows {:.2e}\n", what, want.size() / kVocab, worst);
    EXPECT_LE(worst, kNormRatio) << what;
  }

  ThreadPool pool_{2};
  std::string folder_;
  std::unique_ptr<Model> model_;
  std::optional<Runner> runner_;
  std::vector<int32_t> ids_;
  std::vector<std::byte> saved_;
};

TEST_F(LongContext, PartsAgreeWithTheAbsorbedForm) {
  ASSERT_LT(ops::cuda::mla_part_keys(kHeads), kHistory);
  const std::vector<float> want = rows(1, 0, 60, 1);
  expect_close(rows(0, 0, 60, 60), want, "one sequence, two parts");

  // Both in a step: three parts, of which one holds the end of one sequence and the beginning of the other.
  back(0);
  back(1);
  const std::span<const int32_t> tokens = std::span(ids_).subspan(kHistory);
  const StepInput inputs[] = {{0, tokens.first(60), StepInput::Logits::all}, {1, tokens.first(20), StepInput::Logits::all}};
  const Tensor both = runner_->step(inputs).value();
  const std::span<const float> got(both.f32(), static_cast<size_t>(both.size()));
  expect_close(got.first(60 * kVocab), want, "first of two, three parts");
  expect_close(got.subspan(60 * kVocab), std::span(want).first(20 * kVocab), "second of two, three parts");
  EXPECT_LE(runner_->ctx().workspace->peak_bytes(), gpu_scratch_bytes(model_->config(), kChunk, kChunk, 2 * kCtx, 2));
}

}  // namespace
}  // namespace k3
