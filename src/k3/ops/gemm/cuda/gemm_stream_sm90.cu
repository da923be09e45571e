// Dense products of few tokens, BF16: each thread streams its own fragments of the weights through shared memory.
//
// A warp has a tile of up to 16 rows and every P-th k-step of 32 columns. K is a sum, so its order inside a k-step is free: lane (g, q)
// takes columns 8 q .. 8 q + 7 of rows g and g + 8, 16 bytes each, and the same columns of token g: the fragments of two
// mma.m16n8k16 whose K indices are renamed alike on both sides. A thread copies its fragments into slots of its own, kDepth steps ahead,
// and reads them back itself: a deep queue without registers, and no barrier. The first kDepth steps start before the kernel before has
// ended (dependent launch): nothing of them depends on it. Tokens are read kAhead steps ahead.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

#include <cstdlib>

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps;
constexpr int stream_bytes(int depth) { return kThreads * depth * 32; }

template <int kTokenTiles, int kDepth, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_kernel(const __grid_constant__ Rows p) {
  static_assert(kDepth % kAhead == 0 && 32 * kDepth * 32 >= 8 * kTokenTiles * kSumPitch * 4);
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const Place place = place_of(p, 8 * kTokenTiles);
  const Tile tile = tile_at(p, place.tile);
  const int steps = p.in / kGemmKStep;
  const int mine = tile.end > tile.begin && place.split < steps ? (steps - place.split + place.splits - 1) / place.splits : 0;
  const int stride = place.splits * kGemmKStep * 2;  // bytes of a row between this warp's steps

  const uint8_t* from[2];
  bool valid[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = tile.begin + 8 * h + g;
    valid[h] = row < tile.end;
    const RowsPart& part = p.parts[part_of(p, valid[h] ? row : tile.begin)];
    from[h] = part.w + static_cast<int64_t>((valid[h] ? row : tile.begin) - part.row_begin) * p.in * 2 + place.split * kGemmKStep * 2 + 16 * q;
  }
  const uint32_t slots = shared_address(shared) + static_cast<uint32_t>(warp * kDepth * 1024 + lane * 16);
  const auto fetch = [&](int i, uint32_t slot) {
    const bool take = i < mine;
    cp_async<16>(slot, from[0] + static_cast<int64_t>(i) * stride, take && valid[0]);
    cp_async<16>(slot + 512, from[1] + static_cast<int64_t>(i) * stride, take && valid[1]);
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (i < mine) fetch(i, slots + i * 1024);
    cp_async_commit();
  }
  pdl_release();
  pdl_wait();

  const uint8_t* x[kTokenTiles];
  bool is_token[kTokenTiles];
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    const int token = place.first_token + 8 * j + g;
    is_token[j] = token < p.tokens;
    x[j] = static_cast<const uint8_t*>(p.x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride * 2 + place.split * kGemmKStep * 2 + 16 * q;
  }
  uint4 ahead[kAhead][kTokenTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) ahead[i][j] = load_16(x[j] + static_cast<int64_t>(i) * stride, is_token[j] && i < mine);
  }

  float acc[2][kTokenTiles][4] = {};
  for (int first = 0; first < mine; first += kAhead) {
#pragma unroll
    for (int d = 0; d < kAhead; ++d) {
      const int i = first + d;
      if (i < mine) {
        const uint32_t slot = slots + (static_cast<uint32_t>(first) % kDepth + d) * 1024;
        cp_async_wait<kDepth - 1>();
        const uint4 low = shared_load_16(slot), high = shared_load_16(slot + 512);
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const uint4 b = ahead[d][j];
          mma_bf16(acc[0][j], {low.x, high.x, low.y, high.y}, {b.x, b.y});
          mma_bf16(acc[1][j], {low.z, high.z, low.w, high.w}, {b.z, b.w});
        }
        if (i + kDepth < mine) fetch(i + kDepth, slot);
        cp_async_commit();
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          ahead[d][j] = load_16(x[j] + static_cast<int64_t>(i + kAhead) * stride, is_token[j] && i + kAhead < mine);
        }
      }
    }
  }
  cp_async_wait<0>();
  finish<kTokenTiles>(p, place, acc, reinterpret_cast<float*>(shared), kDepth * 256);
}

template <int kTokenTiles, int kDepth, int kAhead, int kBlocks>
int go(const Rows& rows, bool dependent, cudaStream_t stream) {
  const int tiles_per_block = kGemmWarps >> rows.k_warps_log2;
  const int64_t blocks = static_cast<int64_t>((rows.tiles + tiles_per_block - 1) / tiles_per_block) * rows.token_groups << rows.cluster_log2;
  return launch(stream_kernel<kTokenTiles, kDepth, kAhead, kBlocks>,
                LaunchOptions{.grid = dim3(static_cast<unsigned>(blocks)),
                              .block = dim3(kThreads),
                              .shared_bytes = stream_bytes(kDepth),
                              .cluster = 1 << rows.cluster_log2,
                              .dependent = dependent},
                stream, rows);
}

}  // namespace

int gemm_stream_launch(const Rows& rows, int token_tiles, bool dependent, cudaStream_t stream) {
  const int v = getenv("K3_GEMM_VARIANT") ? atoi(getenv("K3_GEMM_VARIANT")) : 0;
  if (token_tiles == 1) {
    if (v == 1) return go<1, 4, 4, 3>(rows, dependent, stream);
    if (v == 2) return go<1, 12, 4, 2>(rows, dependent, stream);
    return go<1, 8, 8, 3>(rows, dependent, stream);
  }
  if (token_tiles == 2) {
    if (v == 1) return go<2, 4, 2, 3>(rows, dependent, stream);
    if (v == 2) return go<2, 12, 4, 2>(rows, dependent, stream);
    return go<2, 8, 4, 2>(rows, dependent, stream);
  }
  if (v == 1) return go<4, 6, 2, 2>(rows, dependent, stream);
  return go<4, 8, 2, 2>(rows, dependent, stream);
}

}  // namespace k3::ops::cuda
