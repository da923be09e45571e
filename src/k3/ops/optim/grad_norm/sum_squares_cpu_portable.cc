#include "k3/ops/cpu/lanes.h"
#include "k3/ops/optim/grad_norm/sum_squares.h"

namespace k3::ops {

double sum_squares_portable(const float* x, int64_t count) noexcept { return sum_squares_lanes<LanesPortable>(x, count); }

}  // namespace k3::ops
