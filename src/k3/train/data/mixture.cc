#include "k3/train/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace k3::train {
namespace {

// How far share x period may be from a whole number and still count as one: rounding errors of the division of weights.
constexpr double kWhole = 1e-9;

std::vector<int64_t> whole_counts(const std::vector<double>& shares, int64_t period) {
  std::vector<int64_t> counts;
  for (const double share : shares) {
    const double draws = share * static_cast<double>(period);
    if (std::abs(draws - std::round(draws)) > kWhole * static_cast<double>(period)) return {};
    if (share > 0 && std::round(draws) == 0) return {};
    counts.push_back(std::llround(draws));
  }
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) == period ? counts : std::vector<int64_t>();
}

// Largest remainders; who has a share gets at least one draw, at the cost of the largest.
std::vector<int64_t> rounded_counts(const std::vector<double>& shares, int64_t period) {
  std::vector<int64_t> counts(shares.size());
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto remainder = [&](size_t i) { return shares[i] * static_cast<double>(period) - static_cast<double>(counts[i]); };
  for (const size_t i : order) counts[i] = static_cast<int64_t>(std::floor(shares[i] * static_cast<double>(period)));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
  int64_t left = period - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++counts[order[i]];
  for (size_t i = 0; i < counts.size(); ++i) {
    if (shares[i] == 0 || counts[i] > 0) continue;
    ++counts[i];
    --*std::max_element(counts.begin(), counts.end());
  }
  return counts;
}

}  // namespace

Result<Mixture> Mixture::create(std::span<const double> shares) {
  double sum = 0;
  for (const double share : shares) {
    if (!(share >= 0) || !std::isfinite(share)) return fail(Code::invalid_argument, "mixture: a share of {}", share);
    sum += share;
  }
  if (!(sum > 0) || !std::isfinite(sum)) return fail(Code::invalid_argument, "mixture: no source has a share");
  if (shares.size() > static_cast<size_t>(kMostPeriod) / 4) {
    return fail(Code::invalid_argument, "mixture: {} sources; at most {}", shares.size(), kMostPeriod / 4);
  }
  std::vector<double> parts(shares.begin(), shares.end());
  for (double& part : parts) part /= sum;
  std::vector<int64_t> counts;
  int64_t period = 1;
  while (counts.empty() && period <= kMostPeriod) counts = whole_counts(parts, period++);
  --period;
  if (counts.empty()) counts = rounded_counts(parts, period = kMostPeriod);

  // The j-th draw of a source with c draws lies in the slots from floor(j P / c) to ceil((j + 1) P / c) - 1; taking the earliest
  // deadline among those whose turn has begun meets them all (a P-fair schedule of one machine).
  Mixture mixture;
  mixture.places_.resize(parts.size());
  for (int64_t slot = 0; slot < period; ++slot) {
    int best = -1;
    int64_t best_deadline = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto taken = static_cast<int64_t>(mixture.places_[i].size());
      if (taken == counts[i] || taken * period / counts[i] > slot) continue;
      const int64_t deadline = ((taken + 1) * period + counts[i] - 1) / counts[i];
      if (best >= 0 && deadline >= best_deadline) continue;
      best = static_cast<int>(i);
      best_deadline = deadline;
    }
    K3_CHECK(best >= 0, "no source for slot {} of {}", slot, period);
    auto& places = mixture.places_[static_cast<size_t>(best)];
    mixture.order_.push_back(best);
    mixture.index_.push_back(static_cast<int32_t>(places.size()));
    places.push_back(static_cast<int32_t>(slot));
  }
  return mixture;
}

Mixture::Draw Mixture::draw(int64_t n) const {
  const auto slot = static_cast<size_t>(n % period());
  const int source = order_[slot];
  const auto each = static_cast<int64_t>(places_[static_cast<size_t>(source)].size());
  return {source, n / period() * each + index_[slot]};
}

int64_t Mixture::drawn(int source, int64_t n) const {
  const std::vector<int32_t>& places = places_[static_cast<size_t>(source)];
  const auto before = std::lower_bound(places.begin(), places.end(), static_cast<int32_t>(n % period())) - places.begin();
  return n / period() * static_cast<int64_t>(places.size()) + before;
}

}  // namespace k3::train
