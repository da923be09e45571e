// Shapes of moe for test and bench: tokens, experts, topk, width R, hidden F.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/moe/moe.h"

namespace k3::ops {

struct MoeCase {
  int64_t tokens, experts, topk, width, hidden;
};

// Multiples of 32 run in every scheme, the others in the unpacked ones.
inline const std::vector<MoeCase> kMoeCases = {
    {0, 4, 2, 32, 32},  {1, 1, 1, 32, 32},   {1, 8, 2, 64, 96},   {2, 3, 3, 5, 7},
    {3, 9, 4, 33, 70},  {7, 16, 4, 160, 96}, {40, 5, 2, 64, 160}, {5, 3, 2, 1056, 1088},
    {65, 6, 3, 96, 64}, {1, 4, 3, 3584, 96}, {2, 3, 2, 96, 3072},
};

struct OwnedExperts {
  std::vector<OwnedWeight> storage;
  std::vector<ExpertWeights> views;
};

inline OwnedExperts random_experts(Scheme scheme, int64_t experts, int64_t width, int64_t hidden, uint64_t seed) {
  OwnedExperts out;
  for (int64_t e = 0; e < experts; ++e) {
    const auto s = seed + static_cast<uint64_t>(e) * 3;
    out.storage.push_back(random_weight(scheme, hidden, width, s));
    out.storage.push_back(random_weight(scheme, width, hidden, s + 1));
    out.storage.push_back(random_weight(scheme, hidden, width, s + 2));
  }
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    out.views.push_back({out.storage[e * 3].view(), out.storage[e * 3 + 1].view(), out.storage[e * 3 + 2].view()});
  }
  return out;
}

// topk distinct experts a token, skewed to the low ones; weights positive with sum 1.
struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

inline Routing random_routing(int64_t tokens, int64_t experts, int64_t topk, uint64_t seed) {
  const Rng rng(seed, 3);
  Routing r;
  uint64_t draw = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> mine;
    while (static_cast<int64_t>(mine.size()) < topk) {
      const double u = rng.uniform(draw++);
      const auto e = static_cast<int32_t>(u * u * static_cast<double>(experts));
      bool fresh = true;
      for (const int32_t m : mine) fresh = fresh && m != e;
      if (fresh) mine.push_back(e);
    }
    float sum = 0;
    const size_t start = r.weights.size();
    for (int64_t j = 0; j < topk; ++j) {
      r.weights.push_back(0.1F + static_cast<float>(rng.uniform(draw++)));
      sum += r.weights.back();
    }
    for (size_t i = start; i < r.weights.size(); ++i) r.weights[i] /= sum;
    r.ids.insert(r.ids.end(), mine.begin(), mine.end());
  }
  return r;
}

}  // namespace k3::ops
