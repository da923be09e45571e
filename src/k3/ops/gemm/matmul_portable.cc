#include "k3/ops/cpu/vec_portable.h"
#include "k3/ops/gemm/matmul_kernel_impl.h"

namespace k3::ops {

void matmul_tile_portable(const MatmulTile& t) noexcept { matmul_tile<VecPortable, 4>(t); }

}  // namespace k3::ops
