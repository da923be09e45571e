// Sampler: greedy, filters against a brute-force distribution, penalties, biases, seeds, faults.
#include "k3/ops/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

using Ids = std::vector<int32_t>;

Result<int32_t> once(const SamplingParams& p, const std::vector<float>& logits, const Ids& prompt = {},
                     const Ids& generated = {}) {
  Sampler sampler(p, static_cast<int64_t>(logits.size()));
  return sampler.sample(logits, prompt, generated);
}

// The definition, with sorts: probabilities of every id (0 when filtered out).
std::vector<double> brute_force(std::vector<double> scores, const SamplingParams& p) {
  const auto n = scores.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < n) order.resize(static_cast<size_t>(p.top_k));
  std::vector<double> mass(n);
  double total = 0;
  for (const size_t i : order) {
    mass[i] = std::exp((scores[i] - scores[order[0]]) / static_cast<double>(p.temperature));
    total += mass[i];
  }
  std::vector<double> kept(n);
  double sum = 0;
  for (const size_t i : order) {
    if (sum >= static_cast<double>(p.top_p) * total) break;
    kept[i] = mass[i];
    sum += mass[i];
  }
  double left = 0;
  for (double& k : kept) {
    if (k < static_cast<double>(p.min_p)) k = 0;
    left += k;
  }
  for (double& k : kept) k /= left;
  return kept;
}

// Pearson's statistic of draws at counters 0..n-1 against the distribution, in units of its deviation; ids of probability 0
// must not appear.
double chi_square(const SamplingParams& p, const std::vector<float>& logits, const std::vector<double>& want, int draws) {
  Sampler sampler(p, static_cast<int64_t>(logits.size()));
  std::vector<int> seen(logits.size());
  Ids generated;
  for (int i = 0; i < draws; ++i) {
    const int32_t id = sampler.sample(logits, {}, generated).value();
    ++seen[static_cast<size_t>(id)];
    generated.push_back(0);
  }
  double statistic = 0, freedom = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0) {
      EXPECT_EQ(seen[i], 0) << "id " << i;
      continue;
    }
    const double expected = want[i] * draws;
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    freedom += 1;
  }
  return freedom < 1 ? 0 : (statistic - freedom) / std::sqrt(2 * freedom);
}

TEST(Argmax, LowestIndexOnTiesAndNan) {
  for (const size_t n : {1U, 2U, 3U, 4U, 5U, 67U, 4096U, 163840U}) {
    std::vector<float> x(n, -3.0F);
    EXPECT_EQ(argmax(x), 0);
    x[n / 2] = 1;
    x[n - 1] = 1;
    EXPECT_EQ(argmax(x), static_cast<int32_t>(n / 2));
    for (const size_t at : {size_t{0}, n / 3, n - 1}) {
      std::vector<float> bad = x;
      bad[at] = NAN;
      EXPECT_EQ(argmax(bad), -1) << n << " " << at;
    }
  }
  EXPECT_EQ(argmax(std::vector<float>{-INFINITY, -INFINITY}), 0);
  EXPECT_EQ(argmax({}), -1);
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  EXPECT_EQ(once({.temperature = 0}, {1, 5, 2, 5}).value(), 1);
  EXPECT_EQ(once({.temperature = 0, .repetition_penalty = 2}, {1, 5, 2, 5}, {1}).value(), 3);
}

TEST(Sampler, NanAndInfinityAreInternalErrors) {
  for (const float temperature : {0.0F, 1.0F}) {
    for (const float bad : {NAN, INFINITY}) {
      for (size_t at = 0; at < 6; ++at) {
        std::vector<float> logits(6, 0.0F);
        logits[at] = bad;
        const auto r = once({.temperature = temperature}, logits);
        ASSERT_FALSE(r.ok());
        EXPECT_EQ(r.error().code, Code::internal);
      }
    }
    EXPECT_EQ(once({.temperature = temperature}, {-INFINITY, -INFINITY}).error().code, Code::internal);
    EXPECT_EQ(once({.temperature = temperature}, {-INFINITY, -1e30F, -INFINITY}).value(), 1);
  }
}

