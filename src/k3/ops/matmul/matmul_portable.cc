#include "k3/ops/cpu/lanes.h"
#include "k3/ops/matmul/matmul_kernel_impl.h"

namespace k3::ops {

void matmul_tile_portable(const MatmulTile& t) noexcept { matmul_tile<LanesPortable, 4>(t); }

void matmul_pack_portable(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept {
  matmul_pack<LanesPortable>(from, lane, step, count, depth, to);
}

}  // namespace k3::ops
