// packed.h with the BF16 dot instruction: R rows by NV vectors of 16 columns, accumulators in registers.
#include <immintrin.h>

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/gemm/packed.h"

namespace k3::ops {
namespace {

using F = __m512;

// 24 accumulators, 4 vectors of b and a broadcast pair: nearly all registers, and a load for every 2.4 dots.
constexpr int kTileRows = 6;

K3_VEC_INLINE __m512bh pair_of(const uint16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, 4);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

template <int R, int NV>
void tile(const PackedJob& job, int64_t row, int64_t column) {
  const uint16_t* a = job.a + row * job.a_stride;
  float* c = job.c + row * job.c_stride + column;
  const uint16_t* b[(NV + 1) / 2];
  K3_UNROLL
  for (int s = 0; s < (NV + 1) / 2; ++s) b[s] = job.b + (column / kPackedStrip + s) * job.b_strip;
  F acc[R][NV];
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int v = 0; v < NV; ++v) acc[r][v] = job.add ? _mm512_loadu_ps(c + r * job.c_stride + 16 * v) : _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < job.depth; k += 32) {
    for (int64_t p = 0; p < 16; ++p) {
      __m512bh y[NV];
      K3_UNROLL
      for (int v = 0; v < NV; ++v) {
        y[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b[v / 2] + k * kPackedStrip + v % 2 * 512 + p * 32));
      }
      K3_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512bh x = pair_of(a + r * job.a_stride + k + 2 * p);
        K3_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x, y[v]);
      }
    }
  }
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int v = 0; v < NV; ++v) _mm512_storeu_ps(c + r * job.c_stride + 16 * v, acc[r][v]);
  }
}

template <int NV, int R = kTileRows>
void tile_any(const PackedJob& job, int64_t row, int64_t column) {
  if constexpr (R > 1) {
    if (job.rows - row < R) return tile_any<NV, R - 1>(job, row, column);
  }
  tile<R, NV>(job, row, column);
}

}  // namespace

void packed_avx512bf16(const PackedJob& job) noexcept {
  for (int64_t column = 0; column < job.columns;) {
    const bool wide = job.columns - column >= 2 * kPackedStrip;
    for (int64_t row = 0; row < job.rows; row += kTileRows) {
      wide ? tile_any<4>(job, row, column) : tile_any<2>(job, row, column);
    }
    column += wide ? 2 * kPackedStrip : kPackedStrip;
  }
}

}  // namespace k3::ops
