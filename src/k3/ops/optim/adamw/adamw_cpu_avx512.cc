#include "k3/ops/optim/adamw/adamw_kernel_impl.h"
#include "k3/ops/optim/optim_lanes_avx512.h"

namespace k3::ops {

void adamw_avx512(const AdamwPiece& piece) noexcept { adamw_piece<OptimLanes512>(piece); }

}  // namespace k3::ops
