// Absorbed decode on Hopper: heads as the N side of wgmma.
//
// A block holds N query rows (token, head) of one request and walks over tiles of 64 cached tokens:
//   scores^T [64, N] = tile [64, 576] x query^T
//     warpgroup 2, FP32 in registers; then p = 2^(scores - reference) goes to shared memory
//   ol^T [512, N] += tile[:, :512]^T [512, 64] x p
//     warpgroups 0 and 1, every other 64 rows each, FP32 in registers
//
// One thread fills a ring of [64 tokens, 64 columns] blocks through the copy engine. A block of the ring is released by
// whoever used it last.
//
// More than 64 rows are shared by a cluster of two blocks, which walk over the same tiles: each copies half of every block
// of the ring into both (96 rows in one block would need 192 accumulators a thread and 110 KB for the query).
//
// The reference of a row is the largest score of its first tile; it is raised (and ol, l rescaled) only when a score exceeds
// it by kSlack (in powers of two). Any reference gives the same quotient ol / l; the largest score is not needed in every
// tile.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/mla/cuda/mla_decode_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 512, kColumns = kTileColumns;

template <int N>
constexpr int kRing = N == 64   ? 17
                      : N == 48 ? 20
                      : N == 32 ? 22
                                : 25;

template <int N>
struct Layout {
  static constexpr int kQuery = 0, kP = kColumns * N * 128, kRingAt = kP + N * 128;
  static constexpr int kFloats = kRingAt + kRing<N> * kBlockBytes;  // reference, factor, limit [N]; cross [4, N]
  static constexpr int kBars = kFloats + 7 * N * 4;  // full, empty [ring]; query full, empty; p full, empty; sums full
  static constexpr int kFlag = kBars + (2 * kRing<N> + 5) * 8;
  static constexpr int kBytes = kFlag + 32;
};
static_assert(Layout<64>::kBytes <= 232448 && Layout<48>::kBytes <= 232448);
static_assert(Layout<32>::kBytes <= 232448 && Layout<16>::kBytes <= 232448);

template <int N>
struct Bars {
  uint32_t base;
  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + 8 * (kRing<N> + i); }
  __device__ __forceinline__ uint32_t query_full() const { return base + 16 * kRing<N>; }
  __device__ __forceinline__ uint32_t query_empty() const { return base + 16 * kRing<N> + 8; }
  __device__ __forceinline__ uint32_t p_full() const { return base + 16 * kRing<N> + 16; }
  __device__ __forceinline__ uint32_t p_empty() const { return base + 16 * kRing<N> + 24; }
  __device__ __forceinline__ uint32_t sums_full() const { return base + 16 * kRing<N> + 32; }
};

// ---- the copies: one thread ----

template <int N, int kPair>
__device__ void copy_role(const MlaDecodeLaunch& p, Walk w, uint32_t shared) {
  const Bars<N> bars{shared + Layout<N>::kBars};
  Turn<kRing<N>> turn;
  uint32_t query_parity = 0;
  Segment s;
  // This block's boxes of a tile: all, or half of them.
  const int rank = static_cast<int>(blockIdx.x) % kPair, box_tokens = p.box_tokens, boxes = kMlaTile / box_tokens / kPair;
  const int page_tokens = static_cast<int>(p.args.pages.page_tokens), box_bytes = box_tokens * 128;
  while (next_segment<kPair, false>(p, w, s)) {
    mbar_wait(bars.query_empty(), query_parity ^ 1);
    query_parity ^= 1;
    mbar_expect(bars.query_full(), kColumns * N * 128);
    for (int k = 0; k < kColumns; ++k) tma_load_2d(shared + k * N * 128, &p.query, 64 * k, s.row0, bars.query_full());
    const int32_t* table = p.args.pages.table + s.request * p.args.pages.table_stride;
    Boxes next;
    const auto look_up = [&](int tile) {
      next.look_up(table, tile * kMlaTile + rank * boxes * box_tokens, boxes, box_tokens, page_tokens, s.length);
    };
    look_up(s.begin);
#pragma unroll 1
    for (int tile = s.begin; tile < s.end; ++tile) {
      const Boxes at = next;
      const int left = s.length - tile * kMlaTile;
      const int all = left >= kMlaTile ? boxes * kPair : max(0, (left + box_tokens - 1) / box_tokens);
      const int mine = min(boxes, all - rank * boxes);
      if (tile + 1 < s.end) look_up(tile + 1);
#pragma unroll 1
      for (int i = 0; i < kColumns; ++i) {
        copy_block<kPair>(p.pages, bars, turn, shared + Layout<N>::kRingAt, i == 0 ? kLatent : 64 * (i - 1), at, mine,
                          box_bytes, rank * boxes * box_bytes, all * box_bytes);
      }
    }
  }
}

