#include "k3/plan/cost/routing.h"

#include <algorithm>
#include <cmath>

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

// Sum of min(1, scale i^-exponent).
double inclusion_sum(int64_t experts, double scale, double exponent) {
  double sum = 0;
  for (int64_t i = 1; i <= experts; ++i) sum += std::min(1.0, scale * std::pow(real(i), -exponent));
  return sum;
}

}  // namespace

double distinct_experts(int64_t experts, int64_t topk, double tokens) {
  if (experts <= 0 || topk <= 0) return 0;
  return real(experts) * (1 - std::pow(1 - real(topk) / real(experts), tokens));
}

double distinct_experts_zipf(int64_t experts, int64_t topk, double tokens, double exponent) {
  if (experts <= 0 || topk <= 0) return 0;
  double low = 0, high = 1;
  const double wanted =
      real(std::min(topk, experts)) * (1 - 1e-15);  // a sum that rounds below topk must not double for ever
  while (inclusion_sum(experts, high, exponent) < wanted && high < 1e300) high *= 2;
  for (int step = 0; step < 200; ++step) {
    const double middle = low + (high - low) / 2;
    (inclusion_sum(experts, middle, exponent) < real(topk) ? low : high) = middle;
  }
  double distinct = 0;
  for (int64_t i = 1; i <= experts; ++i) {
    distinct += 1 - std::pow(1 - std::min(1.0, high * std::pow(real(i), -exponent)), tokens);
  }
  return distinct;
}

double busiest_rank_experts(int64_t experts, double distinct, int64_t ranks) {
  if (experts <= 0) return 0;
  if (ranks <= 1) return distinct;
  const double mean = distinct / real(ranks);
  const double spread = std::sqrt(std::max(0.0, mean * (1 - distinct / real(experts))));
  return std::min(real(experts) / real(ranks), mean + spread * std::sqrt(2 * std::log(real(ranks))));
}

double distinct_ranks(int64_t experts, int64_t topk, int64_t ranks) {
  if (experts <= 0 || topk <= 0) return 0;
  double none = 1;  // probability that a given rank holds none
  for (int64_t i = 0; i < topk; ++i) {
    none *= std::max(0.0, real(experts) - real(experts) / real(ranks) - real(i)) / real(experts - i);
  }
  return real(ranks) * (1 - none);
}

}  // namespace k3::plan
