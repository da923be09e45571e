// Internal to ops/moe. What the grouped products of BF16 and of MXFP4 experts on Hopper share. Each is a persistent grid over
// (256 weight rows, a tile of rows of one expert). Weights are the M side of wgmma and come from registers, rows are the N
// side: a kernel for each width kN, because a choice of it in the loop costs as much as a product does. The rows of a tile
// may be fewer; products of what lies beyond them are not stored.
//
// One warp takes work and streams weights (bulk copies), one streams the rows (boxes of a tensor map); consumer warpgroups
// own 128 weight rows each: two products of 64 rows on one tile of rows.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/once.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/cuda/wgmma_wide.cuh"
#include "k3/ops/moe/cuda/moe_grouped_types.h"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"

namespace k3::ops::cuda {
namespace grouped {

constexpr int kJ = 2;                                          // products of 64 rows of a consumer warpgroup
constexpr int kSlots = 4;                                      // tiles announced ahead
constexpr int kOutRows = 32, kStageOutBytes = kOutRows * 128;  // a warpgroup's outputs on their way: 32 rows x 64 columns

// The place in a ring of four stages, and the parity of the barriers there.
struct Turn {
  uint32_t count = 0;
  __device__ __forceinline__ uint32_t stage() const { return count & 3; }
  __device__ __forceinline__ uint32_t parity() const { return count >> 2 & 1; }
  __device__ __forceinline__ void next() { ++count; }
};

struct Work {
  int m_tile, expert, row, rows;  // rows < 0: no more
};

// Tiles are announced by one lane to the other warps of its block: kSlots places of 16 bytes at `info`.
struct Slots {
  uint32_t info, full, empty;
  Turn turn = {};
  __device__ __forceinline__ void announce(const Work& work) {
    mbar_wait(empty + 8 * turn.stage(), turn.parity() ^ 1);
    shared_store_16(info + 16 * turn.stage(), {static_cast<uint32_t>(work.m_tile), static_cast<uint32_t>(work.expert),
                                               static_cast<uint32_t>(work.row), static_cast<uint32_t>(work.rows)});
    mbar_arrive(full + 8 * turn.stage());
  }
  // By a whole warp, as the others; every lane gets the work, which stays there until the slot is given back.
  __device__ __forceinline__ Work work() const {
    const uint4 v = shared_load_16(info + 16 * turn.stage());
    return {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z), static_cast<int>(v.w)};
  }
  __device__ __forceinline__ void wait() const { mbar_wait(full + 8 * turn.stage(), turn.parity()); }
  __device__ __forceinline__ void give_back() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbar_arrive(empty + 8 * turn.stage());
    turn.next();
  }
  __device__ __forceinline__ Work take() {
    wait();
    const Work taken = work();
    give_back();
    return taken;
  }
};

// One box of weights: a warp that issued a copy for each unit would be what all others wait for.
__device__ __forceinline__ void load_weights(uint32_t to, const MoeGroupedGemm& p, int line, int unit, int expert, uint32_t bar,
                                             bool once) {
  if (once) {
    tma_load_lines_once(to, &p.weights_map, line, unit, expert, bar);
  } else {
    tma_load_lines(to, &p.weights_map, line, unit, expert, bar);
  }
}

__device__ __forceinline__ const uint8_t* weights_of(const MoeGroupedGemm& p, int expert) {
  return p.places.slot == nullptr ? p.weights + expert * p.expert_bytes : expert_at(p.places, expert) + p.place_offset;
}

__device__ __forceinline__ float glu_value(const MoeGroupedGlu& glu, float g, float u) {
  constexpr float kLog2E = 1.44269504F;
  if (glu.kind == 0) return __fdividef(g * u, 1 + exp2_approx(-kLog2E * g));
  const float size = fabsf(g);
  const float e = exp2_approx(glu.gate_exp * size);                     // e^{-2|g|/b1}
  const float s = glu.kind == 2 ? e * e : exp2_approx(-kLog2E * size);  // e^{-|g|}
  const float top = (1 - e) * (g < 0 ? s : 1), bottom = (1 + e) * (1 + s);
  if (glu.up_exp == 0) return copysignf(glu.scale, g) * u * __fdividef(top, bottom);
  const float f = exp2_approx(glu.up_exp * fabsf(u));
  const float value = glu.scale * __fdividef(top * (1 - f), bottom * (1 + f));
  return __uint_as_float(__float_as_uint(value) ^ ((__float_as_uint(g) ^ __float_as_uint(u)) & 0x80000000U));
}

