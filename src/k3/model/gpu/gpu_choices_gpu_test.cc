// Tokens chosen where the logits are: by the rule of ops/sampling on the very logits that would have come to the host.
#include <gtest/gtest.h>

#include <memory>

#include "k3/model/gpu/gpu_model_test_util.h"
#include "k3/ops/sampling/cuda/sampling_cuda.h"
#include "k3/ops/sampling/sampling.h"

namespace k3 {
namespace {

using ops::cuda::SampleRow;

class GpuChoices : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_present()) GTEST_SKIP() << "no GPU";
    LoadOptions options;
    options.device = Device{0};
    model_ = std::make_unique<Model>(Model::load(write_random_model(pool_), pool_, options).value());
  }
  Runner runner(bool deterministic = false) {
    RunnerOptions options;
    options.sequences = 3;
    options.ctx_tokens = 256;
    options.deterministic = deterministic;
    return Runner::create(*model_, pool_, options).value();
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
};

// A prompt and single tokens (launched, captured, replayed), all rows greedy, all with filters, some of them left to the host.
TEST_F(GpuChoices, AreThoseOfTheRuleOnTheSameLogits) {
  const int64_t vocab = model_->config().vocab_size;
  const std::vector<int32_t> ids = random_ids(*model_, 30, 5);
  const RowChoice greedy = SampleRow{.temperature = 0}, free = SampleRow{.uniform = 0.4},
                  narrow = SampleRow{.temperature = 0.8F, .top_p = 0.9F, .min_p = 0.01F, .top_k = 20, .uniform = 0.9}, none;
  const std::vector<std::vector<RowChoice>> wanted = {
      {greedy, narrow, none}, {greedy, greedy, greedy}, {free, narrow, greedy}, {none, none, free}, {greedy, none, greedy}, {none, none, none}};
  Runner host = runner(), device = runner();
  ASSERT_TRUE(device.can_choose());
  size_t at = 0;
  for (const std::vector<RowChoice>& choices : wanted) {
    const size_t count = at == 0 ? 12 : 1;
    std::vector<StepInput> inputs;
    for (int32_t s = 0; s < 3; ++s) inputs.push_back({s, std::span(ids).subspan(at + static_cast<size_t>(s), count), WantLogits::last});
    const Tensor want = host.step(inputs).value();
    EXPECT_TRUE(host.chosen().empty());
    for (size_t s = 0; s < 3; ++s) inputs[s].choice = choices[s];
    const Tensor got = device.step(inputs).value();
    const bool any = choices[0] || choices[1] || choices[2];
    ASSERT_EQ(device.chosen().size(), any ? 3U : 0U);
    for (size_t s = 0; s < 3; ++s) {
      const std::span<const float> row(want.row(static_cast<int64_t>(s)), static_cast<size_t>(vocab));
      if (choices[s]) {
        EXPECT_EQ(device.chosen()[s].id, ops::cuda::sample_rule(row, *choices[s])) << at << " " << s;
        EXPECT_EQ(device.chosen()[s].flags, 0U);
      } else {
        EXPECT_TRUE(std::equal(row.begin(), row.end(), got.row(static_cast<int64_t>(s)))) << at << " " << s;
      }
    }
    at += count;
  }
}

TEST_F(GpuChoices, AFedSequenceGoesOnAsTheSamplerWould) {
  const std::vector<int32_t> prompt = random_ids(*model_, 40, 6);
  Runner host = runner(), device = runner();
  const ops::SamplingParams params{.temperature = 0.9F, .top_p = 0.95F, .top_k = 50, .seed = 3};
  ops::Sampler sampler(params, model_->config().vocab_size);
  std::vector<int32_t> by_host, by_device;
  std::span<const float> logits = host.feed(0, prompt).value();
  ASSERT_TRUE(device.feed(0, prompt, {}, sampler.plain_row(0)).ok());
  for (uint64_t i = 0; i < 30; ++i) {
    by_host.push_back(sampler.sample(logits, prompt, by_host).value());
    by_device.push_back(ops::chosen_id(device.chosen().back()).value());
    logits = host.feed(0, std::span(&by_host.back(), 1)).value();
    ASSERT_TRUE(device.feed(0, std::span(&by_device.back(), 1), {}, sampler.plain_row(i + 1)).ok());
  }
  EXPECT_EQ(by_host, by_device);
}

TEST_F(GpuChoices, DeterministicStepsLeaveThemToTheHost) {
  Runner exact = runner(true);
  EXPECT_FALSE(exact.can_choose());
  const std::vector<int32_t> ids = random_ids(*model_, 3, 7);
  const StepInput input{0, ids, WantLogits::last, SampleRow{.temperature = 0}};
  const Tensor logits = exact.step(std::span(&input, 1)).value();
  EXPECT_TRUE(exact.chosen().empty());
  EXPECT_TRUE(ops::all_finite({logits.f32(), static_cast<size_t>(logits.size())}));
}

}  // namespace
}  // namespace k3