TEST(Sampler, FiltersAgainstBruteForce) {
  std::vector<float> logits = random_normal(40, 4, 1.5F);
  logits[10] = logits[11] = logits[12];
  const std::vector<double> scores(logits.begin(), logits.end());
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    for (const int64_t top_k : {0, 1, 3, 10, 39, 40, 100}) {
      for (const float top_p : {1.0F, 0.9F, 0.5F, 0.01F}) {
        for (const float min_p : {0.0F, 0.1F, 1.0F}) {
          const SamplingParams p{.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p, .seed = 42};
          EXPECT_LT(chi_square(p, logits, brute_force(scores, p), 4000), 4.0)
              << "T " << temperature << " k " << top_k << " p " << top_p << " min " << min_p;
        }
      }
    }
  }
}

// Probabilities 1/2, 1/4, 1/8, 1/8: sums are exact, so the borders of the filters are exact too.
TEST(Sampler, ExactBordersOfTopPAndMinP) {
  const float two = std::log(2.0F);
  const std::vector<float> logits = {-3 * two, -two, -2 * two, -3 * two};
  const auto support = [&](SamplingParams p) {
    std::vector<bool> seen(4);
    for (uint64_t seed = 0; seed < 200; ++seed) {
      p.seed = seed;
      seen[static_cast<size_t>(once(p, logits).value())] = true;
    }
    return seen;
  };
  using S = std::vector<bool>;
  EXPECT_EQ(support({.top_p = 0.49F}), (S{false, true, false, false}));
  EXPECT_EQ(support({.top_p = 0.51F}), (S{false, true, true, false}));
  EXPECT_EQ(support({.top_p = 0.74F}), (S{false, true, true, false}));
  EXPECT_EQ(support({.top_p = 0.76F}), (S{true, true, true, false}));  // equal mass: the lower id first
  EXPECT_EQ(support({.top_p = 0.88F}), (S{true, true, true, true}));
  EXPECT_EQ(support({.top_k = 3}), (S{true, true, true, false}));
  EXPECT_EQ(support({.min_p = 0.49F}), (S{false, true, true, false}));
  EXPECT_EQ(support({.min_p = 0.51F}), (S{false, true, false, false}));
  EXPECT_EQ(support({.min_p = 1.0F}), (S{false, true, false, false}));
  EXPECT_EQ(support({.top_p = 0.6F, .top_k = 2}), (S{false, true, false, false}));  // 2/3 of what top_k left
}

TEST(Sampler, PenaltiesFollowTheirDefinition) {
  const std::vector<float> logits = {2, -1, 0.5F, 1, 3};
  const Ids prompt = {0, 1, 0, 99, -5}, generated = {4, 2, 4, 4};
  const SamplingParams p{.repetition_penalty = 1.5F,
                         .presence_penalty = 0.5F,
                         .frequency_penalty = 0.25F,
                         .seed = 3,
                         .logit_bias = {{3, -0.5F}}};
  const std::vector<double> scores = {2 / 1.5, -1 * 1.5, 0.5 / 1.5 - 0.5 - 0.25, 1 - 0.5, 3 / 1.5 - 0.5 - 0.75};
  const std::vector<double> want = brute_force(scores, p);
  std::vector<int> seen(5);
  constexpr int kDraws = 20000;
  SamplingParams q = p;
  for (int i = 0; i < kDraws; ++i) {
    q.seed = static_cast<uint64_t>(i);
    ++seen[static_cast<size_t>(once(q, logits, prompt, generated).value())];
  }
  double statistic = 0;
  for (size_t i = 0; i < 5; ++i) {
    const double expected = want[i] * kDraws;
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  EXPECT_LT(statistic, 23.5);  // chi square with 4 degrees of freedom: 1e-4 of the mass lies above
}

TEST(Sampler, PenaltiesLeaveNoTraceInTheNextCall) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 10}, 4);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3, 4}, {}, Ids{3, 3}).value(), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3, 4}, {}, {}).value(), 3);
}

TEST(Sampler, BiasAtTheLimitsForbidsAndForces) {
  const std::vector<float> logits = {500, 0, -500, -500};
  for (const float temperature : {0.0F, 1.0F}) {
    EXPECT_EQ(once({.temperature = temperature, .logit_bias = {{0, -100.0F}}}, logits).value(), 1);
    EXPECT_EQ(once({.temperature = temperature, .logit_bias = {{2, 100.0F}}}, logits).value(), 2);
    EXPECT_EQ(once({.temperature = temperature, .logit_bias = {{1, 99.0F}}}, logits).value(), 0);
  }
  std::vector<bool> seen(4);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    seen[static_cast<size_t>(once({.seed = seed, .logit_bias = {{2, 100.0F}, {3, 100.0F}}}, logits).value())] = true;
  }
  EXPECT_EQ(seen, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(once({.logit_bias = {{0, -100.0F}, {1, -100.0F}}}, {1, 2}).error().code, Code::internal);
}

