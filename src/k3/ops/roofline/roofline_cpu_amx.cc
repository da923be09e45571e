#include <immintrin.h>

#include <cstring>

#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {
namespace {

// The operand of LDTILECFG: palette 1, eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

float spin_bf16_tile(int64_t rounds) {
  const TileConfig config;
  alignas(64) uint16_t ones[16 * 32];
  for (uint16_t& one : ones) one = 0x3F80;
  alignas(64) float out[16 * 16];
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  float sum = 0;
  _tile_stored(0, out, 64);
  sum += out[0];
  _tile_stored(1, out, 64);
  sum += out[0];
  _tile_stored(2, out, 64);
  sum += out[0];
  _tile_stored(3, out, 64);
  sum += out[0];
  _tile_release();
  return sum;
}

}  // namespace k3::ops
