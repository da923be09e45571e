#include "k3/ops/cpu/vec_math_avx2.h"
#include "k3/ops/gemm/matmul_kernel_impl.h"

namespace k3::ops {

void matmul_tile_avx2(const MatmulTile& t) noexcept { matmul_tile<Vec256, 6>(t); }

}  // namespace k3::ops
