// Internal to ops/gemm. What the kernels of one token share: the rows of the weights, and x from its site.
#pragma once

#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

namespace k3::ops::cuda {

__device__ __forceinline__ const uint8_t* weight_row(const Rows& p, int row) {
  const RowsPart& part = p.parts[part_of(p, row)];
  const int local = row - part.row_begin;
  const uint8_t* base = part.up != nullptr && local % 2 == 1 ? part.up : part.w;
  return base + static_cast<int64_t>(part.up != nullptr ? local / 2 : local) * p.in * 2;
}

struct SiteShared {
  float squares[kGemmWarps];
  bool last;
};

// A thread's vectors of eight of the running sum: kThreads threads, 8 warps, hold up to 4,096 columns.
template <int kThreads>
struct SiteRows {
  static constexpr int kVectors = 2;
  uint4 sum[kVectors], low[kVectors];
  float norm[kVectors][8];

  static __device__ __forceinline__ int column(int c) { return 8 * (static_cast<int>(threadIdx.x) + c * kThreads); }

  __device__ __forceinline__ void load(const Rows& p) {
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int i = column(c);
      sum[c] = load_16(static_cast<const uint16_t*>(p.site.prefix) + i, i < p.in);
      low[c] = load_16(static_cast<const uint16_t*>(p.site.rest) + i, i < p.in && p.site.rest != nullptr);
      if (i >= p.in) continue;
      if (p.site.norm_bf16) {
        unpack8(__ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.site.norm) + i)), norm[c]);
      } else {
        const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(p.site.norm) + i);
        const float4 a = __ldg(from), b = __ldg(from + 1);
        norm[c][0] = a.x, norm[c][1] = a.y, norm[c][2] = a.z, norm[c][3] = a.w, norm[c][4] = b.x, norm[c][5] = b.y, norm[c][6] = b.z, norm[c][7] = b.w;
      }
    }
  }

  // The new sum here, x in shared memory and, by the first block, in s.out; rest_at: where what rounding cuts off x goes, 0: nowhere.
  // With a barrier (1) before which all have read the sum.
  __device__ __forceinline__ void norm_sum(const Rows& p, SiteShared& s, uint32_t x_at, uint32_t rest_at) {
    float squares = 0;
    uint4 delta[kVectors];
#pragma unroll
    for (int c = 0; c < kVectors; ++c) delta[c] = load_16(static_cast<const uint16_t*>(p.site.delta) + column(c), column(c) < p.in);
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      add_split8(sum[c], low[c], delta[c], p.site.rest_out != nullptr);
      float v[8];
      unpack_split8(sum[c], low[c], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) s.squares[threadIdx.x / 32] = squares;
    named_barrier(1, kThreads);
    float total = 0;
#pragma unroll
    for (int i = 0; i < kGemmWarps; ++i) total += s.squares[i];
    const float factor = rsqrtf(total / static_cast<float>(p.in) + p.site.eps);
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int i = column(c);
      if (i >= p.in) continue;
      float v[8];
      unpack_split8(sum[c], low[c], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * factor * norm[c][j];
      const uint4 x = pack8(v);
      shared_store_16(x_at + 2 * i, x);
      if (rest_at != 0) {
        float rounded[8];
        unpack8(x, rounded);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] -= rounded[j];
        shared_store_16(rest_at + 2 * i, pack8(v));
      }
      if (blockIdx.x == 0) *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.site.out) + i) = x;
    }
  }

  __device__ __forceinline__ void store_sum(const Rows& p) const {
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      if (column(c) >= p.in) continue;
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.site.prefix_out) + column(c)) = sum[c];
      if (p.site.rest_out != nullptr) *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.site.rest_out) + column(c)) = low[c];
    }
  }
};

}  // namespace k3::ops::cuda
