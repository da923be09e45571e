#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Matrix {
  const void *first, *second;  // w13: w1 and w3, 8 rows each of a unit; w2: twice the same
  const uint8_t *first_scales, *second_scales;
  const float *first_factor, *second_factor;
  int rows, cols;  // of one of them
  bool w13;
};

__device__ int row_of(const Matrix& m, int unit, int half, int g) { return m.w13 ? 8 * unit + g : 16 * unit + 8 * half + g; }

__device__ uint32_t permuted(uint32_t codes) {
  uint32_t out = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) out |= (codes >> (4 * j + bit) & 1) << mxfp4_word_bit(j, bit);
  }
  return out;
}

// factors[i] = 2^max(0, largest byte - 128) of matrix i's scales.
__global__ void __launch_bounds__(1024)
    largest_scale(const uint8_t* s1, const uint8_t* s2, const uint8_t* s3, int64_t count, float* factors) {
  const uint8_t* scales = blockIdx.x == 0 ? s1 : blockIdx.x == 1 ? s2 : s3;
  __shared__ int largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) mine = max(mine, static_cast<int>(scales[i]));
  atomicMax(&largest, mine);
  __syncthreads();
  if (threadIdx.x == 0) factors[blockIdx.x] = ldexpf(1.0F, max(0, largest - 128));
}

__device__ int scale_byte(const Matrix& m, int unit, int half, int g, int group) {
  const int row = row_of(m, unit, half, g);
  if (row >= m.rows || group * 32 >= m.cols) return 126;
  const uint8_t s = (half == 0 ? m.first_scales : m.second_scales)[static_cast<int64_t>(row) * (m.cols / 32) + group];
  const int k = ilogbf(*(half == 0 ? m.first_factor : m.second_factor));
  return max(0, s - k) + 126;
}

__global__ void __launch_bounds__(kThreads) pack_mxfp4(const Matrix m, int units, int chunks, uint32_t* out) {
  constexpr int kWords = 2176 / 4;
  const int64_t total = static_cast<int64_t>(units) * chunks * kWords;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int word = static_cast<int>(i % kWords), chunk = static_cast<int>(i / kWords % chunks),
              unit = static_cast<int>(i / kWords / chunks);
    uint32_t value = 0;
    if (word < 32) {  // [g][q / 2]: bytes [q % 2][half]
      const int g = word / 4, q = word % 4 * 2;
#pragma unroll
      for (int b = 0; b < 4; ++b)
        value |= static_cast<uint32_t>(scale_byte(m, unit, b & 1, g, chunk * 8 + q + b / 2)) << (8 * b);
    } else {  // [q / 2][lane][q % 2][half]
      const int w = word - 32, half = w & 1, q = w / 128 * 2 + (w >> 1 & 1), lane = w / 4 % 32;
      const int row = row_of(m, unit, half, lane / 4), col = chunk * 256 + q * 32 + lane % 4 * 8;
      if (row < m.rows && col < m.cols) {
        const void* codes = half == 0 ? m.first : m.second;
        value = permuted(static_cast<const uint32_t*>(codes)[(static_cast<int64_t>(row) * m.cols + col) / 8]);
      }
    }
    out[i] = value;
  }
}

__global__ void __launch_bounds__(kThreads) pack_bf16(const Matrix m, int units, int chunks, uint4* out) {
  constexpr int kPieces = 4096 / 16;
  const int64_t total = static_cast<int64_t>(units) * chunks * kPieces;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int piece = static_cast<int>(i % kPieces), chunk = static_cast<int>(i / kPieces % chunks);
    const int unit = static_cast<int>(i / kPieces / chunks), lane = piece % 32, half = piece / 32 & 1, q = piece / 64;
    const int row = row_of(m, unit, half, lane / 4), col = chunk * 128 + q * 32 + lane % 4 * 8;
    uint4 value = {0, 0, 0, 0};
    if (row < m.rows && col < m.cols) {
      value = static_cast<const uint4*>(half == 0 ? m.first : m.second)[(static_cast<int64_t>(row) * m.cols + col) / 8];
    }
    out[i] = value;
  }
}

