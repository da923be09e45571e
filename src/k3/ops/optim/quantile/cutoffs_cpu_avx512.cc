#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/optim/quantile/quantile_kernel.h"

namespace k3::ops {

void cutoffs_avx512(const CutoffJob& job) noexcept { cutoffs_lanes<Lanes512>(job); }

}  // namespace k3::ops
