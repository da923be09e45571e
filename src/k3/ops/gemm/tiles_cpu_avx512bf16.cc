// Packing of tokens for tiles.h, and its emulation of the tile unit.
#include <immintrin.h>

#include "k3/ops/gemm/tiles.h"

namespace k3::ops {
namespace {

struct EmulatedTiles {
  alignas(64) uint8_t tile[8][1024];

  void load(int i, const void* p, int64_t stride) {
    for (int r = 0; r < 16; ++r) __builtin_memcpy(tile[i] + 64 * r, static_cast<const uint8_t*>(p) + r * stride, 64);
  }
  void store(int i, void* p, int64_t stride) const {
    for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<uint8_t*>(p) + r * stride, tile[i] + 64 * r, 64);
  }
  // Row m of a meets all pairs of b: result lane n takes the pair k of column n, k in order.
  void dot(int c, int a, int b) {
    for (int m = 0; m < 16; ++m) {
      __m512 acc = _mm512_load_ps(tile[c] + 64 * m);
      for (int k = 0; k < 16; ++k) {
        int pair;
        __builtin_memcpy(&pair, tile[a] + 64 * m + 4 * k, 4);
        acc = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                               reinterpret_cast<__m512bh>(_mm512_load_si512(tile[b] + 64 * k)));
      }
      _mm512_store_ps(tile[c] + 64 * m, acc);
    }
  }
};

thread_local EmulatedTiles unit;

}  // namespace
}  // namespace k3::ops

#define K3_TILE_BEGIN()
#define K3_TILE_END()
#define K3_TILE_ZERO(i) __builtin_memset(unit.tile[i], 0, 1024)
#define K3_TILE_LOAD(i, p, stride) unit.load(i, p, stride)
#define K3_TILE_DOT(c, a, b) unit.dot(c, a, b)
#define K3_TILE_STORE(i, p, stride) unit.store(i, p, stride)

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
