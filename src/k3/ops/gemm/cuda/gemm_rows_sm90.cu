// Dense products of few tokens: a weight streams through once, tokens are the N side of mma.m16n8k16.
//
// A warp owns 16 rows of a weight and every P-th k-step of 32 columns; P = warps that share a row tile times blocks of the cluster.
// K is a sum, so its order inside a k-step is free: lane (g, q) = (lane / 4, lane % 4) takes columns 8 q .. 8 q + 7 of rows g and
// g + 8 with one 16-byte load each, and the same columns of token g. Those are the fragments of two mma whose K indices are renamed
// alike on both sides. kDepth k-steps of loads are in flight a warp; the first ones of the weights start before the kernel before
// has ended (dependent launch). Partial sums meet in shared memory, warps in order, then blocks of the cluster in order.
#include <cuda_bf16.h>
#include <cstdlib>
#include <type_traits>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/gemm/cuda/gemm_config.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps;
constexpr int kPitch = kGemmRowTile + 4;  // floats between tokens of partial sums: lanes (g, q) hit 32 banks

// Eight BF16 of a row from column `col` on; zeros beyond `limit`.
template <bool kAligned>
__device__ __forceinline__ uint4 load_x(const uint16_t* row, int col, int limit) {
  if constexpr (kAligned) {
    return load_16(row + col, col < limit);
  } else {
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = col + 2 * i;
      two[i] = (c < limit ? row[c] : 0U) | (c + 1 < limit ? static_cast<uint32_t>(row[c + 1]) << 16 : 0U);
    }
    return {two[0], two[1], two[2], two[3]};
  }
}

// A codec reads what one lane needs of one row for a step of 32 kSubs columns and gives the eight BF16 of each k-step of it.
struct Row {
  const uint8_t* w;
  const uint8_t* scales;
};

template <bool kAligned>
struct Bf16Codec {
  static constexpr int kSubs = 1, kDepth = 4;
  using Raw = uint4;
  static __device__ Row row(const RowsPart& part, int r, int in) { return {part.w + static_cast<int64_t>(r) * in * 2, nullptr}; }
  static __device__ __forceinline__ Raw load(const Row& row, int step, int q, int in) {
    const int col = step * kGemmKStep + 8 * q;
    if constexpr (kAligned) {
      return load_once_16(row.w + 2 * col, col < in);
    } else {
      return load_x<false>(reinterpret_cast<const uint16_t*>(row.w), col, in);
    }
  }
  static __device__ __forceinline__ uint4 decode(const Raw& raw, int) { return raw; }
};

// Exact: a product with powers of two in BF16, in two factors because one would not reach every scale (mxfp4.h, kernels.md 7).
struct Mxfp4Codec {
  static constexpr int kSubs = 4, kDepth = 2;
  struct Raw {
    uint32_t codes[4];  // 16-bit word i: nibble s is column 32 s + 8 q + i
    uint32_t scales;    // byte s
  };
  static __device__ Row row(const RowsPart& part, int r, int in) {
    return {part.w + static_cast<int64_t>(r) * (in / 2), part.scales + static_cast<int64_t>(r) * (in / 32)};
  }
  static __device__ __forceinline__ Raw load(const Row& row, int step, int q, int in) {
    Raw raw = {{0, 0, 0, 0}, 0};
    const int begin = step * 128;
    if (begin >= in) return raw;
    const int groups = min(4, (in - begin) / 32);
    for (int s = 0; s < groups; ++s) raw.scales |= static_cast<uint32_t>(row.scales[step * 4 + s]) << (8 * s);
    if (groups == 4) {
      const uint4 v = load_once_16(row.w + begin / 2 + 16 * q);
      raw.codes[0] = v.x, raw.codes[1] = v.y, raw.codes[2] = v.z, raw.codes[3] = v.w;
      return raw;
    }
    for (int s = 0; s < groups; ++s) {  // a rest of less than 128 columns lies in the stored order
      const uint32_t eight = load_once_4(row.w + begin / 2 + 16 * s + 4 * q);
#pragma unroll
      for (int i = 0; i < 8; ++i) raw.codes[i / 2] |= (eight >> (4 * i) & 15U) << (16 * (i % 2) + 4 * s);
    }
    return raw;
  }
  static __device__ __forceinline__ uint32_t both(uint32_t word, int sub, __nv_bfloat162 f1, __nv_bfloat162 f2) {
    const uint32_t t = word >> (4 * sub);
    const uint32_t two = (t & 0x00070007U) << 6 | (t & 0x00080008U) << 12;
    const __nv_bfloat162 v = __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&two), f1), f2);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  static __device__ __forceinline__ uint4 decode(const Raw& raw, int sub) {
    const uint32_t scale = raw.scales >> (8 * sub) & 255U;
    const uint32_t e1 = (min(scale, 128U) + 126) << 7, e2 = (max(scale, 128U) - 1) << 7;
    const uint32_t b1 = e1 | e1 << 16, b2 = e2 | e2 << 16;
    const __nv_bfloat162 f1 = *reinterpret_cast<const __nv_bfloat162*>(&b1), f2 = *reinterpret_cast<const __nv_bfloat162*>(&b2);
    return {both(raw.codes[0], sub, f1, f2), both(raw.codes[1], sub, f1, f2), both(raw.codes[2], sub, f1, f2),
            both(raw.codes[3], sub, f1, f2)};
  }
};

