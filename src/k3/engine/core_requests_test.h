// What tests of the engine's core ask of the tiny model: prompts of its vocabulary, greedy requests, one result whatever the steps.
#pragma once

#include <utility>
#include <vector>

#include "k3/base/rng.h"
#include "k3/engine/core.h"

namespace k3::test {

inline std::vector<int32_t> ids(size_t count, uint64_t seed = 3) {
  const Rng rng(seed, 7);
  std::vector<int32_t> out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(rng.bits(i) % 96));
  return out;
}

inline Request request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

inline ComputeMode exact() {
  ComputeMode mode;
  mode.policy = ops::Policy::exact;
  mode.deterministic = true;
  return mode;
}

}  // namespace k3::test
