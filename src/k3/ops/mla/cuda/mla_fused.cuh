// Internal to ops/mla. The fused kernel (mla_fused_sm90.cu): what lies where, and what a block has to do.
#pragma once

#include "k3/ops/mla/cuda/mla_decode_common.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {

constexpr int kFusedColumns = 9, kUnitBytes = kMlaNope * 128, kHeadRows = kMlaNope + kMlaValue;

template <int N>
struct FusedLayout {
  static constexpr int kRing = N == 32 ? 22 : 25;
  static constexpr int kP = kFusedColumns * N * 128, kRingAt = kP + N * 128;  // at 0: units of the keys, then the query
  static constexpr int kFloats = kRingAt + kRing * kBlockBytes;               // reference, factor, limit [N]; cross [4, N]
  static constexpr int kBars = kFloats + 7 * N * 4;                           // full, empty [ring]; keys; p full, empty
  static constexpr int kFlag = kBars + (2 * kRing + 3) * 8;
  static constexpr int kBytes = kFlag + 8;
  static_assert(kBytes <= 232448 && kRingAt % 1024 == 0);
  static_assert(mla_fused_units(N) * kUnitBytes <= kP);
};

template <int N>
struct FusedBars {
  uint32_t base;
  static constexpr int kRing = FusedLayout<N>::kRing;
  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + 8 * (kRing + i); }
  __device__ __forceinline__ uint32_t keys() const { return base + 16 * kRing; }
  __device__ __forceinline__ uint32_t p_full() const { return base + 16 * kRing + 8; }
  __device__ __forceinline__ uint32_t p_empty() const { return base + 16 * kRing + 16; }
};

// What a block has to do.
struct FusedWork {
  int length, tokens, rows;
  int begin, end, parts;  // tiles; blocks that have any
  int unit, unit_end;     // of the keys and of the values
  __device__ __forceinline__ bool has_tiles() const { return begin < end; }
};

__device__ __forceinline__ FusedWork fused_work(const MlaFusedLaunch& p) {
  FusedWork w;
  const int block = static_cast<int>(blockIdx.x), heads = static_cast<int>(p.args.heads);
  w.length = p.args.lengths[0];
  w.tokens = p.args.offsets != nullptr ? p.args.offsets[1] - p.args.offsets[0] : static_cast<int>(p.args.tokens);
  w.rows = w.tokens * heads;
  const int tiles = mla_tiles(w.length), share = mla_fused_share(tiles, static_cast<int>(gridDim.x));
  w.parts = (tiles + share - 1) / share;
  w.begin = min(block * share, tiles);
  w.end = min(w.begin + share, tiles);
  w.unit = min(block * p.config.units, heads * 8);
  w.unit_end = min(w.unit + p.config.units, heads * 8);
  return w;
}

}  // namespace k3::ops::cuda
