// Dense products of 17 to 128 tokens, BF16: rows of the weights are the M side of wgmma, tokens its N side.
//
// A block has a tile of up to 128 rows of all parts together and a run of 64-column chunks; blocks of a cluster share the
// tile along K, so that every multiprocessor has a piece and x is read once a tile. Two warpgroups of 64 rows. All threads
// copy chunks of weights and tokens into a ring (128-byte swizzle); the weights of the first stages start before the kernel
// before has ended. The blocks' sums meet in shared memory of the cluster, added in order.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/gemm/cuda/gemm_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 32 * kGemmWarps, kRows = kWideRows, kRowBytes = 2 * kWideColumns;
constexpr int kPitch = kRows + 4;  // floats between tokens of sums: 32 banks
static_assert(kRowBytes == 128 && kThreads == 2 * kRows);

constexpr int wide_stages(int tokens) { return tokens == 128 ? 3 : tokens == 64 ? 4 : 5; }
constexpr int wide_stage_bytes(int tokens) { return (kRows + tokens) * kRowBytes; }
constexpr int wide_bytes(int tokens) { return wide_stages(tokens) * wide_stage_bytes(tokens) + 1024; }

template <int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens == 128 ? 1 : 2) wide_kernel(const __grid_constant__ Rows p) {
  constexpr int kStages = wide_stages(kTokens), kStageBytes = wide_stage_bytes(kTokens), kXRows = (kTokens + 31) / 32;
  static_assert(kTokens * kPitch * 4 <= kStages * kStageBytes);
  K3_SHARED_BYTES(shared, 1024);
  uint8_t* ring = shared + (1024 - (shared_address(shared) & 1023)) % 1024;
  const uint32_t base = shared_address(ring);
  const int cluster = 1 << p.cluster_log2, rank = static_cast<int>(blockIdx.x) & (cluster - 1);
  const Tile tile = tile_at(p, static_cast<int>(blockIdx.x) >> p.cluster_log2);
  const int chunks = p.in / kWideColumns, first = chunks * rank / cluster, count = chunks * (rank + 1) / cluster - first;

  // This thread's 16 bytes of rows thread / 8 + 32 i of a stage.
  const int line = threadIdx.x / 8, piece = threadIdx.x % 8;
  const uint32_t to = swizzle_128(static_cast<uint32_t>(line), static_cast<uint32_t>(piece * 16));
  const uint8_t* w[kRows / 32];
  bool is_row[kRows / 32];
#pragma unroll
  for (int i = 0; i < kRows / 32; ++i) {
    const int row = tile.begin + line + 32 * i;
    is_row[i] = row < tile.end;
    const RowsPart& part = p.parts[part_of(p, is_row[i] ? row : tile.begin)];
    w[i] = part.w + static_cast<int64_t>((is_row[i] ? row : tile.begin) - part.row_begin) * p.in * 2 + first * kRowBytes +
           piece * 16;
  }
  const uint8_t* x[kXRows];
  bool is_token[kXRows];
#pragma unroll
  for (int i = 0; i < kXRows; ++i) {
    const int token = line + 32 * i;
    is_token[i] = token < p.tokens;
    x[i] = static_cast<const uint8_t*>(p.x) + static_cast<int64_t>(min(token, p.tokens - 1)) * p.x_stride * 2 +
           first * kRowBytes + piece * 16;
  }
  const auto weights = [&](int chunk, int stage) {
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) {
      cp_async<16>(base + stage * kStageBytes + to + i * 32 * kRowBytes, w[i] + chunk * kRowBytes,
                   is_row[i] && chunk < count);
    }
  };
  const auto tokens = [&](int chunk, int stage) {
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      if (32 * i + line < kTokens) {
        cp_async<16>(base + stage * kStageBytes + kRows * kRowBytes + to + i * 32 * kRowBytes, x[i] + chunk * kRowBytes,
                     is_token[i] && chunk < count);
      }
    }
  };

#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) weights(s, s);
  cp_async_commit();
  pdl_release();
  pdl_wait();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    tokens(s, s);
    cp_async_commit();
  }

  const int group = threadIdx.x / 128;
  float acc[kTokens / 2] = {};
  int stage = 0;
  for (int chunk = 0; chunk < count; ++chunk) {
    cp_async_wait<kStages - 2>();
    fence_async_proxy();
    wgmma_wait<0>();
    __syncthreads();  // this chunk is there for all, and nobody reads the one before any more
    const int next = chunk + kStages - 1, next_stage = stage == 0 ? kStages - 1 : stage - 1;
    weights(next, next_stage);
    tokens(next, next_stage);
    cp_async_commit();
    const uint32_t a = base + stage * kStageBytes + group * 64 * kRowBytes,
                   b = base + stage * kStageBytes + kRows * kRowBytes;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kWideColumns / 16; ++k) {
      Wgmma<kTokens>::ss(acc, make_desc(a + 32 * k, 0, 1024, Swizzle::bytes_128),
                         make_desc(b + 32 * k, 0, 1024, Swizzle::bytes_128), true);
    }
    wgmma_commit();
    if (++stage == kStages) stage = 0;
  }
  wgmma_wait<0>();
  cp_async_wait<0>();
  __syncthreads();

  float* sums = reinterpret_cast<float*>(ring);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[(8 * j + 2 * (lane % 4) + i % 2) * kPitch + 16 * warp + lane / 4 + i / 2 * 8] = acc[4 * j + i];
  }
  if (cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const int most = min(p.tokens, kTokens) * kRows;
  for (int i = threadIdx.x + rank * kThreads; i < most; i += cluster * kThreads) {
    const int token = i / kRows, row = tile.begin + i % kRows;
    if (row >= tile.end) continue;
    const float* at = &sums[token * kPitch + i % kRows];
    float sum = 0;
    if (cluster > 1) {
      for (int c = 0; c < cluster; ++c) sum += cluster_load(cluster_map(shared_address(at), static_cast<uint32_t>(c)));
    } else {
      sum = *at;
    }
    const RowsPart& part = p.parts[part_of(p, row)];
    store(part, token, row - part.row_begin, sum);
  }
  if (cluster > 1) cluster_sync();  // others may still read this block's sums
}

template <int kTokens>
int go(const Rows& rows, bool dependent, cudaStream_t stream) {
  return launch(wide_kernel<kTokens>,
                LaunchOptions{.grid = dim3(static_cast<unsigned>(rows.tiles << rows.cluster_log2)),
                              .block = dim3(kThreads),
                              .shared_bytes = wide_bytes(kTokens),
                              .cluster = 1 << rows.cluster_log2,
                              .dependent = dependent},
                stream, rows);
}

}  // namespace

int gemm_wide_launch(const Rows& rows, bool dependent, cudaStream_t stream) {
  if (rows.tokens <= 16) return go<16>(rows, dependent, stream);
  if (rows.tokens <= 32) return go<32>(rows, dependent, stream);
  if (rows.tokens <= 64) return go<64>(rows, dependent, stream);
  return go<128>(rows, dependent, stream);
}

}  // namespace k3::ops::cuda
