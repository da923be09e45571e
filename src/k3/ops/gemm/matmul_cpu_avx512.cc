#include "k3/ops/cpu/vec_math_avx512.h"
#include "k3/ops/gemm/matmul_kernel_impl.h"

namespace k3::ops {

void matmul_tile_avx512(const MatmulTile& t) noexcept { matmul_tile<Vec512, 14>(t); }

}  // namespace k3::ops