// ---- what becomes of a tile's sums ----

// Of a consumer warp; out: the warpgroup's staging area.
struct Place {
  int group, warp, lane;
  uint32_t out;
};

// 64 outputs of up to 32 rows from the staging area to out.
__device__ __forceinline__ void store_block(const MoeGroupedGemm& p, uint32_t out, const Work& work, int first_row,
                                            int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128, chunk = thread % 8;
  if (column + chunk * 8 >= p.out_columns) return;
#pragma unroll
  for (int i = 0; i < kOutRows; i += 16) {
    const int row = i + thread / 8;
    if (first_row + row >= work.rows) break;
    const uint4 v = shared_load_16(out + swizzle_128(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk) * 16));
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + (work.row + first_row + row) * p.out_stride + column +
                              chunk * 8) = v;
  }
}

constexpr int blocks_below(int rows, int most) { return (rows < most ? rows : most) / 8; }

// d[j]: sums of weight rows 64 j .. 64 j + 63 of the group, kGroups of which share a tile of weights. Gate and up: 64 columns
// of a group come out.
template <int kN, int kGroups>
__device__ __forceinline__ void finish_gate_up(const MoeGroupedGemm& p, const Place& me, const Work& work,
                                               const float (&d)[kJ][kN / 2]) {
  const int g = me.lane / 4, q = me.lane % 4, unit = (work.m_tile * kGroups + me.group) * 8 + me.warp;
  float f1 = 1, f3 = 1;
  if (p.factors != nullptr) f1 = p.factors[work.expert * 4], f3 = p.factors[work.expert * 4 + 2];
#pragma unroll
  for (int first = 0; first < kN; first += kOutRows) {
    if (first >= work.rows) break;
    named_barrier(1 + me.group, 128);
#pragma unroll
    for (int block = first / 8; block < blocks_below(first + kOutRows, kN); ++block) {
      if (block * 8 >= work.rows) break;
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        const bool real = (unit + 4 * j) * 8 + g < p.hidden;
        const float v0 = real ? glu_value(p.glu, d[j][4 * block] * f1, d[j][4 * block + 2] * f3) : 0;
        const float v1 = real ? glu_value(p.glu, d[j][4 * block + 1] * f1, d[j][4 * block + 3] * f3) : 0;
        // Lanes of even g keep the even row, of odd g the odd one; a word has the columns of both.
        const float other = __shfl_xor_sync(0xFFFFFFFFU, g % 2 == 0 ? v1 : v0, 4);
        const uint32_t word = g % 2 == 0 ? pack_bf16(v0, other) : pack_bf16(other, v1);
        const auto row = static_cast<uint32_t>(8 * block - first + 2 * q + g % 2);
        shared_store_4(
            me.out + swizzle_128(row, static_cast<uint32_t>(4 * j + g / 2) * 16) + static_cast<uint32_t>(me.warp) * 4, word);
      }
    }
    named_barrier(1 + me.group, 128);
    store_block(p, me.out, work, first, (work.m_tile * kGroups + me.group) * 64);
  }
}

template <int kN, int kGroups>
__device__ __forceinline__ void finish_down(const MoeGroupedGemm& p, const Place& me, const Work& work,
                                            const float (&d)[kJ][kN / 2]) {
  const float f = p.factors != nullptr ? p.factors[work.expert * 4 + 1] : 1;
  const int matrix = me.lane / 8;
#pragma unroll
  for (int first = 0; first < kN; first += kOutRows) {
    if (first >= work.rows) break;
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      named_barrier(1 + me.group, 128);
#pragma unroll
      for (int block = first / 8; block < blocks_below(first + kOutRows, kN); block += 2) {
        if (block * 8 >= work.rows) break;
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * block + 2 * i;
          r[i] = at < kN / 2 ? pack_bf16(d[j][at] * f, d[j][at + 1] * f) : 0;  // an odd number of blocks
        }
        const auto row = static_cast<uint32_t>(8 * (block + matrix / 2) - first + me.lane % 8);
        stmatrix_x4_trans(me.out + swizzle_128(row, static_cast<uint32_t>(2 * me.warp + matrix % 2) * 16), r);
      }
      named_barrier(1 + me.group, 128);
      store_block(p, me.out, work, first, (work.m_tile * kGroups + me.group) * 128 + j * 64);
    }
  }
}

}  // namespace grouped
}  // namespace k3::ops::cuda
