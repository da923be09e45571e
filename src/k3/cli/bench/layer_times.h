// Where a step's time goes on a GPU: one kind of layer at a time, all layers of the kind in one graph, against the floor of each.
#pragma once

#include <string>
#include <vector>

#include "k3/cli/bench/bench_cases.h"
#include "k3/cli/bench/bench_report.h"
#include "k3/model/model.h"

namespace k3::cli {

// Parts of the model that a step of `test` has, in its order: "KDA", "MLA", "MoE", "dense MLP", "AttnRes, norms" (or "residual,
// norms"), "head". A prompt is one step, of one sequence. `runner` has the test's history; its lengths do not move.
Result<std::vector<LayerFigure>> layer_times(Runner& runner, const ModelSummary& summary, const BenchCase& test,
                                             const GpuCeilings& ceilings, int64_t repeats);

}  // namespace k3::cli