// ---- scores and softmax: one warpgroup ----

template <int N, int kPair>
__device__ void score_role(const MlaDecodeLaunch& p, Walk w, uint32_t shared, char* base) {
  const Bars<N> bars{shared + Layout<N>::kBars};
  float* floats = reinterpret_cast<float*>(base + Layout<N>::kFloats);
  float* factor = floats + N;
  const Scorer own = make_scorer(1, floats, reinterpret_cast<int*>(floats + 2 * N), floats + 3 * N);
  const int thread = own.thread, lane = own.lane;
  int* flag = reinterpret_cast<int*>(base + Layout<N>::kFlag);
  Target* target = reinterpret_cast<Target*>(base + Layout<N>::kFlag + 16);
  Softmax<N> softmax{own, factor, flag, shared + Layout<N>::kP + p_place(own)};
  Turn<kRing<N>> turn;
  uint32_t query_parity = 0;
  Segment s;
  while (uniform(next_segment<kPair, false>(p, w, s)) != 0) {
    const int window = uniform(s.length - s.tokens + 1), heads = static_cast<int>(p.args.heads),
              row0 = s.row_tile * p.config.row_tile;
    const int begin = uniform(s.begin), end = uniform(s.end), length = uniform(s.length);
    own.meet();  // limits, cross of the segment before have been read
    if (thread < N) own.limits[thread] = thread < s.rows ? window + (row0 + thread) / heads : 0;
    softmax.sums.clear();
    own.meet();
    mbar_wait(bars.query_full(), query_parity);
    query_parity ^= 1;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      float x[N / 2];
      tile_scores<N>(x, turn, bars, shared + Layout<N>::kRingAt, shared);
      release_block<kPair>(bars.empty(turn.slot), lane);  // the shared key is not a value
      if (lane == 0 && tile + 1 == end) mbar_arrive(bars.query_empty());
      softmax.take(x, tile, window, length, tile == begin, tile + 1 == end ? kLast : 0, base + Layout<N>::kRingAt, turn, bars);
      turn.advance(kColumns);
    }
    // The sums of the segment.
    own.meet();  // cross has been read
    softmax.sums.store(own);
    own.meet();
    mbar_wait(bars.p_empty(),
              softmax.parity ^ 1);  // factor has been read; the parity is not moved on: the next tile waits for the same
    const bool whole = s.begin == 0 && s.end == s.tiles;
    if (thread < N) {
      const float* mine = own.cross + thread;
      const float sum = mine[0] + mine[N] + mine[2 * N] + mine[3 * N];
      factor[thread] = sum > 0 ? 1 / sum : 0;
      if (!whole) {
        p.parts.sums[part_slot<kPair>(s.begin == 0) * N + thread] = {own.reference[thread], sum};
      } else if (p.args.lse != nullptr && thread < s.rows) {
        p.args.lse[s.row0 + thread] = sum > 0 ? (own.reference[thread] + log2f(sum)) * kLn2 : -INFINITY;
      }
    }
    if (thread == 0) *target = {s.row0, s.rows, whole ? -1 : part_slot<kPair>(s.begin == 0)};
    warp_arrive(bars.sums_full(), lane);
    if (thread == 0 && !whole && s.begin == 0) {
      p.parts.splits[blockIdx.x] = {s.request * p.config.row_tiles * kPair + s.row_tile,
                                    mla_last_worker(s.at, s.tiles, w.share) - worker_of_block<kPair>() + 1};
    }
  }
  mbar_wait(bars.p_empty(), softmax.parity ^ 1);
  if (thread == 0) *flag = kStop;
  warp_arrive(bars.p_full(), lane);
}

// ---- values: two warpgroups ----

// acc^T (64 latents x 8 heads of a warpgroup's tile) to rows of `out`.
template <int N>
__device__ __forceinline__ void store_whole(const MlaDecodeLaunch& p, const Target& s, float (&acc)[4][N / 2],
                                            const float* inverse, int group, int warp, int lane) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const float2 inv = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) store_rows(p.args, s, acc[i] + 4 * j, inv, 8 * j, 64 * (2 * i + group) + 16 * warp, lane);
  }
}

