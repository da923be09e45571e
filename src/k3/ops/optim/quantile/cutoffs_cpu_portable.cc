#include "k3/ops/cpu/lanes.h"
#include "k3/ops/optim/quantile/quantile_kernel.h"

namespace k3::ops {

void cutoffs_portable(const CutoffJob& job) noexcept { cutoffs_lanes<LanesPortable>(job); }

}  // namespace k3::ops
