// The GPU's choice against sample_rule (bit for bit) and against Sampler (the same but for points within rounding of a
// border).
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/sampling/cuda/sampling_cuda.h"
#include "k3/ops/sampling/sampling.h"

namespace k3::ops::cuda {
namespace {

struct Rows {
  int64_t vocab = 0;
  bool bf16 = false;
  std::vector<float> logits = {};  // [rows, vocab], values of the type
  std::vector<SampleRow> params = {};
  std::vector<uint32_t> mask = {};  // [rows, words] or empty
  int64_t pad = 0;
  int top = 0;
  bool logprobs = false;

  int64_t count() const { return static_cast<int64_t>(params.size()); }
  int64_t words() const { return (vocab + 31) / 32; }
  std::span<const float> row(int64_t r) const {
    return std::span(logits).subspan(static_cast<size_t>(r * vocab), static_cast<size_t>(vocab));
  }
  void add(const std::vector<float>& x, const SampleRow& p) {
    for (const float v : x) logits.push_back(bf16 ? round_to_bf16(v) : v);
    params.push_back(p);
  }
};

struct Chosen {
  std::vector<int32_t> ids, top_ids;
  std::vector<uint32_t> flags;
  std::vector<float> logprobs, top_logprobs;
};

Chosen choose(const Rows& in, bool greedy_kernel = false) {
  const int64_t rows = in.count(), stride = in.vocab + in.pad;
  std::vector<float> padded(static_cast<size_t>(rows * stride), 1e30F);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(in.row(r).begin(), in.vocab, padded.begin() + r * stride);
  const DeviceArray<float> f32(in.bf16 ? std::vector<float>() : padded);
  const DeviceArray<uint16_t> bf16(in.bf16 ? to_bf16(padded) : std::vector<uint16_t>());
  const DeviceArray<SampleRow> params(in.params);
  const DeviceArray<uint32_t> mask(in.mask), flags(rows);
  const DeviceArray<int32_t> ids(rows), top_ids(rows * in.top);
  const DeviceArray<float> logprobs(rows), top_logprobs(rows * in.top);
  const CudaStatus status = sampling_cuda({.rows = rows,
                                           .vocab = in.vocab,
                                           .logits = in.bf16 ? static_cast<const void*>(bf16.data()) : f32.data(),
                                           .stride = stride,
                                           .logits_bf16 = in.bf16,
                                           .params = greedy_kernel ? nullptr : params.data(),
                                           .mask = in.mask.empty() ? nullptr : mask.data(),
                                           .mask_stride = in.words(),
                                           .ids = ids.data(),
                                           .flags = flags.data(),
                                           .logprobs = in.logprobs ? logprobs.data() : nullptr,
                                           .top = in.top,
                                           .top_ids = top_ids.data(),
                                           .top_logprobs = top_logprobs.data()},
                                          nullptr);
  EXPECT_TRUE(status.ok());
  gpu_sync();
  EXPECT_TRUE(ids.guards_intact() && flags.guards_intact() && logprobs.guards_intact() && top_ids.guards_intact() &&
              top_logprobs.guards_intact());
  return {ids.get(), top_ids.get(), flags.get(), logprobs.get(), top_logprobs.get()};
}

std::string text(const SampleRow& p) {
  return fmt::format("T={} k={} p={} min={} u={}", p.temperature, p.top_k, p.top_p, p.min_p, p.uniform);
}

// Also against Sampler with the same uniform number; returns how many rows differ from it.
int check(const Rows& in, const char* what) {
  const Chosen got = choose(in);
  int wrong = 0;
  for (int64_t r = 0; r < in.count(); ++r) {
    const auto i = static_cast<size_t>(r);
    const auto mask = in.mask.empty()
                          ? std::span<const uint32_t>()
                          : std::span(in.mask).subspan(i * static_cast<size_t>(in.words()), static_cast<size_t>(in.words()));
    const int32_t want = sample_rule(in.row(r), in.params[i], mask);
    if (got.ids[i] != want && ++wrong <= 3) {
      ADD_FAILURE() << what << " V=" << in.vocab << " bf16=" << in.bf16 << " row " << r << " " << text(in.params[i]) << ": "
                    << got.ids[i] << " not " << want;
    }
  }
  EXPECT_EQ(wrong, 0) << what << " of " << in.count();
  return wrong;
}

std::vector<SampleRow> every_filter() {
  std::vector<SampleRow> out;
  uint64_t counter = 0;
  const Rng rng(5, 6);
  for (const float temperature : {0.0F, 0.3F, 1.0F, 2.0F}) {
    for (const int32_t top_k : {0, 1, 5, 50, 1000000}) {
      for (const float top_p : {1.0F, 0.95F, 0.5F, 0.01F}) {
        for (const float min_p : {0.0F, 0.1F}) {
          if (temperature == 0 && (top_k != 5 || top_p != 0.5F)) continue;
          out.push_back({temperature, top_p, min_p, top_k, rng.uniform(counter++)});
        }
      }
    }
  }
  return out;
}

TEST(SamplingGpu, SmallVocabularies) {
  K3_NEEDS_GPU();
  for (const bool bf16 : {false, true}) {
    for (const int64_t vocab : {1, 7, 40, 300, 4099}) {
      Rows rows{.vocab = vocab, .bf16 = bf16, .pad = vocab == 40 ? 8 : vocab == 300 ? 1 : 0};
      for (const SampleRow& p : every_filter()) rows.add(random_normal(vocab, rows.params.size() + 1, 2.0F), p);
      check(rows, "small");
    }
  }
}
// For the sanitizer, which needs seconds a row: a part of the filters each.
class SanitizeSampling : public testing::TestWithParam<std::tuple<bool, int64_t>> {};

TEST_P(SanitizeSampling, SmallVocabularies) {
  K3_NEEDS_GPU();
  const auto [bf16, vocab] = GetParam();
  Rows rows{.vocab = vocab, .bf16 = bf16, .pad = vocab == 40 ? 8 : vocab == 300 ? 1 : 0};
  const std::vector<SampleRow> filters = every_filter();
  const size_t step = 10, first = (bf16 ? 5 : 0) + (vocab == 1 ? 0 : vocab == 7 ? 1 : vocab == 40 ? 2 : vocab == 300 ? 3 : 4);
  for (size_t i = first; i < filters.size(); i += step) rows.add(random_normal(vocab, i + 1, 2.0F), filters[i]);
  check(rows, "small");
}
INSTANTIATE_TEST_SUITE_P(All, SanitizeSampling, testing::Combine(testing::Bool(), testing::Values(1, 7, 40, 300, 4099)));
// For racecheck, to which a cluster of 16 blocks is slow: a row each.
class SanitizeRow : public testing::TestWithParam<SampleRow> {};

TEST_P(SanitizeRow, OfSmallVocabulary) {
  K3_NEEDS_GPU();
  Rows rows{.vocab = 300, .pad = 1};
  rows.add(random_normal(rows.vocab, 3, 2.0F), GetParam());
  check(rows, "one");
}
INSTANTIATE_TEST_SUITE_P(All, SanitizeRow,
                         testing::Values(SampleRow{.temperature = 0}, SampleRow{.uniform = 0.5}, SampleRow{.top_k = 20, .uniform = 0.25},
                                         SampleRow{.top_p = 0.7F, .uniform = 0.75},
                                         SampleRow{.temperature = 0.5F, .top_p = 0.9F, .min_p = 0.1F, .top_k = 50, .uniform = 0.5}));

TEST(SamplingGpu, WholeVocabulary) {
  K3_NEEDS_GPU();
  constexpr int64_t kVocab = 163840;
  const std::vector<SampleRow> filters = every_filter();
  for (const bool bf16 : {false, true}) {
    uint64_t seed = 1;
    for (const float spread : {0.01F, 1.0F, 4.0F}) {
      Rows rows{.vocab = kVocab, .bf16 = bf16};
      for (int i = 0; i < 8; ++i)
        rows.add(random_normal(kVocab, seed, spread), filters[(seed * 11) % filters.size()]), ++seed;
      check(rows, "whole");
    }
  }
}

TEST(SamplingGpu, TiesAndHeavyTails) {
  K3_NEEDS_GPU();
  for (const int64_t vocab : {1000, 40000, 163840}) {
    Rows rows{.vocab = vocab};
    const auto n = static_cast<size_t>(vocab);
    std::vector<float> equal(n, 1.5F), two(n, -3.0F), one(n, -1e30F), few = random_normal(vocab, 3), steps(n);
    for (size_t i = 0; i < n; i += 3) two[i] = 2;
    one[n / 2] = 0;
    for (size_t i = 0; i < n; ++i) few[i] = std::round(few[i] * 2) / 2, steps[i] = i % 2 == 0 ? -0.0F : 0.0F;
    uint64_t counter = 0;
    for (const auto* x : {&equal, &two, &one, &few, &steps}) {
      for (const SampleRow& p : {SampleRow{1, 0.5F, 0, 0}, SampleRow{1, 0.9F, 0, 77}, SampleRow{1, 1, 0, 501},
                                 SampleRow{0.7F, 0.3F, 0.5F, 900}, SampleRow{1, 1, 0, 0}, SampleRow{0, 1, 0, 0}}) {
        SampleRow q = p;
        q.uniform = Rng(1, 2).uniform(counter++);
        if (vocab == 163840 && counter % 3 != 0) continue;
        rows.add(*x, q);
      }
    }
    rows.add(equal, {1, 0.5F, 0, 0, 0.0});
    rows.add(equal, {1, 0.5F, 0, 0, 1 - 0x1p-53});
    check(rows, "ties");
  }
}

TEST(SamplingGpu, MasksLimitEveryFilter) {
  K3_NEEDS_GPU();
  constexpr int64_t kVocab = 5000;
  Rows rows{.vocab = kVocab};
  for (const SampleRow& p : every_filter()) rows.add(random_normal(kVocab, rows.params.size() + 1), p);
  const Rng rng(9, 9);
  for (int64_t i = 0; i < rows.count() * rows.words(); ++i)
    rows.mask.push_back(rng.bits(static_cast<uint64_t>(i)) & rng.bits(static_cast<uint64_t>(i) + 1000000));
  std::fill_n(rows.mask.begin(), rows.words(), 0U);  // row 0: nothing may come
  check(rows, "mask");
  EXPECT_EQ(choose(rows).flags[0], kSampleNoToken);
}

TEST(SamplingGpu, BrokenRowsHaveFlagsAndNoToken) {
  K3_NEEDS_GPU();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const bool greedy : {false, true}) {
    for (const int64_t vocab : {3, 100, 33000}) {
      Rows rows{.vocab = vocab};
      std::vector<uint32_t> want;
      for (const int64_t at : {int64_t{0}, vocab / 2, vocab - 1}) {
        for (const float bad : {NAN, -NAN, kInf, -kInf}) {
          std::vector<float> x = random_normal(vocab, 1);
          x[static_cast<size_t>(at)] = bad;
          rows.add(x, {greedy ? 0.0F : 1.0F, 0.9F, 0, 0, 0.5});
          want.push_back(bad == -kInf ? kSampleNotFinite : kSampleNotFinite | kSampleBroken);
        }
      }
      rows.add(std::vector<float>(static_cast<size_t>(vocab), -kInf), {1, 1, 0, 0, 0.5});
      want.push_back(kSampleNotFinite | kSampleNoToken);
      rows.add(random_normal(vocab, 1), {greedy ? 0.0F : 1.0F, 1, 0, 0, 0.5});
      want.push_back(0);
      const Chosen got = choose(rows, greedy);
      EXPECT_EQ(got.flags, want) << vocab << " " << greedy;
      for (size_t r = 0; r < want.size(); ++r) {
        SampleRow p = rows.params[r];
        if (greedy) p.temperature = 0;
        EXPECT_EQ(got.ids[r], sample_rule(rows.row(static_cast<int64_t>(r)), p)) << r;
      }
    }
  }
}

void check_greedy(std::initializer_list<int64_t> vocabs, std::initializer_list<int64_t> counts) {
  for (const bool bf16 : {false, true}) {
    for (const int64_t vocab : vocabs) {
      for (const int64_t count : counts) {
        if (vocab * count > 1'000'000) continue;
        Rows rows{.vocab = vocab, .bf16 = bf16, .pad = count == 3 ? 3 : 0};
        for (int64_t r = 0; r < count; ++r) {
          std::vector<float> x = random_normal(vocab, static_cast<uint64_t>(r + 1));
          for (float& v : x) v = std::round(v * 8) / 8;
          rows.add(x, {.temperature = 0});
        }
        const Chosen kernel = choose(rows, true), general = choose(rows);
        for (int64_t r = 0; r < count; ++r) {
          EXPECT_EQ(kernel.ids[static_cast<size_t>(r)], argmax(rows.row(r))) << vocab << " " << count << " " << r;
          EXPECT_EQ(general.ids[static_cast<size_t>(r)], argmax(rows.row(r)));
          EXPECT_EQ(kernel.flags[static_cast<size_t>(r)], 0U);
        }
      }
    }
  }
}

TEST(SamplingGpu, GreedyTakesTheLowestIdOnTies) {
  K3_NEEDS_GPU();
  check_greedy({1, 8, 1000, 163840}, {1, 3, 40});
}

TEST(SamplingGpu, SanitizeGreedy) {
  K3_NEEDS_GPU();
  check_greedy({1, 9, 3000}, {1, 3});
}

TEST(SamplingGpu, LogProbsAndTheMostProbable) {
  K3_NEEDS_GPU();
  for (const bool bf16 : {false, true}) {
    for (const int64_t vocab : {5, 1000, 163840}) {
      for (const int top : {1, 7, 20}) {
        Rows rows{.vocab = vocab, .bf16 = bf16, .top = top, .logprobs = true};
        rows.add(random_normal(vocab, 1, 3.0F), {0.8F, 0.9F, 0, 0, 0.3});
        rows.add(random_normal(vocab, 2, 0.01F), {0, 1, 0, 0, 0});
        rows.add(std::vector<float>(static_cast<size_t>(vocab), 0.25F), {1, 1, 0, 3, 0.9});
        const Chosen got = choose(rows);
        for (int64_t r = 0; r < rows.count(); ++r) {
          const LogProbs want(rows.row(r));
          const auto i = static_cast<size_t>(r);
          EXPECT_EQ(got.ids[i], sample_rule(rows.row(r), rows.params[i]));
          ASSERT_GE(got.ids[i], 0);
          EXPECT_NEAR(got.logprobs[i], want.of(got.ids[i]), 1e-5);
          const auto best = want.top(top);
          for (size_t j = 0; j < static_cast<size_t>(top); ++j) {
            const size_t at = i * static_cast<size_t>(top) + j;
            EXPECT_EQ(got.top_ids[at], j < best.size() ? best[j].first : -1) << vocab << " row " << r << " place " << j;
            if (j < best.size()) {
              EXPECT_NEAR(got.top_logprobs[at], best[j].second, 1e-5);
            }
          }
        }
      }
    }
  }
}

// The rule is that of Sampler but for the last bits of the weights and of their sums.
TEST(SamplingGpu, AgreesWithSampler) {
  K3_NEEDS_GPU();
  Rows rows{.vocab = 20000};
  std::vector<int32_t> want;
  uint64_t seed = 1;
  for (SampleRow p : every_filter()) {
    const std::vector<float> x = random_normal(rows.vocab, seed, 2.0F);
    Sampler sampler({.temperature = p.temperature, .top_p = p.top_p, .top_k = p.top_k, .min_p = p.min_p, .seed = seed},
                    rows.vocab);
    want.push_back(sampler.sample(x, {}, {}).value());
    p.uniform = Rng(seed, 0).uniform(0);
    rows.add(x, p);
    ++seed;
  }
  EXPECT_EQ(choose(rows).ids, want);
}

}  // namespace
}  // namespace k3::ops::cuda
