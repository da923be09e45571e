#include "k3/ops/sampling/cuda/sampling_cuda.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "k3/base/check.h"

namespace k3::ops::cuda {
namespace {

constexpr int kMostTop = 20;
constexpr int64_t kCandidateBytes = 2560 * 8, kListBytes = kCandidateBytes + 8192;  // candidates and histograms

}  // namespace

int argmax_cluster(int64_t rows, int64_t vocab, const DeviceInfo& device) {
  int cluster = 8;
  while (cluster > 1 && (rows * cluster > 2 * device.sm_count || vocab < 4096 * cluster)) cluster /= 2;
  return cluster;
}

CudaStatus sampling_cuda(const Sampling& s, Stream stream) {
  K3_CHECK(s.rows >= 0 && s.vocab > 0 && s.vocab <= kMostSampleVocab, "sampling: {} rows of {}", s.rows, s.vocab);
  K3_CHECK(s.top >= 0 && s.top <= kMostTop && (s.top == 0 || (s.top_ids != nullptr && s.top_logprobs != nullptr)),
           "sampling: top {}", s.top);
  if (s.rows == 0) return {};
  K3_CHECK(s.logits != nullptr && s.ids != nullptr && (s.mask == nullptr || s.mask_stride * 32 >= s.vocab),
           "sampling: no data, or a short mask");
  const auto round_up = [](int64_t x, int64_t to) { return (x + to - 1) / to * to; };
  if (s.params == nullptr && s.mask == nullptr && s.logprobs == nullptr && s.top == 0) {
    const int cluster = argmax_cluster(s.rows, s.vocab, device_info());
    return {argmax_launch(s, cluster, round_up((s.vocab + cluster - 1) / cluster, 8), stream)};
  }
  // Two blocks of 16 a multiprocessor would share it: worth it while there are few rows.
  const int most = sampling_most_cluster(), cluster = s.rows * most <= device_info().sm_count ? most : 8;
  const int64_t slice = round_up((s.vocab + cluster - 1) / cluster, 32);
  int64_t shared = slice * 4 + kListBytes + (cluster == 16 ? kCandidateBytes : 0);  // there every block has all candidates
  if (shared > 40 << 10)
    shared = std::max<int64_t>(shared, (48 << 10) + 128);  // with the static part it is beyond 48 KiB: ask for more
  return {sampling_launch(s, cluster, slice, static_cast<int>(shared), stream)};
}

int32_t sample_rule(std::span<const float> logits, const SampleRow& row, std::span<const uint32_t> mask) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<float> scores(logits.begin(), logits.end());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i]) || scores[i] == std::numeric_limits<float>::infinity()) return -1;
    if (!mask.empty() && (mask[i / 32] >> (i % 32) & 1) == 0) scores[i] = kNone;
  }
  const auto best = std::max_element(scores.begin(), scores.end());
  if (*best == kNone) return -1;
  if (row.temperature == 0) return static_cast<int32_t>(best - scores.begin());
  std::vector<float> weights(scores.size());
  const float inverse = sample_inverse(row.temperature);
  for (size_t i = 0; i < scores.size(); ++i) weights[i] = sample_weight(scores[i], *best, inverse);
  const auto keep = [&](const std::vector<float>& by,
                        auto enough) {  // drops the weights of all beyond the prefix that is enough
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return by[static_cast<size_t>(a)] > by[static_cast<size_t>(b)]; });
    size_t kept = 0;
    while (kept < order.size() && !enough(static_cast<size_t>(order[kept++]))) {
    }
    for (; kept < order.size(); ++kept) weights[static_cast<size_t>(order[kept])] = 0;
  };
  const auto total = [&] {
    uint64_t sum = 0;
    for (const float w : weights) sum += sample_mass(w);
    return sum;
  };
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < scores.size()) {
    int32_t count = 0;
    keep(scores, [&](size_t) { return ++count == row.top_k; });
  }
  if (row.top_p < 1) {
    const uint64_t target = sample_target(row.top_p, total());
    uint64_t sum = 0;
    const std::vector<float> by = weights;
    keep(by, [&](size_t i) { return (sum += sample_mass(weights[i])) >= target; });
  }
  for (float& w : weights) w = w >= row.min_p ? w : 0;
  const uint64_t point = sample_point(row.uniform, total());
  uint64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += sample_mass(weights[i]);
    if (sum > point) return static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace k3::ops::cuda
