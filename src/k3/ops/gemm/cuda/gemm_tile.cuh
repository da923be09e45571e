// Internal to ops/gemm. What the kernels of few tokens share: which tile a warp has, and the sum of its partial products.
//
// A block has eight warps; 2^k_warps_log2 of them share a tile along K, and so do the blocks of a cluster. Lane (g, q) =
// (lane / 4, lane % 4) has rows g and g + 8 of the tile in mma.m16n8k16.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/gemm/cuda/gemm_config.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"

namespace k3::ops::cuda {

constexpr int kSumPitch = kGemmRowTile + 4;  // floats between tokens of partial sums: lanes (g, q) hit 32 banks

__device__ __forceinline__ int part_of(const Rows& p, int row) {
  int index = 0;
#pragma unroll
  for (int i = 1; i < 6; ++i) index += i < p.part_count && row >= p.parts[i].row_begin;
  return index;
}

struct Tile {
  int begin, end;  // rows among those of all parts; empty beyond the last tile
};
__device__ __forceinline__ Tile tile_at(const Rows& p, int tile) {
  if (tile >= p.tiles) return {0, 0};
  return {static_cast<int>(static_cast<int64_t>(tile) * p.rows / p.tiles), static_cast<int>(static_cast<int64_t>(tile + 1) * p.rows / p.tiles)};
}

struct Place {  // of a warp
  int first_tile;   // of the block
  int tile;         // of the warp
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

// acc: two chains of products a warp, [chain][token tile][4] as mma leaves them. sums: where warp w puts its sums, at
// w * warp_floats; kTokens * kSumPitch floats each. Adds chains, then warps in order, then blocks of the cluster in order.
template <int kTokenTiles>
__device__ __forceinline__ void finish(const Rows& p, const Place& place, const float (&acc)[2][kTokenTiles][4], float* sums,
                                       int warp_floats) {
  constexpr int kTileSums = 8 * kTokenTiles * kGemmRowTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4, threads = 32 * kGemmWarps;
  const int k_warps = 1 << p.k_warps_log2, cluster = 1 << p.cluster_log2, rank = blockIdx.x & (cluster - 1);
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i: rows g, g, g + 8, g + 8; tokens 2 q, 2 q + 1, ...
      sums[warp * warp_floats + (8 * j + 2 * q + i % 2) * kSumPitch + g + i / 2 * 8] = acc[0][j][i] + acc[1][j][i];
    }
  }
  __syncthreads();
  const int block_sums = (kGemmWarps >> p.k_warps_log2) * kTileSums;
  const auto at = [&](int first, int i) { return first * warp_floats + i % kTileSums / kGemmRowTile * kSumPitch + i % kGemmRowTile; };
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
    const int row = tile.begin + i % kGemmRowTile, token = place.first_token + i % kTileSums / kGemmRowTile;
    if (row >= tile.end || token >= p.tokens) continue;
    float sum = 0;
    if (cluster > 1) {
      const uint32_t address = shared_address(&sums[at(i / kTileSums << p.k_warps_log2, i)]);
      for (int c = 0; c < cluster; ++c) sum += cluster_load(cluster_map(address, static_cast<uint32_t>(c)));
    } else {
      sum = block_sum(i);
    }
    const RowsPart& part = p.parts[part_of(p, row)];
    store(part, token, row - part.row_begin, sum);
  }
  if (cluster > 1) cluster_sync();  // others may still read this block's sums
}

}  // namespace k3::ops::cuda
