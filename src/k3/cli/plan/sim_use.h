// Options of `k3 sim` that say nothing beside others: refused by name, never ignored.
#pragma once

#include "k3/cli/plan/sim_options.h"

namespace k3::cli {

Status check_use(const SimOptions& options);

}  // namespace k3::cli
