// Whole models on a GPU against the CPU in FP32 (which the golden tests hold to an independent program): one result, whatever way
// the tokens come.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "k3/base/rng.h"
#include "k3/model/gpu/gpu_model_test_util.h"
#include "k3/model/model.h"

namespace k3 {
namespace {

// How far BF16 takes a model from FP32 is the model's affair (the CPU's policy bf16 rounds the inputs of products; here activations
// between ops are rounded, too: twice that, for independent errors of one size). Rows in which rounding sends a token to another
// expert are far off whatever computes them, so the median row counts. What kernels.md 9 allows a BF16 model is enough for any.
constexpr double kTimesPolicy = 2, kAllowed = 3e-2;
// The choice has to be the same where the best two are apart by 0.25 and by six times the row's error (root mean square over its logits:
// the difference of two logits is off by 1.4 of it): rows that went to other experts leave themselves out.
constexpr double kApart = 0.25, kTimesError = 6;

class GpuModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!gpu_present()) GTEST_SKIP() << "no GPU";
    folder_ = GetParam();
    if (folder_ == "random") {
      folder_ = write_random_model(pool_);
    } else {
      folder_ = std::string(K3_SOURCE_DIR) + "/" + folder_;
      if (!std::filesystem::exists(folder_ + "/config.json")) GTEST_SKIP() << folder_ << " is not here";
    }
    cpu_ = std::make_unique<Model>(Model::load(folder_, pool_).value());
    LoadOptions options;
    options.device = Device{0};
    Result<Model> gpu = Model::load(folder_, pool_, options);
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    gpu_ = std::make_unique<Model>(*std::move(gpu));
  }

  std::vector<int32_t> tokens(int64_t count, uint64_t seed) const {
    const Rng rng(seed, 5);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(rng.uniform(static_cast<uint64_t>(i)) * static_cast<double>(cpu_->config().vocab_size)));
    }
    return ids;
  }

  Runner runner(const Model& model, int64_t sequences, ops::Policy policy = ops::Policy::bf16) {
    RunnerOptions options;
    options.sequences = sequences;
    options.ctx_tokens = 1024;
    options.policy = policy;
    Result<Runner> made = Runner::create(model, pool_, options);
    K3_CHECK(made.ok(), "{}", made.error().message);
    return *std::move(made);
  }

  // Logits of every token, fed in pieces of these sizes, the last of which repeats.
  std::vector<float> logits(Runner& runner, int32_t sequence, const std::vector<int32_t>& ids, const std::vector<int64_t>& pieces) {
    std::vector<float> out;
    size_t piece = 0;
    for (size_t at = 0; at < ids.size();) {
      const size_t count = std::min(ids.size() - at, static_cast<size_t>(pieces[std::min(piece++, pieces.size() - 1)]));
      const StepInput input{sequence, std::span(ids).subspan(at, count), StepInput::Logits::all};
      Result<Tensor> rows = runner.step(std::span(&input, 1));
      K3_CHECK(rows.ok(), "{}", rows.error().message);
      out.insert(out.end(), rows->f32(), rows->f32() + rows->size());
      at += count;
    }
    return out;
  }

  struct Rows {
    std::vector<double> ratios, errors;  // norm ratio; root mean square
    std::vector<int64_t> best;
  };
  Rows compare(const std::vector<float>& got, const std::vector<float>& want) const {
    Rows rows;
    const auto vocab = static_cast<size_t>(cpu_->config().vocab_size);
    for (size_t row = 0; row < want.size() / vocab; ++row) {
      double error = 0, norm = 0;
      for (size_t i = row * vocab; i < (row + 1) * vocab; ++i) {
        error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
        norm += std::pow(static_cast<double>(want[i]), 2);
      }
      rows.ratios.push_back(std::sqrt(error / norm));
      rows.errors.push_back(std::sqrt(error / static_cast<double>(vocab)));
      const auto of = std::span(got).subspan(row * vocab, vocab);
      rows.best.push_back(std::max_element(of.begin(), of.end()) - of.begin());
    }
    return rows;
  }
  static double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size()) / 2, x.end());
    return x[x.size() / 2];
  }

  // `rounded`: the CPU's logits of policy bf16.
  void expect_close(const std::vector<float>& got, const std::vector<float>& want, const std::vector<float>& rounded,
                    const std::string& what) const {
    ASSERT_EQ(got.size(), want.size()) << what;
    const Rows rows = compare(got, want), policy = compare(rounded, want);
    fmt::print("{} {}: {:.2e}, worst {:.2e}; policy bf16 {:.2e}, worst {:.2e}\n", GetParam(), what, median(rows.ratios),
               *std::max_element(rows.ratios.begin(), rows.ratios.end()), median(policy.ratios),
               *std::max_element(policy.ratios.begin(), policy.ratios.end()));
    EXPECT_LE(median(rows.ratios), std::max(kAllowed, kTimesPolicy * median(policy.ratios))) << what;
    const auto vocab = static_cast<size_t>(cpu_->config().vocab_size);
    int64_t apart = 0, equal = 0;
    for (size_t row = 0; row < rows.best.size(); ++row) {
      std::vector<float> sorted(want.begin() + static_cast<int64_t>(row * vocab), want.begin() + static_cast<int64_t>((row + 1) * vocab));
      std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
      const float best = *std::max_element(sorted.begin(), sorted.end());
      if (static_cast<double>(best - sorted[1]) <= std::max(kApart, kTimesError * rows.errors[row])) continue;
      ++apart;
      equal += want[row * vocab + static_cast<size_t>(rows.best[row])] == best;
    }
    EXPECT_EQ(equal, apart) << what;
    fmt::print("  the same choice in {} of {} rows that are apart\n", equal, apart);
  }

  ThreadPool pool_{2};
  std::string folder_;
  std::unique_ptr<Model> cpu_, gpu_;
};

