#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/matmul/matmul_kernel_impl.h"

namespace k3::ops {

void matmul_tile_avx2(const MatmulTile& t) noexcept { matmul_tile<Lanes256, 6>(t); }

void matmul_pack_avx2(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept {
  matmul_pack<Lanes256>(from, lane, step, count, depth, to);
}

}  // namespace k3::ops
