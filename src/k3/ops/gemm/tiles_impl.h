// Purpose:  loops of tiles.h over the macros of tile_unit_amx.h or tile_unit_emulated.h, included before this.
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

#include "k3/ops/cpu/shuffle_avx512.h"
#include "k3/ops/gemm/i8_words_avx512.h"
#include "k3/ops/gemm/mx_words_avx512.h"
#include "k3/ops/gemm/packed.h"
#include "k3/ops/gemm/tiles.h"

namespace k3::ops {
namespace {

// A result tile (rows: outputs, columns: tokens) into y, transposed; later blocks of columns add.
inline void store_result(const TilesJob& job, const float* tile, int64_t token, int64_t row, bool first) {
  const int64_t tokens = std::min<int64_t>(16, job.tokens - token), rows = std::min<int64_t>(16, job.row_end - row);
  if (tokens <= 0 || rows <= 0) return;
  __m512 by_token[16];
  transpose16(tile, 64, by_token);
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
    } else if (job.w.scheme == Scheme::i8) {
      i8_decode(job.w, row + r, k0, columns, out);
    } else {
      std::memcpy(out, static_cast<const uint16_t*>(job.w.data) + (row + r) * job.w.cols + k0, static_cast<size_t>(columns) * 2);
    }
  }
  return {job.panel, kTilesPanelStride};
}