TEST(Sampler, MaskedIdsNeverCome) {
  std::vector<float> logits(70);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const std::vector<uint32_t> mask = {0x80000001, 0, 0x20};  // ids 0, 31 and 69
  for (const float temperature : {0.0F, 1.0F}) {
    std::set<int32_t> seen;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      SamplingParams p{.temperature = temperature, .seed = seed};
      Sampler sampler(p, 70);
      seen.insert(sampler.sample(logits, {}, {}, mask).value());
    }
    EXPECT_EQ(seen, temperature == 0 ? std::set<int32_t>{69} : std::set<int32_t>({0, 31, 69}));
  }
  Sampler sampler(SamplingParams{.logit_bias = {{0, -100.0F}}}, 70);
  EXPECT_EQ(sampler.sample(logits, {}, {}, std::vector<uint32_t>{1, 0, 0}).error().code, Code::internal);
}

TEST(AllFinite, FindsWhatIsNotWhereverItStands) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(all_finite({}));
  for (const size_t size : {1u, 15u, 16u, 17u, 70u}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    values[0] = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(all_finite(values));
    for (size_t at = 0; at < size; ++at) {
      for (const float x : bad) {
        std::vector<float> spoiled = values;
        spoiled[at] = x;
        EXPECT_FALSE(all_finite(spoiled)) << at;
      }
    }
  }
}

TEST(LogProbs, AreTheLogSoftmax) {
  const std::vector<float> logits = {1, 3, -std::numeric_limits<float>::infinity(), 3, 0.5F};
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const LogProbs probs(logits);
  for (const int32_t i : {0, 1, 3, 4}) EXPECT_NEAR(probs.of(i), std::log(std::exp(logits[static_cast<size_t>(i)]) / sum), 1e-6);
  EXPECT_EQ(probs.of(2), -std::numeric_limits<float>::infinity());
  const auto top = probs.top(9);
  ASSERT_EQ(top.size(), 5u);
  EXPECT_EQ(top[0].first, 1);
  EXPECT_EQ(top[1].first, 3);
  EXPECT_EQ(top[2].first, 0);
  EXPECT_EQ(probs.top(2).size(), 2u);
}

TEST(Sampler, ChoiceDependsOnSeedStreamAndCounterOnly) {
  const std::vector<float> logits = random_normal(1000, 5), other = random_normal(1000, 6);
  const SamplingParams p{.top_p = 0.95F, .seed = 7};
  Sampler a(p, 1000), b(p, 1000), stream(p, 1000, 1);
  Ids generated, drawn, again, streamed;
  for (int i = 0; i < 50; ++i) {
    drawn.push_back(a.sample(logits, {}, generated).value());
    streamed.push_back(stream.sample(logits, {}, generated).value());
    generated.push_back(1);
  }
  for (size_t i = 50; i-- > 0;) {  // any order, other calls between
    (void)b.sample(other, {}, std::span(generated).first(i / 2)).value();
    again.insert(again.begin(), b.sample(logits, {}, std::span(generated).first(i)).value());
  }
  EXPECT_EQ(drawn, again);
  EXPECT_NE(drawn, streamed);
  EXPECT_GT(std::set<int32_t>(drawn.begin(), drawn.end()).size(), 10U);
}

TEST(Sampler, ExtremeTemperaturesAndLogits) {
  EXPECT_EQ(once({.temperature = 1e-30F}, {1, 1.0001F, 0}).value(), 1);
  EXPECT_EQ(once({.temperature = 1e-45F, .top_p = 0.9F}, {1, 2, 0}).value(), 1);
  std::vector<bool> seen(3);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    seen[static_cast<size_t>(once({.temperature = 1e9F, .top_p = 0.99F, .seed = seed}, {-1e4F, 0, 1e4F}).value())] = true;
  }
  EXPECT_EQ(seen, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(once({}, {-3e38F, 3e38F}).value(), 1);
}

