#include "k3/train/data/mixture.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace k3::train {
namespace {

TEST(MixtureTest, WholeProportionsAreExact) {
  const double shares[] = {4, 2, 1.5, 0.5};
  const Mixture mixture = *Mixture::create(shares);
  EXPECT_EQ(mixture.period(), 16);
  for (const int64_t start : {int64_t{0}, int64_t{5}, int64_t{123'456'789}}) {
    std::vector<int> drawn(4);
    for (int64_t n = start; n < start + 16; ++n) ++drawn[static_cast<size_t>(mixture.draw(n).source)];
    EXPECT_EQ(drawn, (std::vector<int>{8, 4, 3, 1}));
  }
}

TEST(MixtureTest, OneSourceAndNoShare) {
  const double one[] = {0.3};
  EXPECT_EQ(Mixture::create(one)->draw(99).index, 99);
  const double with_none[] = {0, 1, 0};
  const Mixture mixture = *Mixture::create(with_none);
  for (int64_t n = 0; n < 10; ++n) EXPECT_EQ(mixture.draw(n).source, 1);
  const double none[] = {0, 0}, negative[] = {1, -1}, nan[] = {std::nan("")};
  EXPECT_FALSE(Mixture::create(none).ok());
  EXPECT_FALSE(Mixture::create(negative).ok());
  EXPECT_FALSE(Mixture::create(nan).ok());
  EXPECT_FALSE(Mixture::create({}).ok());
}

TEST(MixtureTest, TheSmallestShareIsDrawn) {
  const double shares[] = {1, 1e-7};
  const Mixture mixture = *Mixture::create(shares);
  EXPECT_EQ(mixture.drawn(1, mixture.period()), 1);
}

RC_GTEST_PROP(MixtureTest, NeverFarFromTheShares, ()) {
  const auto raw = *rc::gen::container<std::vector<int>>(*rc::gen::inRange<size_t>(1, 9), rc::gen::inRange(0, 1000));
  const int sum = std::accumulate(raw.begin(), raw.end(), 0);
  RC_PRE(sum > 0);
  std::vector<double> shares(raw.begin(), raw.end());
  const Mixture mixture = *Mixture::create(shares);
  const int64_t period = mixture.period();
  std::vector<int64_t> drawn(raw.size());
  for (int64_t n = 0; n < period; ++n) {
    const Mixture::Draw draw = mixture.draw(n);
    const auto source = static_cast<size_t>(draw.source);
    RC_ASSERT(draw.index == drawn[source]);
    RC_ASSERT(mixture.drawn(draw.source, n) == drawn[source]);
    ++drawn[source];
    for (size_t i = 0; i < raw.size(); ++i) {
      const double each = static_cast<double>(mixture.drawn(static_cast<int>(i), period)) / static_cast<double>(period);
      RC_ASSERT(std::abs(static_cast<double>(drawn[i]) - each * static_cast<double>(n + 1)) < 1.0);
    }
  }
  for (size_t i = 0; i < raw.size(); ++i) {
    const double want = shares[i] / sum * static_cast<double>(period);
    RC_ASSERT(std::abs(static_cast<double>(drawn[i]) - want) < 1.0 + 1e-6);
    RC_ASSERT(mixture.draw(period * 7).index == 7 * drawn[static_cast<size_t>(mixture.draw(0).source)]);
  }
}

}  // namespace
}  // namespace k3::train
