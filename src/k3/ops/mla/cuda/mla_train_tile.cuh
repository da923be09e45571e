// Internal to ops/mla. Tiles of queries, keys and values in shared memory, and products of a warp's 16 rows with them.
#pragma once

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_train.h"

namespace k3::ops::cuda {

constexpr int kMlaKey = 192, kMlaValue = 128;                                // narrower heads are padded with zeros
constexpr int kMlaKeyStride = kMlaKey + 8, kMlaValueStride = kMlaValue + 8;  // of rows: ldmatrix meets different banks
constexpr int kMlaThreads = 128;
constexpr float kMlaLog2E = 1.4426950408889634F;

// Rows of up to two parts: `first` numbers at a, then `second` at b, then zeros.
struct MlaRows {
  const __nv_bfloat16 *a, *b;
  int64_t a_stride, b_stride;
  int first, second;
  bool vectors;
};

__device__ __forceinline__ bool mla_aligned(const MlaRows& r) {
  return ((reinterpret_cast<uint64_t>(r.a) | reinterpret_cast<uint64_t>(r.b)) & 15) == 0 && ((r.a_stride | r.b_stride | r.first | r.second) & 7) == 0;
}

__device__ __forceinline__ MlaRows mla_queries(const MlaTrain& p, int begin, int head) {
  const int width = p.nope + p.rope;
  const auto* const q = static_cast<const __nv_bfloat16*>(p.q) + (static_cast<int64_t>(begin) * p.heads + head) * width;
  MlaRows r{q, nullptr, static_cast<int64_t>(p.heads) * width, 0, width, 0, false};
  r.vectors = mla_aligned(r);
  return r;
}
__device__ __forceinline__ MlaRows mla_keys(const MlaTrain& p, int begin, int head) {
  const int width = p.nope + p.value;
  MlaRows r{static_cast<const __nv_bfloat16*>(p.keys) + (static_cast<int64_t>(begin) * p.heads + head) * width,
            static_cast<const __nv_bfloat16*>(p.shared) + begin * p.shared_stride,
            static_cast<int64_t>(p.heads) * width,
            p.shared_stride,
            p.nope,
            p.rope,
            false};
  r.vectors = mla_aligned(r);
  return r;
}
__device__ __forceinline__ MlaRows mla_values(const MlaTrain& p, int begin, int head) {
  const int width = p.nope + p.value;
  MlaRows r{static_cast<const __nv_bfloat16*>(p.keys) + (static_cast<int64_t>(begin) * p.heads + head) * width + p.nope, nullptr,
            static_cast<int64_t>(p.heads) * width, 0, p.value, 0, false};
  r.vectors = mla_aligned(r);
  return r;
}
__device__ __forceinline__ MlaRows mla_dout(const MlaTrain& p, int begin, int head) {
  MlaRows r{static_cast<const __nv_bfloat16*>(p.d_out) + (static_cast<int64_t>(begin) * p.heads + head) * p.value, nullptr,
            static_cast<int64_t>(p.heads) * p.value, 0, p.value, 0, false};
  r.vectors = mla_aligned(r);
  return r;
}

// Rows [row, row + kRows) of a sequence of `length`, kCols wide, to shared memory; what does not exist is zero.
template <int kRows, int kCols>
__device__ __forceinline__ void mla_load(uint32_t to, const MlaRows& r, int row, int length) {
  constexpr int kAcross = kCols / 8, kStride = kCols + 8;
  for (int c = threadIdx.x; c < kRows * kAcross; c += kMlaThreads) {
    const int t = row + c / kAcross, at = c % kAcross * 8;
    const uint32_t place = to + (c / kAcross * kStride + at) * 2;
    const bool inside = t < length;
    if (r.vectors) {
      const bool in_first = at < r.first;
      const bool take = inside && at < r.first + r.second;
      const __nv_bfloat16* const from = in_first ? r.a + t * r.a_stride + at : r.b + t * r.b_stride + (at - r.first);
      cp_async<16>(place, take ? from : r.a, take);
      continue;
    }
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto value = [&](int e) {
        if (!inside || e >= r.first + r.second) return 0.0F;
        return __bfloat162float(e < r.first ? r.a[t * r.a_stride + e] : r.b[t * r.b_stride + e - r.first]);
      };
      two[i] = pack_bf16(value(at + 2 * i), value(at + 2 * i + 1));
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(place), "r"(two[0]), "r"(two[1]), "r"(two[2]), "r"(two[3]) : "memory");
  }
}

// sum[j] += (16 rows at `rows` from row0) times (rows 8 j ... of `others`), both kCols wide in shared memory.
template <int kCols, int kTiles>
__device__ __forceinline__ void mla_dots(uint32_t rows, int row0, uint32_t others, float (&sum)[kTiles][4]) {
  constexpr int kStride = kCols + 8;
  const int lane = threadIdx.x & 31, low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
#pragma unroll
  for (int k = 0; k < kCols; k += 16) {
    uint32_t left[4];
    ldmatrix_x4(left, rows + ((row0 + bit3 * 8 + low) * kStride + k + bit4 * 8) * 2);
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      uint32_t right[4];
      ldmatrix_x4(right, others + ((j * 8 + bit4 * 8 + low) * kStride + k + bit3 * 8) * 2);
      const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
      mma_bf16(sum[j], left, first);
      mma_bf16(sum[j + 1], left, second);
    }
  }
}

// sum[j] += weights (16 rows x 8 kTiles, as results of mla_dots lie) times the rows at `others`, columns 8 j ...
template <int kCols, int kTiles>
__device__ __forceinline__ void mla_mix(const float (&weights)[kTiles][4], uint32_t others, float (&sum)[kCols / 8][4]) {
  constexpr int kStride = kCols + 8;
  const int lane = threadIdx.x & 31, low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
#pragma unroll
  for (int k = 0; k < kTiles; k += 2) {
    const uint32_t left[4] = {pack_bf16(weights[k][0], weights[k][1]), pack_bf16(weights[k][2], weights[k][3]),
                              pack_bf16(weights[k + 1][0], weights[k + 1][1]), pack_bf16(weights[k + 1][2], weights[k + 1][3])};
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t right[4];
      ldmatrix_x4_trans(right, others + ((k * 8 + bit3 * 8 + low) * kStride + j * 8 + bit4 * 8) * 2);
      const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
      mma_bf16(sum[j], left, first);
      mma_bf16(sum[j + 1], left, second);
    }
  }
}

// The warp's 16 rows of a gradient: columns [from, to) go to rows of `out`.
template <int kTiles>
__device__ __forceinline__ void mla_put(const float (&sum)[kTiles][4], int row0, int length, int from, int to, __nv_bfloat16* out, int64_t stride) {
  const int lane = threadIdx.x & 31;
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + lane / 4 + 8 * half;
    if (row >= length) continue;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int col = j * 8 + lane % 4 * 2;
      __nv_bfloat16* const at = out + row * stride + (col - from);
      if (col >= from && col + 1 < to && (reinterpret_cast<uint64_t>(at) & 3) == 0) {
        *reinterpret_cast<uint32_t*>(at) = pack_bf16(sum[j][2 * half], sum[j][2 * half + 1]);
        continue;
      }
      if (col >= from && col < to) at[0] = __float2bfloat16(sum[j][2 * half]);
      if (col + 1 >= from && col + 1 < to) at[1] = __float2bfloat16(sum[j][2 * half + 1]);
    }
  }
}

}  // namespace k3::ops::cuda
