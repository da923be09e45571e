// `k3 bench --device cuda`: steps by the GPU's clock against floors from the experts really touched.
#pragma once

#include <vector>

#include "k3/cli/bench/bench_cases.h"
#include "k3/cli/common.h"

namespace k3::cli {

// Measures what the GPU can do, loads the model, runs the cases. `compute` and `needs` as for load_model.
Status gpu_bench(const BenchOptions& options, Device device, const ComputeOptions& compute, const RunNeeds& needs,
                 const std::vector<BenchCase>& cases);

}  // namespace k3::cli