template <int N, int kPair>
__device__ void value_role(const MlaDecodeLaunch& p, uint32_t shared, const char* base) {
  const Bars<N> bars{shared + Layout<N>::kBars};
  const float* factor = reinterpret_cast<const float*>(base + Layout<N>::kFloats) + N;
  const int group = uniform(static_cast<int>(threadIdx.x) / 128), lane = static_cast<int>(threadIdx.x) % 32;
  int slot = 1 + group;  // of this warpgroup's first block of the tile
  uint32_t p_parity = 0, sums_parity = 0;
  float acc[4][N / 2];
#pragma unroll 1
  while (true) {
    mbar_wait(bars.p_full(), p_parity);
    p_parity ^= 1;
    const int flag = uniform(*reinterpret_cast<const volatile int*>(base + Layout<N>::kFlag));
    if ((flag & kStop) != 0) return;
    if ((flag & kRescale) != 0) {
      rescale<4, N>(acc, [&](int j) { return *reinterpret_cast<const float2*>(factor + 8 * j + 2 * (lane % 4)); });
    }
    add_values<N, kRing<N>>(acc, slot, shared + Layout<N>::kRingAt, shared + Layout<N>::kP, (flag & kFirst) != 0,
                            [&](int read) { release_block<kPair>(bars.empty(read), lane); });
    warp_arrive(bars.p_empty(), lane);  // flag, factor and target have been read
    if ((flag & kLast) == 0) continue;
    mbar_wait(bars.sums_full(), sums_parity);
    sums_parity ^= 1;
    const Target target = *reinterpret_cast<const Target*>(base + Layout<N>::kFlag + 16);
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    if (target.slot < 0) {
      store_whole<N>(p, target, acc, factor, group, warp, lane);
    } else {
      float4* part =
          reinterpret_cast<float4*>(p.parts.acc) + static_cast<int64_t>(target.slot) * (N * kLatent / 4) + threadIdx.x % 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
          part[((2 * i + group) * (N / 8) + j) * 128] = {acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2],
                                                         acc[i][4 * j + 3]};
        }
      }
    }
  }
}

template <int N, int kPair>
__global__ void __launch_bounds__(kThreads, 1) decode(const __grid_constant__ MlaDecodeLaunch p) {
  K3_SHARED_MEMORY(memory);
  const uint32_t shared = shared_address(memory);
  const Bars<N> bars{shared + Layout<N>::kBars};
  if (threadIdx.x == 0) {
    if ((shared & 1023) != 0) __trap();
    for (int i = 0; i < kRing<N>; ++i) {
      mbar_init(bars.full(i), 1);
      mbar_init(bars.empty(i), 4 * kPair);
    }
    mbar_init(bars.query_full(), 1);
    mbar_init(bars.query_empty(), 4);
    mbar_init(bars.p_full(), 4 * kWarpArrivals);
    mbar_init(bars.p_empty(), 8 * kWarpArrivals);
    mbar_init(bars.sums_full(), 4 * kWarpArrivals);
    mbar_init_fence();
  }
  pdl_wait();
  pdl_release();
  if (threadIdx.x == 0) p.parts.splits[blockIdx.x] = {-1, 0};
  const Walk w = find_share<kPair>(p, reinterpret_cast<int*>(memory + Layout<N>::kFloats));
  if constexpr (kPair == 2) cluster_sync();  // nothing is sent to a barrier that is not there yet
  const int role = uniform(static_cast<int>(threadIdx.x) / 128);
  // Registers: 512 a lane for the four warps of a quarter of the multiprocessor.
  if (role == 3) {
    fewer_registers<(N == 64 ? 64 : 88)>();
    if (threadIdx.x == 384) copy_role<N, kPair>(p, w, shared);
  } else if (role == 2) {
    fewer_registers<(N == 64 ? 112 : 128)>();
    score_role<N, kPair>(p, w, static_cast<uint32_t>(uniform(static_cast<int>(shared))), memory);
  } else {
    more_registers<(N == 64 ? 168 : 144)>();
    value_role<N, kPair>(p, static_cast<uint32_t>(uniform(static_cast<int>(shared))), memory);
  }
  if constexpr (kPair == 2) {
    __syncwarp();
    cluster_sync();  // a block stays as long as the other may write to it
  }
}

template <int N, int kPair>
int start(const MlaDecodeLaunch& p, cudaStream_t stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(p.config.workers * kPair)),
                              .block = dim3(kThreads),
                              .shared_bytes = Layout<N>::kBytes,
                              .cluster = kPair,
                              .dependent = true};
  return launch(decode<N, kPair>, options, stream, p);
}

}  // namespace

int mla_decode_sm90_launch(const MlaDecodeLaunch& p, cudaStream_t stream) {
  if (p.config.pair == 2) return start<64, 2>(p, stream);
  switch (p.config.row_tile) {
    case 16: return start<16, 1>(p, stream);
    case 32: return start<32, 1>(p, stream);
    case 48: return start<48, 1>(p, stream);
    default: return start<64, 1>(p, stream);
  }
}

}  // namespace k3::ops::cuda
