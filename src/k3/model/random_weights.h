// Purpose:  weights without a checkpoint, for benches: those that `k3 init` would write, straight into memory.
// Shapes:   those of weights.h.
// Units:    bytes.
// Memory:   the WeightSet owns them; one tensor in FP32 besides.
// Threads:  values are drawn by the pool; one thread calls.
// Errors:   unsupported: an 8-bit trunk; exhausted when they do not fit.
// Source:   init.h (the rules), wiring.h (what goes where). The same values as write_random_checkpoint and load_weights give.
#pragma once

#include <string>
#include <unordered_map>

#include "k3/model/params.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"

namespace k3 {

// The tensors of a config as a checkpoint that has no bytes, and what each is.
struct DeclaredWeights {
  Checkpoint checkpoint;
  std::unordered_map<std::string, ParamTensor> tensors;
};
Result<DeclaredWeights> declare_weights(const Config& config, bool with_experts);

// In host memory.
Result<WeightSet> random_weights(const Config& config, uint64_t seed, ThreadPool& pool, const LoadProgress& progress);

}  // namespace k3
