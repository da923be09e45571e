#include "k3/ops/optim/adamw/adamw_kernel_impl.h"
#include "k3/ops/optim/optim_lanes.h"

namespace k3::ops {

void adamw_portable(const AdamwPiece& piece) noexcept { adamw_piece<OptimLanesPortable>(piece); }

}  // namespace k3::ops
