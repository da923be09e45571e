// Merges the parts of split requests. A unit is 64 latents x 8 rows of one of them, float4 i of it rows 2 (i % 4) + {0, 1}
// of latents 16 (i / 32) + i % 32 / 4 + {0, 8}. Requests of few parts, of which a batch may have as many as there are
// workers: each group of 128 threads takes a unit and waits for nobody. Many parts: four groups share a unit.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_decode_common.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kFew = 4;

// A unit of a split request: where its rows and parts lie.
struct Unit {
  int worker, count, row0, left, group8, latents, index;
  int pair, rank;
  __device__ __forceinline__ int slot(int part) const {
    return (part == 0 ? mla_part_slot(worker, true) : mla_part_slot(worker + part, false)) * pair + rank;
  }
};

__device__ __forceinline__ Unit unit_of(const MlaDecodeLaunch& p, int block, int index) {
  const int n = p.config.row_tile, pair = p.config.pair, row_tiles = p.config.row_tiles * pair,
            heads = static_cast<int>(p.args.heads);
  const int2 record = p.parts.splits[block];
  const int request = record.x / row_tiles, row_tile = record.x % row_tiles;
  const int most = static_cast<int>(p.args.max_query_tokens);
  const int first = p.args.offsets != nullptr ? p.args.offsets[request] : request * most;
  const int tokens = p.args.offsets != nullptr ? p.args.offsets[request + 1] - first : most;
  Unit u;
  u.worker = block / pair;
  u.count = record.y;
  u.index = index;
  u.group8 = index % (n / 8);
  u.latents = index / (n / 8);
  u.row0 = first * heads + row_tile * n + 8 * u.group8;
  u.left = tokens * heads - row_tile * n - 8 * u.group8;
  u.pair = pair;
  u.rank = block % pair;
  return u;
}

__device__ __forceinline__ float lse_of(float most, float sum) { return sum > 0 ? (most + log2f(sum)) * kLn2 : -INFINITY; }

// 128 threads.
__device__ void merge_few(const MlaDecodeLaunch& p, const Unit& u) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, quad = lane % 4, n = p.config.row_tile;
  float4 ml[kFew], v[kFew];  // (m, l) of two rows; the unit's numbers
#pragma unroll
  for (int i = 0; i < kFew; ++i) {
    if (i >= u.count) break;
    const int64_t slot = u.slot(i);
    ml[i] = *reinterpret_cast<const float4*>(p.parts.sums + slot * n + 8 * u.group8 + 2 * quad);
    v[i] = reinterpret_cast<const float4*>(p.parts.acc)[slot * n * (kLatent / 4) + u.index * 128 + thread];
  }
  float2 most = {-INFINITY, -INFINITY}, sum = {0, 0};
#pragma unroll
  for (int i = 0; i < kFew; ++i) {
    if (i >= u.count) break;
    if (ml[i].y > 0) most.x = fmaxf(most.x, ml[i].x);
    if (ml[i].w > 0) most.y = fmaxf(most.y, ml[i].z);
  }
  float out[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kFew; ++i) {
    if (i >= u.count) break;
    const float2 f = {ml[i].y > 0 ? exp2f(ml[i].x - most.x) : 0, ml[i].w > 0 ? exp2f(ml[i].z - most.y) : 0};
    sum.x += f.x * ml[i].y;
    sum.y += f.y * ml[i].w;
    out[0] += f.x * v[i].x;
    out[1] += f.y * v[i].y;
    out[2] += f.x * v[i].z;
    out[3] += f.y * v[i].w;
  }
  const float2 inverse = {sum.x > 0 ? 1 / sum.x : 0, sum.y > 0 ? 1 / sum.y : 0};
  store_rows(p.args, {u.row0, u.left, -1}, out, inverse, 0, 64 * u.latents + 16 * (thread / 32), lane);
  if (p.args.lse == nullptr || u.latents != 0 || thread >= 4) return;
  if (2 * quad < u.left) p.args.lse[u.row0 + 2 * quad] = lse_of(most.x, sum.x);
  if (2 * quad + 1 < u.left) p.args.lse[u.row0 + 2 * quad + 1] = lse_of(most.y, sum.y);
}

