#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/optim/grad_norm/sum_squares.h"

namespace k3::ops {

double sum_squares_avx2(const float* x, int64_t count) noexcept { return sum_squares_lanes<Lanes256>(x, count); }

}  // namespace k3::ops
