// Quantile Balancing by the definition, in FP32 and in double.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "k3/ops/optim/quantile/quantile.h"
#include "k3/ops/optim/quantile/quantile_checks.h"
#include "k3/ops/optim/quantile/quantile_kernel.h"

namespace k3::ops {
namespace {

template <class T>
void accumulate_ref(const QuantileInput<T>& input, int32_t* histogram) {
  const QuantileInput<T> in = checked_input(input);
  const QuantileRange<T> range = quantile_range(in.bias, in.experts, kQuantileBins);
  for (int64_t t = 0; t < in.tokens; ++t) {
    if (in.valid != nullptr && in.valid[t] == 0) continue;
    const T* s = in.scores + t * in.stride;
    std::vector<T> biased;
    for (int64_t e = 0; e < in.experts; ++e) biased.push_back((s[e] > 0 ? s[e] : T{0}) + in.bias[e]);
    std::sort(biased.begin(), biased.end(), std::greater<>());
    const T cutoff = biased[static_cast<size_t>(in.topk)];
    for (int64_t e = 0; e < in.experts; ++e) ++histogram[e * kQuantileBins + quantile_bin(cutoff, s[e], range, kQuantileBins)];
  }
}

// bias += rate * (wanted - its mean - bias)
template <class T>
void move_bias(std::vector<double> wanted, double rate, T* bias) {
  double mean = 0;
  for (const double b : wanted) mean += b / static_cast<double>(wanted.size());
  for (size_t e = 0; e < wanted.size(); ++e) {
    const auto old = static_cast<double>(bias[e]);
    bias[e] = static_cast<T>(rate == 1 ? wanted[e] - mean : old + rate * (wanted[e] - mean - old));
  }
}

template <class T>
void update_ref(int64_t experts, int64_t topk, double rate, int32_t* histogram, T* bias) {
  check_update(experts, topk);
  int64_t tokens = 0;  // each is once in every row
  for (int64_t b = 0; b < kQuantileBins; ++b) tokens += histogram[b];
  if (tokens == 0) return;
  const QuantileRange<T> range = quantile_range(bias, experts, kQuantileBins);
  const double wanted = static_cast<double>(tokens) * static_cast<double>(topk) / static_cast<double>(experts);
  std::vector<double> found;
  for (int64_t e = 0; e < experts; ++e) found.push_back(quantile_of(histogram + e * kQuantileBins, kQuantileBins, wanted, range));
  move_bias(std::move(found), rate, bias);
  std::fill(histogram, histogram + experts * kQuantileBins, 0);
}

}  // namespace

void quantile_accumulate_ref(const QuantileInput<float>& in, int32_t* histogram) noexcept { accumulate_ref(in, histogram); }
void quantile_accumulate_ref(const QuantileInput<double>& in, int32_t* histogram) noexcept { accumulate_ref(in, histogram); }

void quantile_update_ref(int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept {
  update_ref(experts, topk, rate, histogram, bias);
}
void quantile_update_ref(int64_t experts, int64_t topk, double rate, int32_t* histogram, double* bias) noexcept {
  update_ref(experts, topk, rate, histogram, bias);
}

void quantile_bias_ref(const QuantileInput<double>& input, double rate, double* bias) noexcept {
  const QuantileInput<double> in = checked_input(input);
  std::vector<std::vector<double>> margins(static_cast<size_t>(in.experts));
  for (int64_t t = 0; t < in.tokens; ++t) {
    if (in.valid != nullptr && in.valid[t] == 0) continue;
    const double* s = in.scores + t * in.stride;
    std::vector<double> biased;
    for (int64_t e = 0; e < in.experts; ++e) biased.push_back(s[e] + in.bias[e]);
    std::sort(biased.begin(), biased.end(), std::greater<>());
    for (size_t e = 0; e < margins.size(); ++e) margins[e].push_back(s[e] - biased[static_cast<size_t>(in.topk)]);
  }
  const size_t tokens = margins[0].size();
  if (tokens == 0) return;
  const size_t q = tokens * static_cast<size_t>(in.topk) / static_cast<size_t>(in.experts);
  std::vector<double> found;
  for (std::vector<double>& m : margins) {
    std::sort(m.begin(), m.end(), std::greater<>());
    found.push_back(-m[q]);
  }
  move_bias(std::move(found), rate, bias);
}

void sign_balance_ref(const int32_t* load, int64_t experts, double rate, double* bias) noexcept {
  double mean = 0;
  for (int64_t e = 0; e < experts; ++e) mean += static_cast<double>(load[e]) / static_cast<double>(experts);
  for (int64_t e = 0; e < experts; ++e) {
    const double missing = mean - static_cast<double>(load[e]);
    bias[e] += rate * (std::abs(missing) < 1e-9 * mean ? 0.0 : missing > 0 ? 1.0 : -1.0);
  }
}

}  // namespace k3::ops