// 32 rows by 32 tokens (or 16 when kWide is false) over one block of columns. With kStream the weights pass once: the same
// columns of the next strip are asked for meanwhile.
template <bool kWide, bool kStream>
inline void tile_block(const Strip& w, const uint16_t* x0, const uint16_t* x1, int64_t columns, float* results) {
  const int64_t row_bytes = w.stride * 2;
  const uint16_t* w1 = w.data + 16 * w.stride;
  K3_TILE_FENCE();  // the panel
  K3_TILE_ZERO(0);
  K3_TILE_ZERO(2);
  if constexpr (kWide) {
    K3_TILE_ZERO(1);
    K3_TILE_ZERO(3);
  }
  for (int64_t k = 0; k < columns; k += 32) {
    if constexpr (kStream) {
      const char* next = reinterpret_cast<const char*>(w.data + kTilesRows * w.stride + k);
      for (int64_t r = 0; r < kTilesRows; ++r) _mm_prefetch(next + r * row_bytes, _MM_HINT_T1);
    }
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
          tile_block<true, false>(strip, x0, x0 + 16 * job.w.cols, columns, results);
        } else if (token == 0 && strip.data != job.panel) {
          tile_block<false, true>(strip, x0, nullptr, columns, results);
        } else {
          tile_block<false, false>(strip, x0, nullptr, columns, results);
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

// ---- tokens as rows, weights packed ----

// 32 weight rows over a block of columns: [column block of 32][half][pair][row][2]. Missing rows are zeros.
inline void pack_strip(const DenseTilesJob& job, int64_t row, int64_t k0, int64_t columns) {
  const auto* w = static_cast<const uint16_t*>(job.w.data) + row * job.w.cols + k0;
  const int64_t rows = job.row_end - row, stride = job.w.cols * 2;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t count = std::clamp<int64_t>(rows - 16 * half, 0, 16);
    for (int64_t k = 0; k < columns; k += 32) {
      alignas(64) uint16_t square[16 * 32];
      const void* from = w + 16 * half * job.w.cols + k;
      int64_t from_stride = stride;
      if (count < 16) {
        std::memset(square, 0, sizeof(square));
        for (int64_t r = 0; r < count; ++r) std::memcpy(square + 32 * r, w + (16 * half + r) * job.w.cols + k, 64);
        from = square;
        from_stride = 64;
      }
      __m512 pairs[16];
      transpose16(from, from_stride, pairs);
      uint16_t* out = job.panel + (k / 32 * 2 + half) * 512;
      K3_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_store_ps(out + 32 * i, pairs[i]);
    }
  }
}

// A result tile from or to y through a buffer, where rows or tokens are missing.
inline void copy_result(const DenseTilesJob& job, float* tile, int64_t token, int64_t row, bool to_y) {
  const int64_t tokens = std::min<int64_t>(16, job.tokens - token), rows = std::clamp<int64_t>(job.row_end - row, 0, 16);
  for (int64_t t = 0; t < tokens; ++t) {
    float* y = job.y + (token + t) * job.y_stride + row;
    const size_t bytes = static_cast<size_t>(rows) * 4;
    to_y ? std::memcpy(y, tile + 16 * t, bytes) : std::memcpy(tile + 16 * t, y, bytes);
  }
}

// 32 tokens (or 16) by 32 rows over one block of columns, added to c[0..3] (tokens 0-15: 0 and 1), c_stride bytes apart.
template <bool kWide>
inline void dense_block(const uint16_t* x, int64_t x_stride, const uint16_t* panel, int64_t columns, float* const* c,
                        int64_t c_stride, bool first) {
  K3_TILE_FENCE();  // panel and results
  if (first) {
    K3_TILE_ZERO(0);
    K3_TILE_ZERO(1);
    if constexpr (kWide) {
      K3_TILE_ZERO(2);
      K3_TILE_ZERO(3);
    }
  } else {
    K3_TILE_LOAD(0, c[0], c_stride);
    K3_TILE_LOAD(1, c[1], c_stride);
    if constexpr (kWide) {
      K3_TILE_LOAD(2, c[2], c_stride);
      K3_TILE_LOAD(3, c[3], c_stride);
    }
  }
  const uint16_t* x1 = x + 16 * x_stride;
  for (int64_t k = 0; k < columns; k += 32) {
    K3_TILE_LOAD(6, panel + k * 32, 64);
    K3_TILE_LOAD(4, x + k, x_stride * 2);
    K3_TILE_DOT(0, 4, 6);
    K3_TILE_LOAD(7, panel + k * 32 + 512, 64);
    K3_TILE_DOT(1, 4, 7);
    if constexpr (kWide) {
      K3_TILE_LOAD(5, x1 + k, x_stride * 2);
      K3_TILE_DOT(2, 5, 6);
      K3_TILE_DOT(3, 5, 7);
    }
  }
  K3_TILE_STORE(0, c[0], c_stride);
  K3_TILE_STORE(1, c[1], c_stride);
  if constexpr (kWide) {
    K3_TILE_STORE(2, c[2], c_stride);
    K3_TILE_STORE(3, c[3], c_stride);
  }
}

inline void run_dense_tiles(const DenseTilesJob& job) {
  static_assert(kDenseTilesBlock * 32 + 4 * 512 <= kTilesPanelElements);
  if (job.tokens == 0 || job.row_begin >= job.row_end) return;
  auto* results = reinterpret_cast<float*>(job.panel + kDenseTilesBlock * 32);
  K3_TILE_BEGIN();
  for (int64_t k0 = 0; k0 < job.w.cols; k0 += kDenseTilesBlock) {
    const int64_t columns = std::min(kDenseTilesBlock, job.w.cols - k0);
    for (int64_t row = job.row_begin; row < job.row_end; row += kTilesRows) {
      pack_strip(job, row, k0, columns);
      for (int64_t token = 0; token < job.tokens; token += 32) {
        const uint16_t* x = job.x + token * job.x_stride + k0;
        const bool wide = token + 16 < job.tokens;
        if (token + 32 <= job.tokens && row + kTilesRows <= job.row_end) {
          float* y = job.y + token * job.y_stride + row;
          float* const c[4] = {y, y + 16, y + 16 * job.y_stride, y + 16 * job.y_stride + 16};
          dense_block<true>(x, job.x_stride, job.panel, columns, c, job.y_stride * 4, k0 == 0);
          continue;
        }
        float* const c[4] = {results, results + 256, results + 512, results + 768};
        const auto exchange = [&](bool to_y) {
          for (int64_t part = 0; part < (wide ? 4 : 2); ++part) {
            copy_result(job, c[part], token + part / 2 * 16, row + part % 2 * 16, to_y);
          }
        };
        if (k0 > 0) exchange(false);
        if (wide) {
          dense_block<true>(x, job.x_stride, job.panel, columns, c, 64, k0 == 0);
        } else {
          dense_block<false>(x, job.x_stride, job.panel, columns, c, 64, k0 == 0);
        }
        exchange(true);
      }
    }
  }
  K3_TILE_END();
}

// ---- packed.h ----

// Strips stay in the first-level cache while all rows pass. Rows beyond the last are computed and stored like the others.
inline void run_packed(const PackedJob& job) {
  if (job.rows <= 0 || job.columns <= 0) return;
  K3_TILE_BEGIN();
  for (int64_t column = 0; column < job.columns; column += kPackedStrip) {
    const uint16_t* b = job.b + column / kPackedStrip * job.b_strip;
    for (int64_t row = 0; row < job.rows; row += 32) {
      float* c = job.c + row * job.c_stride + column;
      float* const results[4] = {c, c + 16, c + 16 * job.c_stride, c + 16 * job.c_stride + 16};
      const uint16_t* a = job.a + row * job.a_stride;
      if (row + kPackedRows < job.rows) {
        dense_block<true>(a, job.a_stride, b, job.depth, results, job.c_stride * 4, !job.add);
      } else {
        dense_block<false>(a, job.a_stride, b, job.depth, results, job.c_stride * 4, !job.add);
      }
    }
  }
  K3_TILE_END();
}

}  // namespace
}  // namespace k3::ops
