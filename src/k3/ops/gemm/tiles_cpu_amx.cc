// tiles.h on the tile unit.
#include <immintrin.h>

#include "k3/ops/gemm/tiles.h"

namespace k3::ops {
namespace {

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

}  // namespace
}  // namespace k3::ops

#define K3_TILE_BEGIN() _tile_loadconfig(&kConfig)
#define K3_TILE_END() _tile_release()
#define K3_TILE_ZERO(i) _tile_zero(i)
#define K3_TILE_LOAD(i, p, stride) _tile_loadd(i, p, stride)
#define K3_TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#define K3_TILE_STORE(i, p, stride) _tile_stored(i, p, stride)

#include "k3/ops/gemm/tiles_impl.h"

namespace k3::ops {

void tiles_amx(const TilesJob& job) noexcept { run_tiles(job); }
void dense_tiles_amx(const DenseTilesJob& job) noexcept { run_dense_tiles(job); }
void packed_amx(const PackedJob& job) noexcept { run_packed(job); }

}  // namespace k3::ops