struct Int8Codec {
  static constexpr int kSubs = 1, kDepth = 4;
  struct Raw {
    uint2 codes;
    uint32_t scale;
  };
  static __device__ Row row(const RowsPart& part, int r, int in) {
    return {part.w + static_cast<int64_t>(r) * in, part.scales + static_cast<int64_t>(r) * (in / 32)};
  }
  static __device__ __forceinline__ Raw load(const Row& row, int step, int q, int in) {
    const bool take = step * kGemmKStep < in;
    return {load_once_8(row.w + step * kGemmKStep + 8 * q, take), take ? row.scales[step] : 0U};
  }
  // Two signed bytes: 2^23 + 128 + code as a float, made with a byte permute, less 2^23 + 128.
  static __device__ __forceinline__ uint32_t both(uint32_t word, int at, float factor) {
    const float a = __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7650 + at)) - 8388736.0F;
    const float b = __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7651 + at)) - 8388736.0F;
    return pack_bf16(a * factor, b * factor);
  }
  static __device__ __forceinline__ uint4 decode(const Raw& raw, int) {
    const float factor = __uint_as_float((raw.scale > 6 ? raw.scale - 6 : 0U) << 23);
    const uint32_t x = raw.codes.x ^ 0x80808080U, y = raw.codes.y ^ 0x80808080U;
    return {both(x, 0, factor), both(x, 2, factor), both(y, 0, factor), both(y, 2, factor)};
  }
};

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

