// Internal to ops/gemm. What the kernels of few tokens share: which tile a warp has, and the sum of its partial products.
//
// A block has eight warps; 2^k_warps_log2 of them share a tile along K, and so do the blocks of a cluster. Lane (g, q) =
// (lane / 4, lane % 4) has rows g and g + 8 of 16 in mma.m16n8k16.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/gemm/cuda/gemm_config.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

namespace k3::ops::cuda {

// Floats between tokens of partial sums: lanes (g, q) hit 32 banks.
constexpr int sum_pitch(int row_tiles) { return kGemmRowTile * row_tiles + 4; }

__device__ __forceinline__ int part_of(const Rows& p, int row) {
  int index = static_cast<int>(blockIdx.y);
#pragma unroll
  for (int i = 1; i < 6; ++i) index += i < p.part_count && row >= p.parts[i].row_begin;
  return index;
}

struct Tile {
  int begin, end;  // rows among those of all parts; empty beyond the last tile
};
__device__ __forceinline__ Tile tile_at(const Rows& p, int tile) {
  if (tile >= p.tiles) return {0, 0};
  const int begin = tile * p.base_height + (min(tile, p.higher) << p.grain_log2);
  return {begin, begin + p.base_height + (tile < p.higher ? 1 << p.grain_log2 : 0)};
}

struct Place {     // of a warp
  int first_tile;  // of the block
  int tile;        // of the warp
  int first_token;
  int split, splits;  // along K
};
__device__ __forceinline__ Place place_of(const Rows& p, int tokens_per_group) {
  const int warp = threadIdx.x / 32, k_warps = 1 << p.k_warps_log2;
  const int rank = blockIdx.x & ((1 << p.cluster_log2) - 1), block = blockIdx.x >> p.cluster_log2;
  const int row_block = p.token_groups == 1 ? block : block / p.token_groups;
  const int first = row_block * (kGemmWarps >> p.k_warps_log2);
  return {first, first + (warp >> p.k_warps_log2), (block - row_block * p.token_groups) * tokens_per_group,
          rank * k_warps + (warp & (k_warps - 1)), k_warps << p.cluster_log2};
}

__device__ __forceinline__ void store(const RowsPart& part, int64_t token, int row, float sum) {
  const int64_t at = token * part.y_stride + row;
  if (part.y_f32) {
    float* y = static_cast<float*>(part.y) + at;
    *y = part.accumulate ? *y + sum : sum;
  } else {
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(part.y) + at;
    *y = __float2bfloat16(part.accumulate ? __bfloat162float(*y) + sum : sum);
  }
}

__device__ __forceinline__ float glu_of(const RowsGlu& rule, float gate, float up) {
  if (!rule.situ) return silu_glu(gate, up);
  const float linear_inverse = rule.linear_beta > 0 ? 1 / rule.linear_beta : 0;
  const SituBetas betas = {rule.linear_beta > 0 ? rule.beta * rule.linear_beta : rule.beta, 1 / rule.beta, linear_inverse};
  return rule.linear_beta > 0 ? situ_glu<false, true>(gate, up, betas) : situ_glu<false, false>(gate, up, betas);
}

// acc: sums of a warp, [row tile][token tile][4] as mma leaves them. sums: where warp w puts them, at w * warp_floats; there
// are 8 kTokenTiles * sum_pitch(kRowTiles) floats each. Adds warps in order, then blocks of the cluster in order, then the column of
// x_rest where x is split.
template <int kRowTiles, int kTokenTiles, bool kMaySplit = false>
__device__ __forceinline__ void finish(const Rows& p, const Place& place, const float (&acc)[kRowTiles][kTokenTiles][4],
                                       float* sums, int warp_floats) {
  constexpr int kPitch = sum_pitch(kRowTiles), kRows = kGemmRowTile * kRowTiles, kTileSums = 8 * kTokenTiles * kRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4, threads = 32 * kGemmWarps;
  const int k_warps = 1 << p.k_warps_log2, cluster = 1 << p.cluster_log2, rank = blockIdx.x & (cluster - 1);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // i: rows g, g, g + 8, g + 8; tokens 2 q, 2 q + 1, ...
        sums[warp * warp_floats + (8 * j + 2 * q + i % 2) * kPitch + 16 * m + g + i / 2 * 8] = acc[m][j][i];
      }
    }
  }
  __syncthreads();
  const int block_sums = (kGemmWarps >> p.k_warps_log2) * kTileSums;
  const auto at = [&](int first, int i) { return first * warp_floats + i % kTileSums / kRows * kPitch + i % kRows; };
  const auto block_sum = [&](int i) {
    const int first = i / kTileSums << p.k_warps_log2;
    float sum = 0;
    for (int w = 0; w < k_warps; ++w) sum += sums[at(first + w, i)];
    return sum;
  };
  if (cluster > 1) {  // the block's own sum in the place of its first warp
    for (int i = threadIdx.x; i < block_sums; i += threads) {
      const float sum = block_sum(i);
      sums[at(i / kTileSums << p.k_warps_log2, i)] = sum;
    }
    cluster_sync();
  }
  for (int i = threadIdx.x + rank * threads; i < block_sums; i += cluster * threads) {
    const Tile tile = tile_at(p, place.first_tile + i / kTileSums);
    const int row = tile.begin + i % kRows, token = place.first_token + i % kTileSums / kRows;
    if (row >= tile.end || token >= p.tokens) continue;
    const auto whole_sum = [&](int j) {
      if (cluster == 1) return block_sum(j);
      const uint32_t address = shared_address(&sums[at(j / kTileSums << p.k_warps_log2, j)]);
      float sum = 0;
      for (int c = 0; c < cluster; ++c) sum += cluster_load(cluster_map(address, static_cast<uint32_t>(c)));
      return sum;
    };
    const auto output = [&](int j) { return kMaySplit && p.split ? whole_sum(j) + whole_sum(j + kRows) : whole_sum(j); };
    const RowsPart& part = p.parts[part_of(p, row)];
    const int local = row - part.row_begin;
    if (part.up == nullptr) {
      store(part, token, local, output(i));
    } else if (local % 2 == 0) {  // tiles have whole pairs
      store(part, token, local / 2, glu_of(p.glu, output(i), output(i + 1)));
    }
  }
  if (cluster > 1) cluster_sync();  // others may still read this block's sums
}

}  // namespace k3::ops::cuda