// The real vocabulary: the selection without sorting finds the set that sorting finds.
TEST(Sampler, LargeVocabularyTopKAndTopP) {
  constexpr size_t kVocab = 163840;
  for (const float spread : {0.01F, 3.0F}) {
    std::vector<float> logits = random_normal(kVocab, 8, spread);
    for (float& x : logits) x = std::round(x * 64) / 64;  // many ties
    const std::vector<double> scores(logits.begin(), logits.end());
    for (SamplingParams p :
         {SamplingParams{.top_k = 50}, {.top_p = 0.95F}, {.top_p = 0.3F, .top_k = 5000}, {.top_k = 163839}}) {
      const std::vector<double> want = brute_force(scores, p);
      for (uint64_t seed = 0; seed < 30; ++seed) {
        p.seed = seed;
        const auto id = static_cast<size_t>(once(p, logits).value());
        EXPECT_GT(want[id], 0) << "k " << p.top_k << " p " << p.top_p;
        // Inverting the distribution in ascending id order gives the same id, up to rounding of the sums.
        const double u = Rng(seed, 0).uniform(0);
        double below = 0;
        for (size_t i = 0; i < id; ++i) below += want[i];
        EXPECT_LE(below, u + 1e-5);
        EXPECT_GE(below + want[id], u - 1e-5);
      }
    }
  }
}

TEST(SamplingParams, ValidateNamesTheParameter) {
  EXPECT_TRUE(SamplingParams{}.validate(10).ok());
  EXPECT_TRUE(
      (SamplingParams{.temperature = 0, .top_p = 0.5F, .top_k = 5, .min_p = 1, .logit_bias = {{9, -100.0F}, {0, 100.0F}}})
          .validate(10)
          .ok());
  const std::vector<std::pair<SamplingParams, std::string>> bad = {
      {{.temperature = -1}, "temperature is -1"},
      {{.temperature = NAN}, "temperature"},
      {{.temperature = INFINITY}, "temperature"},
      {{.top_p = 0}, "top_p is 0"},
      {{.top_p = 1.5F}, "top_p is 1.5"},
      {{.top_p = NAN}, "top_p"},
      {{.top_k = -1}, "top_k is -1"},
      {{.min_p = -0.5F}, "min_p"},
      {{.min_p = 2}, "min_p is 2"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.repetition_penalty = -1}, "repetition_penalty"},
      {{.presence_penalty = 2.5F}, "presence_penalty is 2.5"},
      {{.frequency_penalty = -3}, "frequency_penalty is -3"},
      {{.logit_bias = {{10, 1.0F}}}, "token id 10 is not in 0..9"},
      {{.logit_bias = {{-1, 1.0F}}}, "token id -1"},
      {{.logit_bias = {{1, 101.0F}}}, "bias 101 of token id 1"},
      {{.logit_bias = {{1, NAN}}}, "bias nan"},
  };
  for (const auto& [params, message] : bad) {
    const Status s = params.validate(10);
    ASSERT_FALSE(s.ok()) << message;
    EXPECT_EQ(s.error().code, Code::invalid_argument);
    EXPECT_NE(s.error().message.find(message), std::string::npos) << s.error().message;
  }
}

TEST(Sampler, ARowForADeviceHasNothingButTheFilters) {
  const auto row = [](const SamplingParams& p) { return Sampler(p, 50).plain_row(3); };
  const auto plain = row({.temperature = 0.7F, .top_p = 0.9F, .top_k = 1000, .min_p = 0.1F, .seed = 4});
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->temperature, 0.7F);
  EXPECT_EQ(plain->top_p, 0.9F);
  EXPECT_EQ(plain->min_p, 0.1F);
  EXPECT_EQ(plain->top_k, 50);
  EXPECT_EQ(plain->uniform, Rng(4, 0).uniform(3));
  EXPECT_FALSE(row({.repetition_penalty = 1.1F}));
  EXPECT_FALSE(row({.presence_penalty = 0.5F}));
  EXPECT_FALSE(row({.frequency_penalty = 0.5F}));
  EXPECT_FALSE(row({.logit_bias = {{1, 1.0F}}}));
}

TEST(Sampler, WhatADeviceChoseIsAnIdOrTheSameErrors) {
  EXPECT_EQ(chosen_id({7, 0}).value(), 7);
  EXPECT_EQ(chosen_id({7, cuda::kSampleNotFinite}).value(), 7);  // -infinity is a masked token
  const auto message = [](const cuda::ChosenRow& row) { return chosen_id(row).error().message; };
  EXPECT_NE(message({-1, cuda::kSampleBroken | cuda::kSampleNotFinite}).find("NaN"), std::string::npos);
  Sampler sampler({.temperature = 0}, 2);
  const std::vector<float> none(2, -INFINITY);
  EXPECT_EQ(message({-1, cuda::kSampleNoToken}), sampler.sample(none, {}, {}).error().message);
}

}  // namespace
}  // namespace k3::ops