template <class Codec, int kTiles, bool kAlignedX, int kDepth, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) rows_kernel(const __grid_constant__ Rows p) {
  constexpr int kTokens = 8 * kTiles;
  constexpr bool kEarlyX = Codec::kSubs == 1;  // x travels with the weights; else it is read when they have come
  __shared__ float sums[kGemmWarps][kTokens][kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int k_warps = 1 << p.k_warps_log2, cluster = 1 << p.cluster_log2;
  const int rank = blockIdx.x & (cluster - 1), block = blockIdx.x >> p.cluster_log2;
  const int tile = (block / p.token_groups) * (kGemmWarps >> p.k_warps_log2) + (warp >> p.k_warps_log2);
  const int first_token = block % p.token_groups * kTokens;

  int index = 0;
#pragma unroll
  for (int i = 1; i < 6; ++i) index += i < p.part_count && tile >= p.parts[i].tile_begin;
  const RowsPart& part = p.parts[index];
  const int first_row = (tile - part.tile_begin) * kGemmRowTile;
  const Row low = Codec::row(part, min(first_row + g, part.rows - 1), p.in);  // rows beyond the last repeat it, not stored
  const Row high = Codec::row(part, min(first_row + g + 8, part.rows - 1), p.in);

  constexpr int kStepColumns = kGemmKStep * Codec::kSubs;
  const int stride = k_warps * cluster;
  const int in = tile < p.tiles ? p.in : 0, steps = (in + kStepColumns - 1) / kStepColumns;
  int step = rank * k_warps + (warp & (k_warps - 1));

  typename Codec::Raw raw[kDepth][2];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    raw[d][0] = Codec::load(low, step + d * stride, q, in);
    raw[d][1] = Codec::load(high, step + d * stride, q, in);
  }
  if (p.flags & 1) {  // L2 prefetch of this block's rows
    const int bytes = p.in * 2;
    if (warp == 0 && lane < 16 && cluster == 1) {
      const int r = min(first_row + lane, part.rows - 1);
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(part.w + static_cast<int64_t>(r) * bytes), "r"(bytes) : "memory");
    }
  }
  if (p.flags & 2) pdl_release();
  pdl_wait();
  if (!(p.flags & 2)) pdl_release();

  const uint16_t* x[kTiles];
  int limit[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const int token = first_token + 8 * j + g;
    limit[j] = token < p.tokens ? in : 0;
    x[j] = static_cast<const uint16_t*>(p.x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride;
  }
  uint4 early[kEarlyX ? kDepth : 1][kTiles];
  if constexpr (kEarlyX) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        early[d][j] = load_x<kAlignedX>(x[j], (step + d * stride) * kGemmKStep + 8 * q, limit[j]);
      }
    }
  }

  float acc[2][kTiles][4] = {};  // two chains of products: half the latency
  for (; step < steps; step += kDepth * stride) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int now = step + d * stride;
      if (now < steps) {
#pragma unroll
        for (int sub = 0; sub < Codec::kSubs; ++sub) {
          const uint4 l = Codec::decode(raw[d][0], sub), h = Codec::decode(raw[d][1], sub);
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            uint4 b;
            if constexpr (kEarlyX) {
              b = early[d][j];
            } else {
              b = load_x<kAlignedX>(x[j], now * kStepColumns + sub * kGemmKStep + 8 * q, limit[j]);
            }
            mma_bf16(acc[0][j], {l.x, h.x, l.y, h.y}, {b.x, b.y});
            mma_bf16(acc[1][j], {l.z, h.z, l.w, h.w}, {b.z, b.w});
          }
        }
      }
      const int next = now + kDepth * stride;
      raw[d][0] = Codec::load(low, next, q, in);
      raw[d][1] = Codec::load(high, next, q, in);
      if constexpr (kEarlyX) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) early[d][j] = load_x<kAlignedX>(x[j], next * kGemmKStep + 8 * q, limit[j]);
      }
    }
  }

#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i: rows g, g, g + 8, g + 8; tokens 2 q, 2 q + 1, ...
      sums[warp][8 * j + 2 * q + i % 2][g + i / 2 * 8] = acc[0][j][i] + acc[1][j][i];
    }
  }
  __syncthreads();

  constexpr int kTileSums = kTokens * kGemmRowTile;
  const int block_sums = (kGemmWarps >> p.k_warps_log2) * kTileSums;
  if (cluster > 1) {  // the block's own sum first, in the place of its first warp
    for (int i = threadIdx.x; i < block_sums; i += kThreads) {
      const int first = i / kTileSums << p.k_warps_log2, token = i % kTileSums / kGemmRowTile, row = i % kGemmRowTile;
      float sum = sums[first][token][row];
      for (int w = 1; w < k_warps; ++w) sum += sums[first + w][token][row];
      sums[first][token][row] = sum;
    }
    cluster_sync();
  }
  const int parts = cluster > 1 ? cluster : k_warps;
  for (int i = threadIdx.x + rank * kThreads; i < block_sums; i += cluster * kThreads) {
    const int sub_tile = i / kTileSums, first = sub_tile << p.k_warps_log2, token = i % kTileSums / kGemmRowTile, row = i % kGemmRowTile;
    float sum = 0;
    if (cluster > 1) {
      const uint32_t address = shared_address(&sums[first][token][row]);
      for (int c = 0; c < parts; ++c) sum += cluster_load(cluster_map(address, static_cast<uint32_t>(c)));
    } else {
      for (int w = 0; w < parts; ++w) sum += sums[first + w][token][row];
    }
    const int of_tile = (block / p.token_groups) * (kGemmWarps >> p.k_warps_log2) + sub_tile;
    if (of_tile >= p.tiles || first_token + token >= p.tokens) continue;
    int at = 0;
#pragma unroll
    for (int k = 1; k < 6; ++k) at += k < p.part_count && of_tile >= p.parts[k].tile_begin;
    const int out_row = (of_tile - p.parts[at].tile_begin) * kGemmRowTile + row;
    if (out_row < p.parts[at].rows) store(p.parts[at], first_token + token, out_row, sum);
  }
  if (cluster > 1) cluster_sync();  // others may still read this block's sums
}

