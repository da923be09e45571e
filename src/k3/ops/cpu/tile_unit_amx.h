// Purpose:  the tile unit of AMX behind the macros that kernels on tiles are written with: K3_TILE_ZERO(i),
//           K3_TILE_LOAD(i, p, stride), K3_TILE_DOT(c, a, b), K3_TILE_STORE(i, p, stride), K3_TILE_BEGIN(), K3_TILE_END(),
//           K3_TILE_FENCE().
// Shapes:   eight tiles of 16 rows of 64 bytes: 16 x 16 FP32 or 16 x 32 BF16. DOT adds to c[m, n] the products of
//           a[m, 2 k + i] and b[k, 2 n + i], k < 16, i < 2.
// Units:    strides in bytes.
// Memory:   tile numbers must be literals: the intrinsics make text of them. What was stored before a FENCE is in memory
//           for the LOADs after it: the LOAD intrinsic of g++ 12 does not tell the compiler that it reads memory.
// Threads:  tiles belong to a thread, between BEGIN and END.
// Errors:   none.
// Source:   Intel SDM, TDPBF16PS: FP32 sums, numbers under 2^-126 count as zero. Only for sources named _cpu_amx.cc;
//           tile_unit_emulated.h gives the same macros elsewhere.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace k3::ops {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

}  // namespace
}  // namespace k3::ops

#define K3_TILE_BEGIN() _tile_loadconfig(&kTileConfig)
#define K3_TILE_END() _tile_release()
#define K3_TILE_FENCE() __asm__ volatile("" ::: "memory")
#define K3_TILE_ZERO(i) _tile_zero(i)
#define K3_TILE_LOAD(i, p, stride) _tile_loadd(i, p, stride)
#define K3_TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#define K3_TILE_STORE(i, p, stride) _tile_stored(i, p, stride)
