// Dense products of few tokens, BF16: each thread streams its own fragments of the weights through shared memory.
//
// A warp has a tile of up to 16 kRowTiles rows and every P-th k-step of 32 columns. K is a sum, so its order inside a k-step
// is free: lane (g, q) takes columns 8 q .. 8 q + 7 of rows g, g + 8, ..., 16 bytes each, and the same columns of token g:
// the fragments of two mma.m16n8k16 whose K indices are renamed alike on both sides. A thread copies its fragments into
// slots of its own, kDepth steps ahead, and reads them back itself: a deep queue without registers, and no barrier. The
// weights of the first kDepth steps start before the kernel before has ended (dependent launch): nothing of them depends on
// it. A split x of one token is two columns, as if of two tokens, whose sums are added at the end.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps;
constexpr int slot_bytes(int row_tiles, int token_tiles) { return (2 * row_tiles + token_tiles) * 512; }

template <int kRowTiles, int kTokenTiles, int kDepth, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_kernel(const __grid_constant__ Rows p) {
  constexpr int kSlot = slot_bytes(kRowTiles, kTokenTiles), kHalves = 2 * kRowTiles;
  static_assert(kDepth * kSlot >= 8 * kTokenTiles * sum_pitch(kRowTiles) * 4);
  K3_SHARED_BYTES(shared, 128);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const Place place = place_of(p, 8 * kTokenTiles);
  const Tile tile = tile_at(p, place.tile);
  const int steps = p.in / kGemmKStep;
  const int mine =
      tile.end > tile.begin && place.split < steps ? (steps - place.split + place.splits - 1) / place.splits : 0;
  const int64_t first = place.split * kGemmKStep * 2 + 16 * q, stride = place.splits * kGemmKStep * 2;  // bytes of a row

  const uint8_t* w[kHalves];
  bool is_row[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int row = tile.begin + 8 * h + g;
    is_row[h] = row < tile.end;
    const RowsPart& part = p.parts[part_of(p, is_row[h] ? row : tile.begin)];
    const int local = (is_row[h] ? row : tile.begin) - part.row_begin;
    const uint8_t* base = part.w;
    if (part.up != nullptr && local % 2 == 1) base = part.up;
    w[h] = base + static_cast<int64_t>(part.up != nullptr ? local / 2 : local) * p.in * 2 + first;
  }
  const uint32_t begin = shared_address(shared) + static_cast<uint32_t>(warp * kDepth * kSlot + lane * 16);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      cp_async<16>(begin + i * kSlot + 512 * h, w[h], is_row[h] && i < mine);
      w[h] += stride;
    }
  }
  cp_async_commit();
  if (!p.release_late) pdl_release();
  pdl_wait();
  if (p.release_late) pdl_release();

  const uint8_t* x[kTokenTiles];
  bool is_token[kTokenTiles];
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    const int token = place.first_token + 8 * j + g;
    const bool is_rest = p.split && token == 1;  // of the one token
    is_token[j] = token < p.tokens || is_rest;
    x[j] = static_cast<const uint8_t*>(is_rest ? p.x_rest : blockIdx.y == 0 ? p.x : p.other_x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride * 2 + first;
  }
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      cp_async<16>(begin + i * kSlot + 512 * (kHalves + j), x[j], is_token[j] && i < mine);
      x[j] += stride;
    }
    cp_async_commit();
  }

  float acc[kRowTiles][kTokenTiles][4] = {};
  uint32_t slot = begin;
  for (int i = 0; i < mine; ++i) {
    cp_async_wait<kDepth - 1>();
    uint4 b[kTokenTiles];
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) b[j] = shared_load_16(slot + 512 * (kHalves + j));
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint4 low = shared_load_16(slot + 1024 * m), high = shared_load_16(slot + 1024 * m + 512);
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        mma_bf16(acc[m][j], {low.x, high.x, low.y, high.y}, {b[j].x, b[j].y});
        mma_bf16(acc[m][j], {low.z, high.z, low.w, high.w}, {b[j].z, b[j].w});
      }
    }
    const bool more = i + kDepth < mine;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      cp_async<16>(slot + 512 * h, w[h], is_row[h] && more);
      w[h] += stride;
    }
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      cp_async<16>(slot + 512 * (kHalves + j), x[j], is_token[j] && more);
      x[j] += stride;
    }
    cp_async_commit();
    slot += kSlot;
    if (slot == begin + kDepth * kSlot) slot = begin;
  }
  cp_async_wait<0>();
  __syncwarp();  // sums go where other lanes' copies did, of which the last are still zeros on their way
  finish<kRowTiles, kTokenTiles, true>(p, place, acc, reinterpret_cast<float*>(shared), kDepth * kSlot / 4);
}

template <int kRowTiles, int kTokenTiles, int kDepth, int kBlocks>
int go(const Rows& rows, bool dependent, cudaStream_t stream) {
  const int tiles_per_block = kGemmWarps >> rows.k_warps_log2;
  const int64_t blocks = static_cast<int64_t>((rows.tiles + tiles_per_block - 1) / tiles_per_block) * rows.token_groups
                         << rows.cluster_log2;
  return launch(stream_kernel<kRowTiles, kTokenTiles, kDepth, kBlocks>,
                LaunchOptions{.grid = dim3(static_cast<unsigned>(blocks), rows.other_x != nullptr ? 2 : 1),
                              .block = dim3(kThreads),
                              .shared_bytes = kGemmWarps * kDepth * slot_bytes(kRowTiles, kTokenTiles),
                              .cluster = 1 << rows.cluster_log2,
                              .dependent = dependent},
                stream, rows);
}

}  // namespace

int gemm_stream_launch(const Rows& rows, int row_tiles, int token_tiles, bool dependent, cudaStream_t stream) {
  // As many steps ahead as let two or three blocks share a multiprocessor; one, where that was slower.
  switch (row_tiles * 10 + token_tiles) {
    case 11: return go<1, 1, 6, 3>(rows, dependent, stream);
    case 12: return go<1, 2, 6, 2>(rows, dependent, stream);
    case 14: return go<1, 4, 4, 2>(rows, dependent, stream);
    case 21: return go<2, 1, 5, 2>(rows, dependent, stream);
    case 22: return go<2, 2, 4, 2>(rows, dependent, stream);
    case 24: return go<2, 4, 3, 2>(rows, dependent, stream);
    case 42: return go<4, 2, 5, 1>(rows, dependent, stream);
    case 44: return go<4, 4, 4, 1>(rows, dependent, stream);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace k3::ops::cuda
