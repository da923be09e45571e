// Packing of tokens for tiles.h, and its emulation of the tile unit.
#include "k3/ops/cpu/tile_unit_emulated.h"
//
#include "k3/ops/gemm/tiles_impl.h"

namespace k3::ops {

void tiles_emulated(const TilesJob& job) noexcept { run_tiles(job); }
void dense_tiles_emulated(const DenseTilesJob& job) noexcept { run_dense_tiles(job); }
void packed_emulated(const PackedJob& job) noexcept { run_packed(job); }

void pack_tiles_avx512bf16(const uint16_t* const* rows, int64_t begin, int64_t end, int64_t cols, uint16_t* packed) noexcept {
  alignas(64) float square[256];
  for (int64_t token = begin; token < end; token += 16) {
    const int64_t count = std::min<int64_t>(16, end - token);
    for (int64_t k = 0; k < cols; k += 32) {
      for (int64_t t = 0; t < 16; ++t) {
        const __m512i row = t < count ? _mm512_loadu_si512(rows[token + t] + k) : _mm512_setzero_si512();
        _mm512_store_si512(square + 16 * t, row);
      }
      __m512 pairs[16];
      transpose16(square, 64, pairs);
      uint16_t* out = packed + token * cols + k * 16;
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_ps(out + 32 * i, pairs[i]);
    }
  }
}

}  // namespace k3::ops
