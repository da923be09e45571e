// The inter-block part of all sites of a block: s = t . x / rms(x), m1 = max s, d1 = sum e^(s - m1), y1 = sum e^(s - m1) x.
// A cluster of 8 blocks takes two tokens at a time; each block owns an eighth of the columns and keeps that part of the
// queries in registers as BF16 pairs (high and low half), so products with the rows have 16 bits. Scores are summed over the
// cluster through distributed shared memory; then every block mixes its columns, again by products, with weights in two
// halves.
#include <cmath>

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = 8, kCluster = 8, kTokens = 2, kStages = 3;
constexpr int kSites = 24, kRows = 8, kScores = kSites * kRows,
              kSums = kScores + kRows;  // scores and sums of squares of a token
constexpr int kSteps = 7;               // of 16 columns, a warp: 8 * 7 * 16 = 896

__device__ __forceinline__ uint32_t pack_low(float a, float b, uint32_t high) {  // what `high` lost
  return pack_bf16(a - low_bf16(high), b - high_bf16(high));
}

struct Shared {
  float part[kTokens][kWarps][kSums];
  float box[2][kCluster][kTokens * kSums];
  uint32_t weights[kTokens][2][kSites][kRows / 2];  // high, low halves
  uint64_t full[kStages];
};

struct Queries {
  uint32_t high[kSteps][6], low[kSteps][6];  // fragments of sites 0-15 (4) and 16-23 (2)
};

__device__ __forceinline__ void load_queries(const AttnResInter& a, int64_t first, int steps, int lane, Queries& q) {
  const int site = lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int f = 0; f < 6; ++f) {
      const int s = f < 4 ? site + f % 2 * 8 : site + 16, k = column + (f < 4 ? f / 2 : f - 4) * 8;
      float x = 0, y = 0;
      if (i < steps && s < a.sites) {
        const float2 two = __ldg(reinterpret_cast<const float2*>(a.query + s * a.hidden + first + 16 * i + k));
        x = two.x, y = two.y;
      }
      q.high[i][f] = pack_bf16(x, y);
      q.low[i][f] = pack_low(x, y, q.high[i][f]);
    }
  }
}

// Partial scores and sums of squares of one token over this warp's columns.
__device__ __forceinline__ void score(const Queries& q, uint32_t rows, int pitch, int steps, int lane, float* out) {
  float low_sites[4] = {}, high_sites[4] = {}, squares = 0;
  const uint32_t address = rows + (lane % 8) * pitch + (lane / 8 % 2) * 16;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i >= steps) break;
    uint32_t b[2];
    ldmatrix_x2(b, address + 32 * i);
    mma_bf16(low_sites, {q.high[i][0], q.high[i][1], q.high[i][2], q.high[i][3]}, b);
    mma_bf16(high_sites, {q.high[i][4], 0, q.high[i][5], 0}, b);
    mma_bf16(low_sites, {q.low[i][0], q.low[i][1], q.low[i][2], q.low[i][3]}, b);
    mma_bf16(high_sites, {q.low[i][4], 0, q.low[i][5], 0}, b);
#pragma unroll
    for (int j = 0; j < 2; ++j)
      squares = fmaf(low_bf16(b[j]), low_bf16(b[j]), fmaf(high_bf16(b[j]), high_bf16(b[j]), squares));
  }
  squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 1);
  squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 2);
  const int site = lane / 4, row = lane % 4 * 2;
  const auto put = [&](int s, float x, float y) { *reinterpret_cast<float2*>(out + s * kRows + row) = {x, y}; };
  put(site, low_sites[0], low_sites[1]);
  put(site + 8, low_sites[2], low_sites[3]);
  put(site + 16, high_sites[0], high_sites[1]);
  if (lane % 4 == 0) out[kScores + lane / 4] = squares;
}

// Thread (site, row) of a token: its weight, in two halves; the first block writes m1 and d1.
__device__ __forceinline__ void weigh(const AttnResInter& a, Shared& shared, int parity, int token, int64_t at,
                                      bool writes) {
  const int site = threadIdx.x / kRows, row = threadIdx.x % kRows;
  if (site >= kSites) return;  // whole warps
  float dot = 0, squares = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    dot += shared.box[parity][r][token * kSums + threadIdx.x];
    squares += shared.box[parity][r][token * kSums + kScores + row];
  }
  const float s = row < a.blocks ? dot * rsqrtf(squares / static_cast<float>(a.hidden) + a.eps) : -INFINITY;
  float top = s;
#pragma unroll
  for (int i = 1; i < kRows; i *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, i));
  const float e = row < a.blocks ? exp2_approx((s - top) * 1.44269504F) : 0;
  float sum = e;
#pragma unroll
  for (int i = 1; i < kRows; i *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
  const float other = __shfl_down_sync(0xFFFFFFFFU, e, 1);
  if (row % 2 == 0) {
    const uint32_t high = pack_bf16(e, other);
    shared.weights[token][0][site][row / 2] = high;
    shared.weights[token][1][site][row / 2] = pack_low(e, other, high);
  }
  if (writes && row == 0 && site < a.sites && at < a.tokens) {
    a.m1[site * a.tokens + at] = top;
    a.d1[site * a.tokens + at] = sum;
  }
}

