// Purpose:  loops of tiles.h over a tile unit given by macros: K3_TILE_ZERO(i), K3_TILE_LOAD(i, p, stride),
//           K3_TILE_DOT(c, a, b), K3_TILE_STORE(i, p, stride), K3_TILE_BEGIN(), K3_TILE_END(). Tile numbers must be
//           literals: the intrinsics make text of them.
// Shapes:   tiles are 16 rows of 64 bytes.
// Units:    strides in bytes.
// Memory:   tiles.h.
// Threads:  pure functions.
// Errors:   none.
// Source:   tiles.h. Tiles 0-3 hold results, 4-5 weights, 6-7 tokens: a step of 32 columns loads four tiles for four
//           products. Only for tiles_cpu_amx.cc and tiles_cpu_avx512bf16.cc.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "k3/ops/gemm/mx_words_avx512.h"
#include "k3/ops/gemm/tiles.h"

namespace k3::ops {
namespace {

// 16 x 16 floats to their transpose, in registers.
K3_VEC_INLINE void transpose16(const float* from, __m512* out) {
  __m512 r[16], t[16];
  K3_UNROLL
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(from + 16 * i);
  K3_UNROLL
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  K3_UNROLL
  for (int i = 0; i < 4; ++i) {
    K3_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(t[4 * i + j]), y = _mm512_castps_pd(t[4 * i + j + 2]);
      r[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      r[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
  K3_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512 low01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44), high01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xEE);
    const __m512 low23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
    const __m512 high23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xEE);
    out[j] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    out[4 + j] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
    out[8 + j] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    out[12 + j] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
}

// A result tile (rows: outputs, columns: tokens) into y, transposed; later blocks of columns add.
inline void store_result(const TilesJob& job, const float* tile, int64_t token, int64_t row, bool first) {
  const int64_t tokens = std::min<int64_t>(16, job.tokens - token), rows = std::min<int64_t>(16, job.row_end - row);
  if (tokens <= 0 || rows <= 0) return;
  __m512 by_token[16];
  transpose16(tile, by_token);
  const auto m = static_cast<__mmask16>(rows == 16 ? 0xFFFF : (1U << rows) - 1U);
  K3_UNROLL
  for (int t = 0; t < 16; ++t) {
    if (t >= tokens) break;
    float* y = job.y[token + t] + (row - job.y_origin);
    _mm512_mask_storeu_ps(y, m, first ? by_token[t] : _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), by_token[t]));
  }
}

// Weights of a strip as a BF16 matrix: in place, or in the panel when they are packed or rows are missing.
struct Strip {
  const uint16_t* data;
  int64_t stride;  // elements
};

inline Strip make_strip(const TilesJob& job, int64_t row, int64_t k0, int64_t columns) {
  const int64_t rows = std::min(kTilesRows, job.row_end - row);
  if (job.w.scheme == Scheme::bf16 && rows == kTilesRows) {
    return {static_cast<const uint16_t*>(job.w.data) + row * job.w.cols + k0, job.w.cols};
  }
  for (int64_t r = 0; r < kTilesRows; ++r) {
    uint16_t* out = job.panel + r * kTilesPanelStride;
    if (r >= rows) {
      std::memset(out, 0, static_cast<size_t>(columns) * 2);
    } else if (job.w.scheme == Scheme::mxfp4) {
      mx_decode(job.w, row + r, k0, columns, out);
    } else {
      std::memcpy(out, static_cast<const uint16_t*>(job.w.data) + (row + r) * job.w.cols + k0, static_cast<size_t>(columns) * 2);
    }
  }
  return {job.panel, kTilesPanelStride};
}

// 32 rows by 32 tokens (or 16 when kWide is false) over one block of columns.
template <bool kWide>
inline void tile_block(const Strip& w, const uint16_t* x0, const uint16_t* x1, int64_t columns, float* results) {
  const int64_t row_bytes = w.stride * 2;
  const uint16_t* w1 = w.data + 16 * w.stride;
  K3_TILE_ZERO(0);
  K3_TILE_ZERO(2);
  if constexpr (kWide) {
    K3_TILE_ZERO(1);
    K3_TILE_ZERO(3);
  }
  for (int64_t k = 0; k < columns; k += 32) {
    K3_TILE_LOAD(4, w.data + k, row_bytes);
    K3_TILE_LOAD(6, x0 + k * 16, 64);
    K3_TILE_DOT(0, 4, 6);
    if constexpr (kWide) {
      K3_TILE_LOAD(7, x1 + k * 16, 64);
      K3_TILE_DOT(1, 4, 7);
    }
    K3_TILE_LOAD(5, w1 + k, row_bytes);
    K3_TILE_DOT(2, 5, 6);
    if constexpr (kWide) K3_TILE_DOT(3, 5, 7);
  }
  K3_TILE_STORE(0, results, 64);
  K3_TILE_STORE(2, results + 512, 64);
  if constexpr (kWide) {
    K3_TILE_STORE(1, results + 256, 64);
    K3_TILE_STORE(3, results + 768, 64);
  }
}

inline void run_tiles(const TilesJob& job) {
  if (job.tokens == 0 || job.row_begin >= job.row_end) return;
  auto* results = reinterpret_cast<float*>(job.panel + kTilesRows * kTilesPanelStride);
  K3_TILE_BEGIN();
  for (int64_t k0 = 0; k0 < job.w.cols; k0 += kTilesBlock) {
    const int64_t columns = std::min(kTilesBlock, job.w.cols - k0);
    for (int64_t row = job.row_begin; row < job.row_end; row += kTilesRows) {
      const Strip strip = make_strip(job, row, k0, columns);
      for (int64_t token = 0; token < job.tokens; token += 32) {
        const uint16_t* x0 = job.x + token * job.w.cols + k0 * 16;
        const bool wide = token + 16 < job.tokens;
        if (wide) {
          tile_block<true>(strip, x0, x0 + 16 * job.w.cols, columns, results);
        } else {
          tile_block<false>(strip, x0, nullptr, columns, results);
        }
        for (int part = 0; part < 4; ++part) {
          if (part % 2 == 1 && !wide) continue;
          store_result(job, results + 256 * part, token + part % 2 * 16, row + part / 2 * 16, k0 == 0);
        }
      }
    }
  }
  K3_TILE_END();
}

}  // namespace
}  // namespace k3::ops
