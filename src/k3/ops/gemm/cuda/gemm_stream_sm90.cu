// Dense products of few tokens, BF16: each thread streams its own fragments of the weights through shared memory.
//
// A warp has a tile of up to 16 rows and every P-th k-step of 32 columns. K is a sum, so its order inside a k-step is free: lane (g, q)
// takes columns 8 q .. 8 q + 7 of rows g and g + 8, 16 bytes each, and the same columns of token g: the fragments of two
// mma.m16n8k16 whose K indices are renamed alike on both sides. A thread copies its fragments into slots of its own, kDepth steps ahead,
// and reads them back itself: a deep queue without registers, and no barrier. The weights of the first kDepth steps start before the
// kernel before has ended (dependent launch): nothing of them depends on it.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

#include <cstdlib>

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps;
constexpr int slot_bytes(int token_tiles) { return (2 + token_tiles) * 512; }

template <int kTokenTiles, int kDepth, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_kernel(const __grid_constant__ Rows p) {
  constexpr int kSlot = slot_bytes(kTokenTiles);
  static_assert(kDepth * kSlot >= 8 * kTokenTiles * kSumPitch * 4);
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const Place place = place_of(p, 8 * kTokenTiles);
  const Tile tile = tile_at(p, place.tile);
  const int steps = p.in / kGemmKStep;
  const int mine = tile.end > tile.begin && place.split < steps ? (steps - place.split + place.splits - 1) / place.splits : 0;
  const int64_t first = place.split * kGemmKStep * 2 + 16 * q, stride = place.splits * kGemmKStep * 2;  // bytes of a row

  const uint8_t* w[2];
  bool is_row[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = tile.begin + 8 * h + g;
    is_row[h] = row < tile.end;
    const RowsPart& part = p.parts[part_of(p, is_row[h] ? row : tile.begin)];
    w[h] = part.w + static_cast<int64_t>((is_row[h] ? row : tile.begin) - part.row_begin) * p.in * 2 + first;
  }
  const uint32_t begin = shared_address(shared) + static_cast<uint32_t>(warp * kDepth * kSlot + lane * 16);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    cp_async<16>(begin + i * kSlot, w[0], is_row[0] && i < mine);
    cp_async<16>(begin + i * kSlot + 512, w[1], is_row[1] && i < mine);
    w[0] += stride, w[1] += stride;
  }
  cp_async_commit();
  pdl_release();
  pdl_wait();

  const uint8_t* x[kTokenTiles];
  bool is_token[kTokenTiles];
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    const int token = place.first_token + 8 * j + g;
    is_token[j] = token < p.tokens;
    x[j] = static_cast<const uint8_t*>(p.x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride * 2 + first;
  }
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      cp_async<16>(begin + i * kSlot + 1024 + 512 * j, x[j], is_token[j] && i < mine);
      x[j] += stride;
    }
    cp_async_commit();
  }

  float acc[2][kTokenTiles][4] = {};
  uint32_t slot = begin;
  for (int i = 0; i < mine; ++i) {
    cp_async_wait<kDepth - 1>();
    const uint4 low = shared_load_16(slot), high = shared_load_16(slot + 512);
    uint4 b[kTokenTiles];
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) b[j] = shared_load_16(slot + 1024 + 512 * j);
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      mma_bf16(acc[0][j], {low.x, high.x, low.y, high.y}, {b[j].x, b[j].y});
      mma_bf16(acc[1][j], {low.z, high.z, low.w, high.w}, {b[j].z, b[j].w});
    }
    const bool more = i + kDepth < mine;
    cp_async<16>(slot, w[0], is_row[0] && more);
    cp_async<16>(slot + 512, w[1], is_row[1] && more);
    w[0] += stride, w[1] += stride;
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      cp_async<16>(slot + 1024 + 512 * j, x[j], is_token[j] && more);
      x[j] += stride;
    }
    cp_async_commit();
    slot += kSlot;
    if (slot == begin + kDepth * kSlot) slot = begin;
  }
  cp_async_wait<0>();
  finish<kTokenTiles>(p, place, acc, reinterpret_cast<float*>(shared), kDepth * kSlot / 4);
}

template <int kTokenTiles, int kDepth, int kBlocks>
int go(const Rows& rows, bool dependent, cudaStream_t stream) {
  const int tiles_per_block = kGemmWarps >> rows.k_warps_log2;
  const int64_t blocks = static_cast<int64_t>((rows.tiles + tiles_per_block - 1) / tiles_per_block) * rows.token_groups << rows.cluster_log2;
  return launch(stream_kernel<kTokenTiles, kDepth, kBlocks>,
                LaunchOptions{.grid = dim3(static_cast<unsigned>(blocks)),
                              .block = dim3(kThreads),
                              .shared_bytes = kGemmWarps * kDepth * slot_bytes(kTokenTiles),
                              .cluster = 1 << rows.cluster_log2,
                              .dependent = dependent},
                stream, rows);
}

}  // namespace

int gemm_stream_launch(const Rows& rows, int token_tiles, bool dependent, cudaStream_t stream) {
  const int v = getenv("K3_GEMM_VARIANT") ? atoi(getenv("K3_GEMM_VARIANT")) : 0;
  if (token_tiles == 1) {
    if (v == 1) return go<1, 4, 4>(rows, dependent, stream);
    if (v == 2) return go<1, 8, 2>(rows, dependent, stream);
    if (v == 3) return go<1, 16, 1>(rows, dependent, stream);
    return go<1, 6, 3>(rows, dependent, stream);
  }
  if (token_tiles == 2) {
    if (v == 1) return go<2, 4, 3>(rows, dependent, stream);
    if (v == 2) return go<2, 3, 4>(rows, dependent, stream);
    if (v == 3) return go<2, 12, 1>(rows, dependent, stream);
    return go<2, 6, 2>(rows, dependent, stream);
  }
  if (v == 1) return go<4, 3, 3>(rows, dependent, stream);
  if (v == 2) return go<4, 8, 1>(rows, dependent, stream);
  return go<4, 4, 2>(rows, dependent, stream);
}

}  // namespace k3::ops::cuda