// The whole block.
__device__ void merge_many(const MlaDecodeLaunch& p, const Unit& u, float (*weights)[8], float4 (*others)[128]) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128, lane = thread % 32, warp = thread / 32,
            n = p.config.row_tile;
  if (warp < 8) {  // one row each
    const float2* sums = p.parts.sums + 8 * u.group8 + warp;
    float most = -INFINITY;
    for (int i = lane; i < u.count; i += 32) {
      const float2 s = sums[u.slot(i) * n];
      if (s.y > 0) most = fmaxf(most, s.x);
    }
    most = warp_max(most);
    float sum = 0;
    for (int i = lane; i < u.count; i += 32) {
      const float2 s = sums[u.slot(i) * n];
      const float weight = s.y > 0 ? exp2f(s.x - most) : 0;
      weights[i][warp] = weight;
      sum += weight * s.y;
    }
    sum = warp_sum(sum);
    const float inverse = sum > 0 ? 1 / sum : 0;
    for (int i = lane; i < u.count; i += 32) weights[i][warp] *= inverse;
    if (lane == 0 && u.latents == 0 && p.args.lse != nullptr && warp < u.left) p.args.lse[u.row0 + warp] = lse_of(most, sum);
  }
  __syncthreads();
  const float4* acc = reinterpret_cast<const float4*>(p.parts.acc) + u.index * 128 + thread % 128;
  const int64_t stride = static_cast<int64_t>(n) * (kLatent / 4);
  float4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int i = group; i < u.count; i += 4) {
    const float4 v = acc[u.slot(i) * stride];
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
    const float out[4] = {sum.x, sum.y, sum.z, sum.w};
    store_rows(p.args, {u.row0, u.left, -1}, out, {1, 1}, 0, 64 * u.latents + 16 * warp, lane);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(512, 2) merge(const __grid_constant__ MlaDecodeLaunch p) {
  __shared__ float weights[kMlaMaxWorkers][8];
  __shared__ float4 others[3][128];
  __shared__ int few[kMlaMaxWorkers], many[kMlaMaxWorkers], counts[2][9];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  pdl_release();
  pdl_wait();
  const int blocks = p.config.workers * p.config.pair;
  const int2 record = thread < blocks ? p.parts.splits[thread] : int2{-1, 0};
  const bool is_few = record.x >= 0 && record.y <= kFew, is_many = record.x >= 0 && record.y > kFew;
  const unsigned ballots[2] = {__ballot_sync(0xFFFFFFFFU, is_few), __ballot_sync(0xFFFFFFFFU, is_many)};
  if (lane < 2 && warp < 8) counts[lane][warp] = __popc(lane == 0 ? ballots[0] : ballots[1]);
  __syncthreads();
  if (thread < 2) {
    int sum = 0;
    for (int i = 0; i < 9; ++i) {
      const int here = i < 8 ? counts[thread][i] : 0;
      counts[thread][i] = sum;
      sum += here;
    }
  }
  __syncthreads();
  const unsigned before = (1U << lane) - 1;
  if (is_few) few[counts[0][warp] + __popc(ballots[0] & before)] = thread;
  if (is_many) many[counts[1][warp] + __popc(ballots[1] & before)] = thread;
  __syncthreads();
  const int units = p.config.row_tile;  // row_tile / 8 groups of rows, 8 of latents
  const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  for (int item = block; item < counts[1][8] * units; item += grid) {
    const Unit u = unit_of(p, many[item / units], item % units);
    if (u.left > 0) merge_many(p, u, weights, others);  // the same for the whole block
  }
  for (int item = 4 * block + thread / 128; item < counts[0][8] * units; item += 4 * grid) {
    const Unit u = unit_of(p, few[item / units], item % units);
    if (u.left > 0) merge_few(p, u);
  }
}

}  // namespace

int mla_merge_launch(const MlaDecodeLaunch& p, cudaStream_t stream) {
  const int64_t blocks = p.config.workers * p.config.pair, tiles = p.args.batch * p.config.row_tiles * p.config.pair;
  const int64_t most = (tiles < blocks ? tiles : blocks) * p.config.row_tile, room = blocks * (p.config.halves ? 4 : 2);
  const LaunchOptions options{
      .grid = dim3(static_cast<unsigned>(most < room ? most : room)), .block = dim3(512), .dependent = true};
  return launch(merge, options, stream, p);
}

}  // namespace k3::ops::cuda
