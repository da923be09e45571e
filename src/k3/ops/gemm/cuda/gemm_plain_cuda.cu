// Dense products on GPUs that are not Hopper: a block 16 rows of a weight and 16 tokens, one sum a thread, in the order of the columns.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/gemm/cuda/gemm_plain.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kTile = 16, kStep = 32;

// E2M1 by its four bits.
__device__ __forceinline__ float fp4(uint32_t code) {
  const int exponent = static_cast<int>(code >> 1 & 3U), mantissa = static_cast<int>(code & 1U);
  const float magnitude = exponent == 0 ? 0.5F * static_cast<float>(mantissa)
                                        : (1.0F + 0.5F * static_cast<float>(mantissa)) * static_cast<float>(1 << (exponent - 1));
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

__device__ float weight_at(const PlainProduct& p, int64_t row, int column) {
  const int64_t at = row * p.in + column;
  if (p.codec == PlainCodec::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p.w)[at]);
  const int scale = p.scales[at / 32];
  // Factors below the normal numbers count as zero, as everywhere (i8 scales are those of values 64 times as large).
  if (p.codec == PlainCodec::i8) return scale > 6 ? ldexpf(static_cast<float>(static_cast<const int8_t*>(p.w)[at]), scale - 127 - 6) : 0;
  // Codes lie in blocks of 128 columns: 16-bit word 8 q + i has in nibble n column 32 n + 8 q + i; a rest lies in the stored order.
  const int block = column / 128 * 128, inside = column - block;
  const auto* codes = static_cast<const uint8_t*>(p.w) + (row * p.in + block) / 2;
  const bool whole = block + 128 <= p.in;
  const int n = inside / 32, word = inside % 32;
  const uint32_t byte = whole ? codes[2 * word + n / 2] : codes[inside / 2];
  return ldexpf(fp4(byte >> (4 * (whole ? n & 1 : inside & 1)) & 15U), scale - 127);
}

__global__ void __launch_bounds__(kTile * kTile) product(const PlainProduct p) {
  __shared__ float w[kTile][kStep + 1], x[kTile][kStep + 1];
  const int thread = static_cast<int>(threadIdx.x), r = thread % kTile, t = thread / kTile;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kTile, token0 = static_cast<int64_t>(blockIdx.y) * kTile;
  float sum = 0;
  for (int begin = 0; begin < p.in; begin += kStep) {
    for (int i = thread; i < kTile * kStep; i += kTile * kTile) {
      const int line = i / kStep, column = begin + i % kStep;
      const bool inside = column < p.in;
      w[line][i % kStep] = inside && row0 + line < p.rows ? weight_at(p, row0 + line, column) : 0;
      x[line][i % kStep] =
          inside && token0 + line < p.tokens ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[(token0 + line) * p.x_stride + column]) : 0;
    }
    __syncthreads();
    for (int k = 0; k < kStep; ++k) sum = fmaf(w[r][k], x[t][k], sum);
    __syncthreads();
  }
  if (row0 + r >= p.rows || token0 + t >= p.tokens) return;
  const int64_t at = (token0 + t) * p.y_stride + row0 + r;
  if (p.y_f32) {
    float* y = static_cast<float*>(p.y) + at;
    *y = p.accumulate ? *y + sum : sum;
  } else {
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(p.y) + at;
    *y = __float2bfloat16(p.accumulate ? __bfloat162float(*y) + sum : sum);
  }
}

}  // namespace

int gemm_plain_launch(const PlainProduct& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.rows + kTile - 1) / kTile), static_cast<unsigned>((p.tokens + kTile - 1) / kTile));
  return launch(product, {.grid = grid, .block = dim3(kTile * kTile)}, stream, p);
}

}  // namespace k3::ops::cuda