TEST_P(GpuModel, OneResultWhateverTheChunks) {
  const std::vector<int32_t> ids = tokens(200, 1);
  Runner reference = runner(*cpu_, 1, ops::Policy::exact), policy = runner(*cpu_, 1);
  const std::vector<float> want = logits(reference, 0, ids, {200}), rounded = logits(policy, 0, ids, {200});
  Runner gpu = runner(*gpu_, 1);
  for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{200}, {64}, {7}, {1}, {150, 1}, {1, 16, 3, 64}}) {
    gpu.reset(0);
    std::string what = "pieces";
    for (const int64_t p : pieces) what += fmt::format(" {}", p);
    expect_close(logits(gpu, 0, ids, pieces), want, rounded, what);
  }
}

TEST_P(GpuModel, NeighboursDoNotShow) {
  Runner reference = runner(*cpu_, 1, ops::Policy::exact), policy = runner(*cpu_, 1), gpu = runner(*gpu_, 3);
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> want, rounded, got(3);
  for (int32_t s = 0; s < 3; ++s) {
    ids.push_back(tokens(40 + 30 * s, 10 + static_cast<uint64_t>(s)));
    reference.reset(0);
    want.push_back(logits(reference, 0, ids.back(), {1000}));
    policy.reset(0);
    rounded.push_back(logits(policy, 0, ids.back(), {1000}));
  }
  // Prompts of different lengths in one step, then one token each.
  for (size_t at = 0; at < 100; at = at == 0 ? 30 : at + 1) {
    std::vector<StepInput> inputs;
    std::vector<size_t> rows;
    for (int32_t s = 2; s >= 0; --s) {
      const auto i = static_cast<size_t>(s);
      const size_t begin = at == 0 ? 0 : 30 + 10 * i + (at - 30), end = at == 0 ? 30 + 10 * i : begin + 1;
      if (end > ids[i].size()) continue;
      inputs.push_back({s, std::span(ids[i]).subspan(begin, end - begin), StepInput::Logits::all});
      rows.push_back(i);
    }
    if (inputs.empty()) break;
    Result<Tensor> step = gpu.step(inputs);
    ASSERT_TRUE(step.ok()) << step.error().message;
    const float* row = step->f32();
    for (size_t n = 0; n < inputs.size(); ++n) {
      const size_t count = inputs[n].tokens.size() * static_cast<size_t>(cpu_->config().vocab_size);
      got[rows[n]].insert(got[rows[n]].end(), row, row + count);
      row += count;
    }
  }
  for (size_t s = 0; s < 3; ++s) expect_close(got[s], want[s], rounded[s], fmt::format("sequence {} of three", s));
}

TEST_P(GpuModel, SavedSequencesGoOn) {
  const std::vector<int32_t> ids = tokens(80, 20);
  Runner gpu = runner(*gpu_, 2);
  const std::vector<float> head = logits(gpu, 0, {ids.begin(), ids.begin() + 60}, {60});
  std::vector<std::byte> saved;
  ASSERT_TRUE(gpu.save(0, [&](std::span<const std::byte> part) {
                   saved.insert(saved.end(), part.begin(), part.end());
                   return Status();
                 }).ok());
  const std::vector<int32_t> rest(ids.begin() + 60, ids.end());
  const std::vector<float> want = logits(gpu, 0, rest, {1});
  size_t at = 0;
  ASSERT_TRUE(gpu.restore(1, 60, [&](std::span<std::byte> part) {
                   std::copy_n(saved.begin() + static_cast<int64_t>(at), part.size(), part.begin());
                   at += part.size();
                   return Status();
                 }).ok());
  EXPECT_EQ(logits(gpu, 1, rest, {1}), want);  // the same steps on the same bytes: bit for bit
}

INSTANTIATE_TEST_SUITE_P(Models, GpuModel, testing::Values("random", "tests/data/oracle-models/k3-e", "tests/data/oracle-models/kl-b", "models/k3-mini"));

}  // namespace
}  // namespace k3
