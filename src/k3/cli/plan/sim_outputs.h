// The files that `k3 sim` is to write, looked at before it runs.
#pragma once

#include "k3/cli/plan/sim_options.h"

namespace k3::cli {

// invalid_argument naming the option: two outputs of one name, one that is an input, "-" where only a file will do, a
// folder where a file is to be; not_found or invalid_argument for a place that cannot be written to. Writes nothing.
Status check_outputs(const SimOptions& options);

}  // namespace k3::cli
