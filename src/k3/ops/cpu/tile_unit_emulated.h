// Purpose:  the macros of tile_unit_amx.h by BF16 dot products, slowly, so that machines without AMX can test what is
//           written on tiles.
// Shapes:   tile_unit_amx.h.
// Units:    strides in bytes.
// Memory:   the tiles are thread-local arrays.
// Threads:  one set of tiles a thread.
// Errors:   none.
// Source:   tile_unit_amx.h. Sums run over the pairs in order. Only for sources named _cpu_avx512bf16.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

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

thread_local EmulatedTiles emulated_tiles;

}  // namespace
}  // namespace k3::ops

#define K3_TILE_BEGIN()
#define K3_TILE_END()
#define K3_TILE_FENCE()
#define K3_TILE_ZERO(i) __builtin_memset(emulated_tiles.tile[i], 0, 1024)
#define K3_TILE_LOAD(i, p, stride) emulated_tiles.load(i, p, stride)
#define K3_TILE_DOT(c, a, b) emulated_tiles.dot(c, a, b)
#define K3_TILE_STORE(i, p, stride) emulated_tiles.store(i, p, stride)
