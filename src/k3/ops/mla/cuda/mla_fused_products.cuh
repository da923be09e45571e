// Internal to ops/mla. The products of the fused kernel: of the queries with the keys' half of kv_b, of merged latents with
// the other.
#pragma once

#include "k3/ops/cuda/grid_sync.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/mla/cuda/mla_fused.cuh"

namespace k3::ops::cuda {

// ---- the absorbed query: two warpgroups ----

template <int N>
__device__ __forceinline__ void absorb_role(const MlaFusedLaunch& p, const FusedWork& w, uint32_t shared,
                                            const FusedBars<N>& bars) {
  if (w.unit == w.unit_end) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, quad = lane % 4,
            token = lane / 4;
  const int heads = static_cast<int>(p.args.heads);
  auto* query = static_cast<__nv_bfloat16*>(p.query_rows);
  constexpr int kMost = mla_fused_units(N);
  uint32_t a[kMost][8][2];  // eight rows of A: the step's tokens; the other eight are zeros
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const bool take = w.unit + i < w.unit_end && token < w.tokens;
    const auto* q =
        static_cast<const __nv_bfloat16*>(p.args.q) + token * p.args.q_stride + (w.unit + i) / 8 * kMlaKey + 2 * quad;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      a[i][k][0] = take ? *reinterpret_cast<const uint32_t*>(q + 16 * k) : 0;
      a[i][k][1] = take ? *reinterpret_cast<const uint32_t*>(q + 16 * k + 8) : 0;
    }
  }
  // The queries' other 64 numbers are copied by the block with the first unit of the head: eight threads a token.
  uint4 rope[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const bool take = w.unit + i < w.unit_end && (w.unit + i) % 8 == 0 && thread < 8 * w.tokens;
    const auto* q =
        static_cast<const __nv_bfloat16*>(p.args.q) + thread / 8 * p.args.q_stride + (w.unit + i) / 8 * kMlaKey + kMlaNope;
    rope[i] = load_16(q + thread % 8 * 8, take);
  }
  mbar_wait(bars.keys(), 0);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int unit = w.unit + i, head = unit / 8, column0 = unit % 8 * 64;
    if (unit >= w.unit_end) break;
    float d[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, shared + i * kUnitBytes + swizzle_128(32 * k + lane, warp * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t rows[4] = {a[i][2 * k + half][0], 0, a[i][2 * k + half][1], 0},
                       columns[2] = {b[2 * half], b[2 * half + 1]};
        mma_bf16(d[half], rows, columns);
      }
    }
    if (token < w.tokens) {
      *reinterpret_cast<uint32_t*>(query + (token * heads + head) * kLatentRow + column0 + warp * 8 + 2 * quad) =
          pack_bf16(d[0][0] + d[1][0], d[0][1] + d[1][1]);
    }
    if (column0 == 0 && thread < 8 * w.tokens)
      *reinterpret_cast<uint4*>(query + (thread / 8 * heads + head) * kLatentRow + kLatent + thread % 8 * 8) = rope[i];
  }
  named_barrier(2, 256);
  if (thread == 0) grid_arrive(p.counters);
}

// ---- merge and product with the values' half of kv_b: all ----

// The latents of a row over all parts, to `latents` [512]. `rest`: [4, 512]. All threads.
template <int N>
__device__ __forceinline__ void merge_row(const MlaFusedLaunch& p, int row, int parts, float* rest, float* latents) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128, lane = thread % 32;
  constexpr int kEach = (kMlaMaxWorkers + 31) / 32;
  const float4* acc = reinterpret_cast<const float4*>(p.acc) + row * (kLatent / 4) + thread % 128;
  uint4 values[8];  // four groups take every fourth part
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int part = 32 * k + 4 * i + group;
      values[i] = load_16(acc + static_cast<int64_t>(part) * (N * kLatent / 4), part < parts);
    }
  };
  float weight[kEach], most = -INFINITY, sum = 0;
  float2 ml[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int part = 32 * k + lane;
    ml[k] = part < parts ? p.sums[part * N + row] : float2{-INFINITY, 0};
  }
  load(0);
