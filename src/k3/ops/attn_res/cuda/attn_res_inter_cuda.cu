// The inter-block part of all sites of a block: s = t . x / rms(x), m1 = max s, d1 = sum e^(s - m1), y1 = sum e^(s - m1) x.
// Two launches. `scores`: a block takes 8 tokens, its warps split the columns; the rows are the A operand of products with
// the queries, which are split into two BF16 halves. `mix`: a block a token; weights in two halves are the A operand, rows
// the B operand. Both read fragments straight from memory, 16 bytes a lane: an order of columns inside a product is free as
// long as both operands share it.
#include <cmath>

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = 8, kTokens = 8, kSites = 24, kRows = 8;
constexpr int kSiteStride = 12, kRowStride = kSites * kSiteStride,
              kPartial = kRows * kRowStride;  // of partial scores: no bank conflicts

struct Weights {  // of a token: pairs of blocks, high and low halves
  uint4 half[2][kSites];
};
static_assert(sizeof(Weights) == 768);  // attn_res_inter_workspace_bytes

__device__ __forceinline__ uint32_t pack_low(float a, float b, uint32_t high) {  // what `high` lost
  return pack_bf16(a - low_bf16(high), b - high_bf16(high));
}
__device__ __forceinline__ const void* bank_row(const AttnResInter& a, int block, int64_t token, int64_t column) {
  return static_cast<const char*>(a.bank) + 2 * (a.bank_block_stride * block + a.bank_stride * token + column);
}

__global__ void __launch_bounds__(kThreads, 2) scores(const __grid_constant__ AttnResInter a) {
  extern __shared__ __align__(16) float shared[];
  float* squares_of = shared + kWarps * kPartial;  // [warp][block][token]
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = lane / 4, quad = lane % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens, token = first + group;
  dependent_begin();
  float dots[kRows / 2][3][4] = {}, squares[kRows] = {};
  for (int64_t column = warp * 32 + quad * 8; column < a.hidden; column += kWarps * 32) {
    uint4 x[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j)
      x[j] = j < a.blocks && token < a.tokens ? load_once(bank_row(a, j, token, column)) : uint4{};
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const int site = n * 8 + group;
      float4 t[2] = {};
      if (site < a.sites) {
        const float4* from = reinterpret_cast<const float4*>(a.query + site * a.hidden + column);
        t[0] = __ldg(from), t[1] = __ldg(from + 1);
      }
      const uint32_t high[4] = {pack_bf16(t[0].x, t[0].y), pack_bf16(t[0].z, t[0].w), pack_bf16(t[1].x, t[1].y),
                                pack_bf16(t[1].z, t[1].w)};
      const uint32_t low[4] = {pack_low(t[0].x, t[0].y, high[0]), pack_low(t[0].z, t[0].w, high[1]),
                               pack_low(t[1].x, t[1].y, high[2]), pack_low(t[1].z, t[1].w, high[3])};
#pragma unroll
      for (int m = 0; m < kRows / 2; ++m) {
        const uint4 &even = x[2 * m], &odd = x[2 * m + 1];
        mma_bf16(dots[m][n], {even.x, odd.x, even.y, odd.y}, {high[0], high[1]});
        mma_bf16(dots[m][n], {even.z, odd.z, even.w, odd.w}, {high[2], high[3]});
        mma_bf16(dots[m][n], {even.x, odd.x, even.y, odd.y}, {low[0], low[1]});
        mma_bf16(dots[m][n], {even.z, odd.z, even.w, odd.w}, {low[2], low[3]});
      }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      float y[8];
      unpack8(x[j], y);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[j] = fmaf(y[i], y[i], squares[j]);
    }
  }
  float* part = shared + warp * kPartial;
