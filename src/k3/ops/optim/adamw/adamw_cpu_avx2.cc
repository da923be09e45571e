#include "k3/ops/optim/adamw/adamw_kernel_impl.h"
#include "k3/ops/optim/optim_lanes_avx2.h"

namespace k3::ops {

void adamw_avx2(const AdamwPiece& piece) noexcept { adamw_piece<OptimLanes256>(piece); }

}  // namespace k3::ops