// One thread a lane's 8 columns of a group.
__global__ void __launch_bounds__(kThreads)
    unpack(MoeWeights kind, const uint8_t* packed, bool w13, int rows, int cols, uint4* out) {
  const int64_t total = static_cast<int64_t>(rows) * cols / 8;
  const int columns = static_cast<int>(moe_chunk_columns(kind)), chunks = (cols + columns - 1) / columns;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    int row = static_cast<int>(i / (cols / 8));
    const int col = static_cast<int>(i % (cols / 8)) * 8, chunk = col / columns, q = col % columns / 32, t = col / 8 % 4;
    int half = row / 8 & 1, unit = row / 16;
    if (w13) half = row >= rows / 2, row -= half * (rows / 2), unit = row / 8;
    const int g = row % 8, lane = 4 * g + t;
    const uint8_t* at = packed + (static_cast<int64_t>(unit) * chunks + chunk) * moe_chunk_bytes(kind);
    if (kind == MoeWeights::bf16) {
      out[i] = *reinterpret_cast<const uint4*>(at + q * 1024 + half * 512 + lane * 16);
      continue;
    }
    const uint32_t scales = *reinterpret_cast<const uint32_t*>(at + g * 16 + q / 2 * 4), pair = mxfp4_factors(scales, q & 1);
    const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&pair),
                         factor = half == 0 ? __low2bfloat162(both) : __high2bfloat162(both);
    uint32_t values[4];
    mxfp4_decode(*reinterpret_cast<const uint32_t*>(at + 128 + q / 2 * 512 + lane * 16 + (q & 1) * 8 + half * 4), values);
    out[i] = {mxfp4_scaled(values[0], factor), mxfp4_scaled(values[1], factor), mxfp4_scaled(values[2], factor),
              mxfp4_scaled(values[3], factor)};
  }
}

int pack_matrix(MoeWeights kind, const Matrix& m, void* out, cudaStream_t stream) {
  const int columns = static_cast<int>(moe_chunk_columns(kind)), units = m.w13 ? (m.rows + 7) / 8 : (m.rows + 15) / 16;
  const int chunks = (m.cols + columns - 1) / columns;
  LaunchOptions o{.grid = dim3(1056), .block = dim3(kThreads)};
  return kind == MoeWeights::mxfp4 ? launch(pack_mxfp4, o, stream, m, units, chunks, static_cast<uint32_t*>(out))
                                   : launch(pack_bf16, o, stream, m, units, chunks, static_cast<uint4*>(out));
}

}  // namespace

int moe_pack_launch(const MoePack& p, CUstream_st* stream) {
  if (p.kind == MoeWeights::mxfp4) {
    const int64_t count = static_cast<int64_t>(p.hidden) * (p.width / 32);
    LaunchOptions o{.grid = dim3(3), .block = dim3(1024)};
    if (const int code = launch(largest_scale, o, stream, p.s1, p.s2, p.s3, count, p.factors); code != 0) return code;
  }
  const Matrix w13{p.w1, p.w3, p.s1, p.s3, p.factors, p.factors + 2, p.hidden, p.width, true};
  const Matrix w2{p.w2, p.w2, p.s2, p.s2, p.factors + 1, p.factors + 1, p.width, p.hidden, false};
  if (const int code = pack_matrix(p.kind, w13, p.w13_packed, stream); code != 0) return code;
  return pack_matrix(p.kind, w2, p.w2_packed, stream);
}

int moe_unpack_launch(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, CUstream_st* stream) {
  LaunchOptions o{.grid = dim3(1056), .block = dim3(kThreads)};
  return launch(unpack, o, stream, kind, static_cast<const uint8_t*>(packed), w13, rows, cols, static_cast<uint4*>(out));
}

}  // namespace k3::ops::cuda