#pragma unroll
  for (int m = 0; m < kRows / 2; ++m) {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        part[(2 * m + c / 2) * kRowStride + (n * 8 + 2 * quad + c % 2) * kSiteStride + group] = dots[m][n][c];
    }
  }
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    squares[j] += __shfl_xor_sync(0xFFFFFFFFU, squares[j], 1);
    squares[j] += __shfl_xor_sync(0xFFFFFFFFU, squares[j], 2);
    if (quad == 0) squares_of[(warp * kRows + j) * kTokens + group] = squares[j];
  }
  __syncthreads();
  const int site = threadIdx.x / kTokens, which = threadIdx.x % kTokens;
  const int64_t at = first + which;
  if (site >= kSites || at >= a.tokens) return;
  float s[kRows], top = -INFINITY, sum = 0;
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    float dot = 0, square = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      dot += shared[w * kPartial + j * kRowStride + site * kSiteStride + which];
      square += squares_of[(w * kRows + j) * kTokens + which];
    }
    s[j] = j < a.blocks ? dot * rsqrtf(square / static_cast<float>(a.hidden) + a.eps) : -INFINITY;
    top = fmaxf(top, s[j]);
  }
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    s[j] = j < a.blocks ? exp2_approx((s[j] - top) * 1.44269504F) : 0;
    sum += s[j];
  }
  const uint4 high = pack8(s);
  Weights& w = static_cast<Weights*>(a.workspace)[at];
  w.half[0][site] = high;
  w.half[1][site] = {pack_low(s[0], s[1], high.x), pack_low(s[2], s[3], high.y), pack_low(s[4], s[5], high.z),
                     pack_low(s[6], s[7], high.w)};
  if (site < a.sites) {
    a.m1[site * a.tokens + at] = top;
    a.d1[site * a.tokens + at] = sum;
  }
}

// Columns of a warp's product: lane (group, quad) loads 8 of rows 2 quad and 2 quad + 1. Column 2 i of the product is taken
// from the first 32, column 2 i + 1 from the last 32, so that what a quad stores at a time is contiguous.
constexpr int kUnit = 64;

__global__ void __launch_bounds__(kThreads, 2) mix(const __grid_constant__ AttnResInter a) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = lane / 4, quad = lane % 4;
  const int64_t token = blockIdx.x;
  dependent_begin();
  const uint32_t* w = reinterpret_cast<const uint32_t*>(static_cast<const Weights*>(a.workspace) + token);
  const auto weight = [&](int half, int site) { return w[(half * kSites + site) * 4 + quad]; };
  const uint32_t first_sites[4] = {weight(0, group), weight(0, group + 8), weight(1, group), weight(1, group + 8)};
  const uint32_t last_sites[4] = {weight(0, group + 16), 0, weight(1, group + 16), 0};
  const int units = static_cast<int>(a.hidden) / kUnit;
  const auto load = [&](int unit, int odd) {
    const int j = 2 * quad + odd;
    return unit < units && j < a.blocks ? load_once(bank_row(a, j, token, unit * kUnit + 32 * (group % 2) + 8 * (group / 2)))
                                        : uint4{};
  };
  uint4 next[2] = {load(warp, 0), load(warp, 1)};
  for (int unit = warp; unit < units; unit += kWarps) {
    const uint32_t even[4] = {next[0].x, next[0].y, next[0].z, next[0].w},
                   odd[4] = {next[1].x, next[1].y, next[1].z, next[1].w};
    next[0] = load(unit + kWarps, 0), next[1] = load(unit + kWarps, 1);
    float y[3][2][8];  // sites group, + 8, + 16; columns 8 quad and 32 + 8 quad
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t rows = __byte_perm(even[i / 2], odd[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
      float first[4] = {}, last[4] = {};
      mma_bf16(first, first_sites, {rows, rows});  // both halves of the weights meet the same rows
      mma_bf16(last, last_sites, {rows, rows});
      y[0][0][i] = first[0], y[0][1][i] = first[1], y[1][0][i] = first[2], y[1][1][i] = first[3];
      y[2][0][i] = last[0], y[2][1][i] = last[1];
    }
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const int site = n * 8 + group;
      if (site >= a.sites) continue;
      uint4* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.y1) + a.y1_site_stride * site +
                                           a.y1_stride * token + unit * kUnit + 8 * quad);
      to[0] = pack8(y[n][0]);
      to[4] = pack8(y[n][1]);
    }
  }
}

}  // namespace

int attn_res_inter_launch(const AttnResInter& a, void* stream) {
  auto* s = static_cast<cudaStream_t>(stream);
  constexpr int kShared = (kWarps * kPartial + kWarps * kRows * kTokens) * 4;
  LaunchOptions options{.grid = dim3(static_cast<unsigned>((a.tokens + kTokens - 1) / kTokens)),
                        .block = dim3(kThreads),
                        .shared_bytes = kShared};
  const int code = launch(scores, options, s, a);
  if (code != 0) return code;
  options = {.grid = dim3(static_cast<unsigned>(a.tokens)), .block = dim3(kThreads)};
  return launch(mix, options, s, a);
}

}  // namespace k3::ops::cuda