template <class Codec, bool kAlignedX>
int launch_tiles(const Rows& rows, int token_tiles, const LaunchOptions& options, cudaStream_t stream) {
  constexpr int kD = Codec::kDepth;
  if constexpr (std::is_same_v<Codec, Bf16Codec<true>> && kAlignedX) {
    const int v = getenv("K3_GEMM_VARIANT") ? atoi(getenv("K3_GEMM_VARIANT")) : 0;
    if (token_tiles == 1) {
      if (v == 1) return launch(rows_kernel<Codec, 1, true, 4, 3>, options, stream, rows);
      if (v == 2) return launch(rows_kernel<Codec, 1, true, 6, 2>, options, stream, rows);
      if (v == 3) return launch(rows_kernel<Codec, 1, true, 2, 4>, options, stream, rows);
    } else if (token_tiles == 2) {
      if (v == 1) return launch(rows_kernel<Codec, 2, true, 3, 2>, options, stream, rows);
      if (v == 2) return launch(rows_kernel<Codec, 2, true, 2, 3>, options, stream, rows);
      if (v == 3) return launch(rows_kernel<Codec, 2, true, 6, 1>, options, stream, rows);
    } else {
      if (v == 1) return launch(rows_kernel<Codec, 4, true, 4, 1>, options, stream, rows);
      if (v == 2) return launch(rows_kernel<Codec, 4, true, 3, 2>, options, stream, rows);
      if (v == 3) return launch(rows_kernel<Codec, 4, true, 1, 3>, options, stream, rows);
    }
  }
  switch (token_tiles) {
    case 1: return launch(rows_kernel<Codec, 1, kAlignedX, kD, 2>, options, stream, rows);
    case 2: return launch(rows_kernel<Codec, 2, kAlignedX, kD, 2>, options, stream, rows);
    default: return launch(rows_kernel<Codec, 4, kAlignedX, 2, 2>, options, stream, rows);
  }
}

}  // namespace

namespace {
__global__ void __launch_bounds__(256) probe(float* y, int kind) {
  if (kind & 2) pdl_release();
  pdl_wait();
  if (!(kind & 2)) pdl_release();
  if (kind & 1) y[blockIdx.x * 256 + threadIdx.x] += 1;
}
}  // namespace
int gemm_probe_launch(void* y, int blocks, int kind, bool dependent, cudaStream_t stream) {
  return launch(probe, LaunchOptions{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(256), .dependent = dependent}, stream, static_cast<float*>(y), kind);
}

int gemm_rows_launch(const Rows& rows_in, RowsCodec codec, bool x_aligned, int token_tiles, bool dependent, cudaStream_t stream) {
  Rows rows = rows_in;
  if (getenv("K3_GEMM_FLAGS")) rows.flags = atoi(getenv("K3_GEMM_FLAGS"));
  const int tiles_per_block = kGemmWarps >> rows.k_warps_log2;
  const int64_t blocks = static_cast<int64_t>((rows.tiles + tiles_per_block - 1) / tiles_per_block) * rows.token_groups << rows.cluster_log2;
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(blocks)),
                              .block = dim3(kThreads),
                              .cluster = 1 << rows.cluster_log2,
                              .dependent = dependent};
  switch (codec) {
    case RowsCodec::bf16:
      return x_aligned ? launch_tiles<Bf16Codec<true>, true>(rows, token_tiles, options, stream)
                       : launch_tiles<Bf16Codec<true>, false>(rows, token_tiles, options, stream);
    case RowsCodec::bf16_unaligned: return launch_tiles<Bf16Codec<false>, false>(rows, token_tiles, options, stream);
    case RowsCodec::mxfp4:
      return x_aligned ? launch_tiles<Mxfp4Codec, true>(rows, token_tiles, options, stream)
                       : launch_tiles<Mxfp4Codec, false>(rows, token_tiles, options, stream);
    case RowsCodec::i8:
      return x_aligned ? launch_tiles<Int8Codec, true>(rows, token_tiles, options, stream)
                       : launch_tiles<Int8Codec, false>(rows, token_tiles, options, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace k3::ops::cuda
