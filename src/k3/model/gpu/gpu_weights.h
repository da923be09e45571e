// Purpose:  weights of a text model in the memory of a GPU, and what a model must be like for its kernels.
// Shapes:   those of weights.h; experts in one bank a layer (ops/moe: ExpertBank) instead of single matrices.
// Units:    bytes.
// Memory:   the WeightSet owns device memory, and with a plan pinned host memory (ops/moe/expert_store.h); pinned buffers
//           of 64 MiB while loading (pinned_feeder.h).
// Threads:  reads use the pool; one thread calls.
// Errors:   unsupported: sizes no kernel exists for, matrices that are not BF16 (experts: MXFP4), named with the field;
//           exhausted: device memory, with the arithmetic; those of load_weights.
// Source:   model.md 2, 3; kernels.md.
#pragma once

#include <span>

#include "k3/model/gpu/gpu_plan.h"
#include "k3/model/weights.h"
#include "k3/tensor/device.h"

namespace k3 {

// What the kernels need of a config.
Status check_gpu_config(const Config& config);

// plan: what lies where; null: everything in the GPU's memory. uses: [layers, experts] of earlier runs, or empty: experts that get the
// slots of a plan at first.
Result<WeightSet> load_weights_on(Device device, const Checkpoint& checkpoint, const Config& config, const GpuPlan* plan, ThreadPool& pool,
                                  const LoadProgress& progress, std::span<const uint64_t> uses = {});

}  // namespace k3
