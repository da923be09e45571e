// Internal to ops/optim. Arithmetic that every backend of quantile_accumulate shares to the bit, and the cutoffs by instruction set.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

inline constexpr int64_t kMostCutoffVectors = 33;  // topk + 1 of the vector path

struct CutoffJob {
  const float* scores;
  int64_t stride, experts, topk;
  const float* bias;
  int64_t begin, end;  // tokens
  float* cutoffs;      // [tokens]
};
using CutoffFn = void (*)(const CutoffJob&);
void cutoffs_portable(const CutoffJob& job) noexcept;  // topk < kMostCutoffVectors, as the others
void cutoffs_avx2(const CutoffJob& job) noexcept;
void cutoffs_avx512(const CutoffJob& job) noexcept;

// The (topk + 1)-th largest biased score of V::kWidth tokens at once, a lane each: every expert sinks through a sorted list.
template <class V>
K3_VEC_INLINE void cutoffs_lanes(const CutoffJob& job) {
  using F = typename V::F;
  constexpr int64_t kLanes = V::kWidth;
  const auto held = static_cast<int>(job.topk + 1);
  for (int64_t t = job.begin; t < job.end; t += kLanes) {
    const int64_t lanes = job.end - t < kLanes ? job.end - t : kLanes;
    F best[kMostCutoffVectors];
    for (int i = 0; i < held; ++i) best[i] = V::set(-__builtin_inff());
    for (int64_t e0 = 0; e0 < job.experts; e0 += kLanes) {
      const int64_t count = job.experts - e0 < kLanes ? job.experts - e0 : kLanes;
      alignas(64) float tile[kLanes * kLanes], turned[kLanes * kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {  // the last token again where there are no more
        const float* row = job.scores + (t + (i < lanes ? i : lanes - 1)) * job.stride + e0;
        const F s = V::max(count == kLanes ? V::load(row) : V::load(row, count), V::zero());  // NaN: 0
        V::store(tile + i * kLanes, V::add(s, count == kLanes ? V::load(job.bias + e0) : V::load(job.bias + e0, count)));
      }
      V::transpose(tile, kLanes, turned, kLanes);
      for (int64_t e = 0; e < count; ++e) {
        F x = V::load(turned + e * kLanes);
        for (int i = 0; i < held; ++i) {
          const F larger = V::max(best[i], x);
          x = V::min(best[i], x);
          best[i] = larger;
        }
      }
    }
    V::store(job.cutoffs + t, best[held - 1], lanes);
  }
}

// Range of the histogram: lo and the width of a bin.
template <class T>
struct QuantileRange {
  T lo, width, inverse;
};
template <class T>
inline QuantileRange<T> quantile_range(const T* bias, int64_t experts, int64_t bins) {
  T least = bias[0], most = bias[0];
  for (int64_t e = 1; e < experts; ++e) {
    least = bias[e] < least ? bias[e] : least;
    most = bias[e] > most ? bias[e] : most;
  }
  const T width = (most - least + T{2}) / static_cast<T>(bins);
  return {least - T{1}, width, T{1} / width};
}

template <class T>
inline int64_t quantile_bin(T cutoff, T score, const QuantileRange<T>& range, int64_t bins) {
  const T s = score > T{0} ? score : T{0};  // NaN: 0
  const T at = ((cutoff - s) - range.lo) * range.inverse;
  const T last = static_cast<T>(bins - 1);
  const T low = at > T{0} ? at : T{0};
  return static_cast<int64_t>(low < last ? low : last);
}

// The bias of one expert from its histogram; tokens > 0.
template <class T>
inline double quantile_of(const int32_t* histogram, int64_t bins, double wanted, const QuantileRange<T>& range) {
  double before = 0;
  int64_t l = 0;
  while (l < bins - 1 && before + static_cast<double>(histogram[l]) < __builtin_ceil(wanted)) before += static_cast<double>(histogram[l++]);
  const auto here = static_cast<double>(histogram[l]);
  double part = here > 0 ? (wanted - before) / here : 0;
  part = part < 0 ? 0 : part > 1 ? 1 : part;
  return static_cast<double>(range.lo) + (static_cast<double>(l) + part) * static_cast<double>(range.width);
}

}  // namespace k3::ops
