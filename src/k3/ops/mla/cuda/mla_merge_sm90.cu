// Merges the parts of split requests.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"
#include "k3/ops/mla/cuda/mla_split.h"

namespace k3::ops::cuda {
namespace {

// A unit is 64 latents x 8 rows of one split request: float4 `thread` of it is rows 2 (thread % 4) + {0, 1} of latents
// 16 (thread / 32) + thread % 32 / 4 + {0, 8}. Four groups of 128 threads take every fourth part.
__global__ void __launch_bounds__(512) merge(const __grid_constant__ MlaDecodeLaunch p) {
  __shared__ float weights[kMlaMaxWorkers][8];
  __shared__ float4 others[3][128];
  __shared__ __nv_bfloat16 rows[8][64 + 8];
  __shared__ int begins[kMlaMaxWorkers];
  __shared__ int counts[9];
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128, lane = thread % 32, warp = thread / 32;
  pdl_wait();
  const int n = p.config.row_tile, pair = p.config.pair, blocks = p.config.workers * pair;
  const bool split = thread < blocks && p.parts.splits[thread].x >= 0;
  const unsigned ballot = __ballot_sync(0xFFFFFFFFU, split);
  if (lane == 0 && warp < 8) counts[warp] = __popc(ballot);
  __syncthreads();
  if (thread == 0) {
    int sum = 0;
    for (int i = 0; i < 8; ++i) {
      const int here = counts[i];
      counts[i] = sum;
      sum += here;
    }
    counts[8] = sum;
  }
  __syncthreads();
  if (split) begins[counts[warp] + __popc(ballot & ((1U << lane) - 1))] = thread;
  __syncthreads();
  const int units = n;  // n / 8 groups of rows, 8 of latents
  for (int item = static_cast<int>(blockIdx.x); item < counts[8] * units; item += static_cast<int>(gridDim.x)) {
    const int block = begins[item / units], worker = block / pair, unit = item % units, latents = unit / (n / 8),
              group8 = unit % (n / 8);
    const int2 record = p.parts.splits[block];
    const int row_tiles = p.config.row_tiles * pair, request = record.x / row_tiles, row_tile = record.x % row_tiles,
              count = record.y;
    const int heads = static_cast<int>(p.args.heads);
    const int first =
        p.args.offsets != nullptr ? p.args.offsets[request] : request * static_cast<int>(p.args.max_query_tokens);
    const int tokens =
        p.args.offsets != nullptr ? p.args.offsets[request + 1] - first : static_cast<int>(p.args.max_query_tokens);
    const int row0 = first * heads + row_tile * n + 8 * group8, left = tokens * heads - row_tile * n - 8 * group8;
    if (left <= 0) continue;  // the same for the whole block
    const auto slot = [&](int part) {
      return (part == 0 ? mla_part_slot(worker, true) : mla_part_slot(worker + part, false)) * pair + block % pair;
    };
    if (warp < 8) {  // one row each
      float most = -INFINITY;
      for (int i = lane; i < count; i += 32) {
        const float2 s = p.parts.sums[slot(i) * n + 8 * group8 + warp];
        if (s.y > 0) most = fmaxf(most, s.x);
      }
      most = warp_max(most);
      float sum = 0;
      for (int i = lane; i < count; i += 32) {
        const float2 s = p.parts.sums[slot(i) * n + 8 * group8 + warp];
        const float weight = s.y > 0 ? exp2f(s.x - most) : 0;
        weights[i][warp] = weight;
        sum += weight * s.y;
      }
      sum = warp_sum(sum);
      const float inverse = sum > 0 ? 1 / sum : 0;
      for (int i = lane; i < count; i += 32) weights[i][warp] *= inverse;
      if (lane == 0 && latents == 0 && p.args.lse != nullptr && warp < left) {
        p.args.lse[row0 + warp] = sum > 0 ? (most + log2f(sum)) * kLn2 : -INFINITY;
      }
    }
    __syncthreads();
    const float4* acc = reinterpret_cast<const float4*>(p.parts.acc) + unit * 128 + thread % 128;
    const int64_t stride = static_cast<int64_t>(n) * (kLatent / 4);
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int i = group; i < count; i += 4) {
      const float4 v = acc[slot(i) * stride];
      const float2 f = *reinterpret_cast<const float2*>(&weights[i][2 * (thread % 4)]);
      sum.x += f.x * v.x;
      sum.y += f.y * v.y;
      sum.z += f.x * v.z;
      sum.w += f.y * v.w;
    }
    if (group > 0) others[group - 1][thread % 128] = sum;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const float4 v = others[i][thread];
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
      }
      const int row = 2 * (thread % 4), latent = 16 * warp + lane / 4;
      if (p.args.ol_f32) {
        float* out = static_cast<float*>(p.args.ol) + (static_cast<int64_t>(row0) + row) * kLatent + 64 * latents + latent;
        if (row < left) {
          out[0] = sum.x;
          out[8] = sum.z;
        }
        if (row + 1 < left) {
          out[kLatent] = sum.y;
          out[kLatent + 8] = sum.w;
        }
      } else {
        rows[row][latent] = __float2bfloat16(sum.x);
        rows[row + 1][latent] = __float2bfloat16(sum.y);
        rows[row][latent + 8] = __float2bfloat16(sum.z);
        rows[row + 1][latent + 8] = __float2bfloat16(sum.w);
      }
    }
    __syncthreads();
    if (!p.args.ol_f32 && thread < 64 && thread / 8 < left) {
      auto* out = static_cast<__nv_bfloat16*>(p.args.ol) + (static_cast<int64_t>(row0) + thread / 8) * kLatent +
                  64 * latents + thread % 8 * 8;
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(&rows[thread / 8][thread % 8 * 8]);
    }
  }
}

}  // namespace

int mla_merge_launch(const MlaDecodeLaunch& p, cudaStream_t stream) {
  const int64_t blocks = p.config.workers * p.config.pair, tiles = p.args.batch * p.config.row_tiles * p.config.pair;
  const int64_t most = (tiles < blocks ? tiles : blocks) * p.config.row_tile, grid = most < 4 * blocks ? most : 4 * blocks;
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(grid)), .block = dim3(512), .dependent = true};
  return launch(merge, options, stream, p);
}

}  // namespace k3::ops::cuda
