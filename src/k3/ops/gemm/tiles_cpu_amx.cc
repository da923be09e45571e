// tiles.h on the tile unit.
#include "k3/ops/cpu/tile_unit_amx.h"
//
#include "k3/ops/gemm/tiles_impl.h"

namespace k3::ops {

void tiles_amx(const TilesJob& job) noexcept { run_tiles(job); }
void dense_tiles_amx(const DenseTilesJob& job) noexcept { run_dense_tiles(job); }
void packed_amx(const PackedJob& job) noexcept { run_packed(job); }

}  // namespace k3::ops
