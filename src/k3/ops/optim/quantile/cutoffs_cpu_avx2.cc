#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/optim/quantile/quantile_kernel.h"

namespace k3::ops {

void cutoffs_avx2(const CutoffJob& job) noexcept { cutoffs_lanes<Lanes256>(job); }

}  // namespace k3::ops