// y1 of one token, this warp's columns.
__device__ __forceinline__ void mix(const Shared& shared, int token, uint32_t rows, uint8_t* out, int pitch, int pairs,
                                    int warp, int lane) {
  const int site = lane / 4, two = lane % 4;
  const auto& w = shared.weights[token];
  const uint32_t low_sites[4] = {w[0][site][two], w[0][site + 8][two], w[1][site][two], w[1][site + 8][two]};
  const uint32_t high_sites[4] = {w[0][site + 16][two], 0, w[1][site + 16][two], 0};
  const auto put = [&](int s, int column, float x, float y) {
    *reinterpret_cast<uint32_t*>(out + s * pitch + 2 * column) = pack_bf16(x, y);
  };
  for (int p = warp; p < pairs; p += kWarps) {  // of 16 columns
    uint32_t x[2];
    ldmatrix_x2_trans(x, rows + (lane % 8) * pitch + 32 * p + (lane / 8 % 2) * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t b[2] = {x[half], x[half]};  // both halves of the weights meet the same rows
      float low[4] = {}, high[4] = {};
      mma_bf16(low, low_sites, b);
      mma_bf16(high, high_sites, b);
      const int column = 16 * p + 8 * half + 2 * two;
      put(site, column, low[0], low[1]);
      put(site + 8, column, low[2], low[3]);
      put(site + 16, column, high[0], high[1]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) inter(const __grid_constant__ AttnResInter a) {
  extern __shared__ __align__(128) uint8_t rows_and_out[];
  __shared__ Shared shared;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid & 31;
  const int rank = static_cast<int>(cluster_rank());
  const int64_t slice = a.hidden / kCluster, first = slice * rank, clusters = gridDim.x / kCluster;
  const int pitch = static_cast<int>(slice) * 2 + 16, steps_all = static_cast<int>(slice / 16);
  const int first_step = min(warp * kSteps, steps_all), steps = min(kSteps, steps_all - first_step);
  const int stage_bytes = kTokens * kRows * pitch;
  uint8_t* out = rows_and_out + kStages * stage_bytes;  // [kTokens][kSites] rows
  const uint32_t rows = shared_address(rows_and_out);
  Queries queries;
  load_queries(a, first + 16 * first_step, steps, lane, queries);
  for (int i = tid; i < kStages * stage_bytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(rows_and_out)[i] = {};  // rows that do not exist: 0 times 0
  fence_async_proxy();
  if (tid == 0) {
    for (int i = 0; i < kStages; ++i) mbar_init(shared_address(&shared.full[i]), 1);
    mbar_init_fence();
  }
  cluster_sync();

  const auto load = [&](int64_t pair, int stage) {  // one thread
    const int64_t count = min(static_cast<int64_t>(kTokens), a.tokens - kTokens * pair);
    if (count <= 0) return;
    const uint32_t bar = shared_address(&shared.full[stage]), bytes = static_cast<uint32_t>(slice) * 2;
    mbar_expect(bar, static_cast<uint32_t>(count) * a.blocks * bytes);
    for (int t = 0; t < count; ++t) {
      for (int j = 0; j < a.blocks; ++j) {
        const char* from =
            static_cast<const char*>(a.bank) + 2 * (a.bank_block_stride * j + a.bank_stride * (kTokens * pair + t) + first);
        bulk_load(rows + stage * stage_bytes + (t * kRows + j) * pitch, from, bytes, bar);
      }
    }
  };
  int64_t pair = blockIdx.x / kCluster;
  if (tid == 0) {
    for (int i = 0; i < kStages; ++i) load(pair + i * clusters, i);
  }
  int stage = 0, parity = 0;
  uint32_t phase = 0;
  for (; kTokens * pair < a.tokens; pair += clusters) {
    const uint32_t at = rows + stage * stage_bytes;
    mbar_wait(shared_address(&shared.full[stage]), phase);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      score(queries, at + t * kRows * pitch + 32 * first_step, pitch, steps, lane, shared.part[t][warp]);
    __syncthreads();
    for (int i = tid; i < kTokens * kSums; i += kThreads) {
      const int t = i / kSums, k = i % kSums;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += shared.part[t][w][k];
      const uint32_t box = shared_address(&shared.box[parity][rank][i]);
#pragma unroll
      for (int r = 0; r < kCluster; ++r) cluster_store(cluster_map(box, r), sum);
    }
    __syncwarp();
    cluster_sync();
    for (int t = 0; t < kTokens; ++t) weigh(a, shared, parity, t, kTokens * pair + t, rank == 0);
    if (warp < kTokens) bulk_wait_read<0>();  // the outputs of the pair before have left
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      mix(shared, t, at + t * kRows * pitch, out + t * kSites * pitch, pitch, steps_all, warp, lane);
    fence_async_proxy();
    __syncthreads();
    if (warp < kTokens && lane < a.sites && kTokens * pair + warp < a.tokens) {
      char* to = static_cast<char*>(a.y1) + 2 * (a.y1_site_stride * lane + a.y1_stride * (kTokens * pair + warp) + first);
      bulk_store(to, shared_address(out + (warp * kSites + lane) * pitch), static_cast<uint32_t>(slice) * 2);
      bulk_commit();
    }
    if (tid == kThreads - 1) load(pair + kStages * clusters, stage);
    if (++stage == kStages) stage = 0, phase ^= 1;
    parity ^= 1;
  }
  if (warp < kTokens) bulk_wait<0>();
  __syncwarp();
  cluster_sync();
}

}  // namespace

int attn_res_inter_launch(const AttnResInter& a, int clusters, int shared_bytes, void* stream) {
  LaunchOptions options{.grid = dim3(clusters * kCluster), .block = dim3(kThreads), .shared_bytes = shared_bytes};
  options.cluster = kCluster;
  return launch(inter, options, static_cast<cudaStream_t>(stream), a);
}

}  // namespace k3::ops::cuda
