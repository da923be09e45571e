// Dense products of few tokens: a weight streams through once, tokens are the N side of mma.m16n8k16.
//
// A warp owns 16 rows of a weight and every P-th k-step of 32 columns; P = warps that share a row tile times blocks of the
// cluster. K is a sum, so its order inside a k-step is free: lane (g, q) = (lane / 4, lane % 4) takes columns 8 q .. 8 q + 7
// of rows g and g + 8 with one 16-byte load each, and the same columns of token g. Those are the fragments of two mma whose
// K indices are renamed alike on both sides. kDepth k-steps of loads are in flight a warp; the first ones of the weights
// start before the kernel before has ended (dependent launch). Partial sums meet in shared memory, warps in order, then
// blocks of the cluster in order.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps;

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
  static __device__ Row row(const RowsPart& part, int r, int in) {
    return {part.w + static_cast<int64_t>(r) * in * 2, nullptr};
  }
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

// Exact: a product with powers of two in BF16, in two factors because one would not reach every scale (kernels.md 7).
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
    const __nv_bfloat162 f1 = *reinterpret_cast<const __nv_bfloat162*>(&b1),
                         f2 = *reinterpret_cast<const __nv_bfloat162*>(&b2);
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

template <class Codec, int kTiles, bool kAlignedX, int kDepth, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) rows_kernel(const __grid_constant__ Rows p) {
  constexpr int kTokens = 8 * kTiles;
  constexpr bool kEarlyX = Codec::kSubs == 1;  // x travels with the weights; else it is read when they have come
  __shared__ float sums[kGemmWarps * kTokens * sum_pitch(1)];
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const Place place = place_of(p, kTokens);
  const Tile tile = tile_at(p, place.tile);
  const int in = tile.end > tile.begin ? p.in : 0;
  const int low_row = min(tile.begin + g, max(tile.end - 1, 0)), high_row = min(tile.begin + g + 8, max(tile.end - 1, 0));
  const RowsPart &low_part = p.parts[part_of(p, low_row)], &high_part = p.parts[part_of(p, high_row)];
  const Row low = Codec::row(low_part, low_row - low_part.row_begin, p.in);  // rows beyond the last repeat it, not stored
  const Row high = Codec::row(high_part, high_row - high_part.row_begin, p.in);

  constexpr int kStepColumns = kGemmKStep * Codec::kSubs;
  const int stride = place.splits, steps = (in + kStepColumns - 1) / kStepColumns;
  int step = place.split;

  typename Codec::Raw raw[kDepth][2];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    raw[d][0] = Codec::load(low, step + d * stride, q, in);
    raw[d][1] = Codec::load(high, step + d * stride, q, in);
  }
  if (!p.release_late) pdl_release();
  pdl_wait();
  if (p.release_late) pdl_release();

  const uint16_t* x[kTiles];
  int limit[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const int token = place.first_token + 8 * j + g;
    limit[j] = token < p.tokens ? in : 0;
    x[j] = static_cast<const uint16_t*>(blockIdx.y == 0 ? p.x : p.other_x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride;
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

  float acc[1][kTiles][4] = {};
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
            mma_bf16(acc[0][j], {l.z, h.z, l.w, h.w}, {b.z, b.w});
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

  finish<1, kTiles>(p, place, acc, sums, kTokens * sum_pitch(1));
}

template <class Codec, bool kAlignedX>
int launch_tiles(const Rows& rows, int token_tiles, const LaunchOptions& options, cudaStream_t stream) {
  switch (token_tiles) {
    case 1: return launch(rows_kernel<Codec, 1, kAlignedX, Codec::kDepth, 2>, options, stream, rows);
    case 2: return launch(rows_kernel<Codec, 2, kAlignedX, Codec::kDepth, 2>, options, stream, rows);
    default: return launch(rows_kernel<Codec, 4, kAlignedX, 2, 2>, options, stream, rows);
  }
}

}  // namespace

int gemm_rows_launch(const Rows& rows, RowsCodec codec, bool x_aligned, int token_tiles, bool dependent,
                     cudaStream_t stream) {
  const int tiles_per_block = kGemmWarps >> rows.k_warps_log2;
  const int64_t blocks = static_cast<int64_t>((rows.tiles + tiles_per_block - 1) / tiles_per_block) * rows.token_groups
                         << rows.cluster_log2;
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(blocks), rows.other_x != nullptr ? 2 : 1),
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