#pragma unroll
  for (int k = 0; k < kEach; ++k) most = fmaxf(most, ml[k].y > 0 ? ml[k].x : -INFINITY);
  most = warp_max(most);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    weight[k] = ml[k].y > 0 ? exp2f(ml[k].x - most) : 0;
    sum += weight[k] * ml[k].y;
  }
  sum = warp_sum(sum);
  const float inverse = sum > 0 ? 1 / sum : 0;
  float4 mine = {0, 0, 0, 0};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (32 * k >= parts) break;
    if (k > 0) load(k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float f = __shfl_sync(0xFFFFFFFFU, weight[k], 4 * i + group) * inverse;
      mine.x = fmaf(f, __uint_as_float(values[i].x), mine.x);
      mine.y = fmaf(f, __uint_as_float(values[i].y), mine.y);
      mine.z = fmaf(f, __uint_as_float(values[i].z), mine.z);
      mine.w = fmaf(f, __uint_as_float(values[i].w), mine.w);
    }
  }
  sync_block();  // rest and latents of the row before have been read
  reinterpret_cast<float4*>(rest)[thread] = mine;
  sync_block();
  const int b = thread / 16, i = thread % 16 / 2, high = thread % 2;
  latents[16 * b + i + 8 * high] = rest[thread] + rest[512 + thread] + rest[1024 + thread] + rest[1536 + thread];
  sync_block();
}

template <int N>
__device__ __forceinline__ void finish(const MlaFusedLaunch& p, const FusedWork& w, char* base) {
  pdl_wait();  // not every role has
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            heads = static_cast<int>(p.args.heads);
  constexpr int kMost = mla_fused_units(N);
  float* rest = reinterpret_cast<float*>(base + FusedLayout<N>::kRingAt);
  float* latents = rest + 4 * kLatent;
  uint4 weights[kMost][2];  // a row of the unit a warp: its latents 8 lane.. and 256 + 8 lane..
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int unit = w.unit + i;
    const auto* row = static_cast<const __nv_bfloat16*>(p.args.kv_b) +
                      (unit / 8 * kHeadRows + kMlaNope + unit % 8 * 16 + warp) * static_cast<int64_t>(kLatent);
    weights[i][0] = load_once_16(row + 8 * lane, unit < w.unit_end);
    weights[i][1] = load_once_16(row + 256 + 8 * lane, unit < w.unit_end);
  }
  if (threadIdx.x == 0) grid_wait(p.counters + 1, w.parts);
  sync_block();
  for (int token = 0; token < w.tokens; ++token) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int unit = w.unit + i, head = unit / 8, column = unit % 8 * 16 + warp;
      if (unit >= w.unit_end) break;
      const int at = head * kMlaValue + column;
      float gate = INFINITY;
      if (p.args.gate != nullptr)
        gate = __bfloat162float(static_cast<const __nv_bfloat16*>(p.args.gate)[token * p.args.gate_stride + at]);
      if (i == 0 || unit % 8 == 0) merge_row<N>(p, token * heads + head, w.parts, rest, latents);
      float sum = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[8];
        unpack8(weights[i][half], v);
        const float4* x = reinterpret_cast<const float4*>(latents + 256 * half + 8 * lane);
        const float4 low = x[0], high = x[1];
        sum += v[0] * low.x + v[1] * low.y + v[2] * low.z + v[3] * low.w + v[4] * high.x + v[5] * high.y + v[6] * high.z +
               v[7] * high.w;
      }
      sum = warp_sum(sum);
      if (lane > 0) continue;
      const float y = sum / (1 + exp2f(-gate * kLog2e));
      const __nv_bfloat16 out = __float2bfloat16(y);
      static_cast<__nv_bfloat16*>(p.args.out)[token * p.args.out_stride + at] = out;
      if (p.args.out_rest != nullptr)
        static_cast<__nv_bfloat16*>(p.args.out_rest)[token * p.args.out_stride + at] = __float2bfloat16(y - __bfloat162float(out));
    }
  }
}

}  // namespace k3::ops::cuda
