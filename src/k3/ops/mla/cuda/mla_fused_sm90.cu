// An MLA layer between its products, for one sequence with up to 32 query rows, in one launch: a block a multiprocessor,
// which meet twice (grid_sync.cuh).
//   the keys' half of kv_b, a unit of a head and 64 latents a block   the absorbed query, to memory
//   - all meet -
//   tiles of 64 cached tokens, as in mla_decode_sm90.cu                parts (m, l, acc), to memory
//   - all meet -
//   parts of a head merged, 16 columns of its output a unit
// What does not depend on the kernels before (the keys' half, the first cached tokens) is asked for before they are waited
// for, the other half of kv_b before the second meeting. The rows of this step are normalised by the block whose tile they
// lie in, which writes them to their page and over what it copied from there.
#include "k3/ops/cuda/grid_sync.cuh"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/mla/cuda/mla_decode_tile.cuh"
#include "k3/ops/mla/cuda/mla_fused_products.cuh"
#include "k3/ops/mla/cuda/mla_rows.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 512;

// ---- the copies: one thread ----

template <int N>
__device__ void ask_for_keys(const MlaFusedLaunch& p, uint32_t shared, const FusedBars<N>& bars) {
  const int units = static_cast<int>(p.args.heads) * 8, first = static_cast<int>(blockIdx.x) * p.config.units;
  const int count = min(p.config.units, units - first);
  if (count <= 0) return;
  mbar_expect(bars.keys(), count * kUnitBytes);
  for (int i = 0; i < count; ++i) {
    const int unit = first + i;
    tma_load_2d(shared + i * kUnitBytes, &p.keys, unit % 8 * 64, unit / 8 * kHeadRows, bars.keys());
  }
}

template <int N>
__device__ void copy_role(const MlaFusedLaunch& p, const FusedWork& w, uint32_t shared, const FusedBars<N>& bars) {
  Turn<FusedLayout<N>::kRing> turn;
  const int box_tokens = p.box_tokens, boxes = kMlaTile / box_tokens,
            page_tokens = static_cast<int>(p.args.pages.page_tokens);
  Boxes next;
  next.look_up(p.args.pages.table, w.begin * kMlaTile, boxes, box_tokens, page_tokens, w.length);
#pragma unroll 1
  for (int tile = w.begin; tile < w.end; ++tile) {
    const Boxes at = next;
    const int left = w.length - tile * kMlaTile;
    const int taken = left >= kMlaTile ? boxes : max(0, (left + box_tokens - 1) / box_tokens);
    if (tile + 1 < w.end) next.look_up(p.args.pages.table, (tile + 1) * kMlaTile, boxes, box_tokens, page_tokens, w.length);
#pragma unroll 1
    for (int i = 0; i < kFusedColumns; ++i) {
      copy_block<1>(p.pages, bars, turn, shared + FusedLayout<N>::kRingAt, i == 0 ? kLatent : 64 * (i - 1), at, taken,
                    box_tokens * 128, 0, taken * box_tokens * 128);
    }
  }
}

// ---- the absorbed query: loaded by the warpgroups of scores and values when a fourth has seen that it is there ----

constexpr int kQueryBarrier = 3, kQueryThreads = 384;

__device__ void meet_role(const MlaFusedLaunch& p) {
  pdl_wait();
  if (threadIdx.x % 32 == 0)
    grid_wait(p.counters, (static_cast<int>(p.args.heads) * 8 + p.config.units - 1) / p.config.units);
  __syncwarp();
  named_barrier_arrive(kQueryBarrier, kQueryThreads + 32);
}

template <int N>
__device__ void load_query(const MlaFusedLaunch& p, const FusedWork& w, char* base) {
  constexpr int kChunks = kLatentRow / 8, kEach = N * kChunks / kQueryThreads;
  static_assert(N * kChunks % kQueryThreads == 0);
  named_barrier(kQueryBarrier, kQueryThreads + 32);
  uint4 v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kQueryThreads;
    v[i] = load_16(static_cast<const uint4*>(p.query_rows) + at, at < w.rows * kChunks);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kQueryThreads, row = at / kChunks, chunk = at % kChunks;
    *reinterpret_cast<uint4*>(base + chunk / 8 * (N * 128) + swizzle_128(row, chunk % 8 * 16)) = v[i];
  }
  fence_async_proxy();
}

// ---- scores and softmax: one warpgroup ----

// The rows of this step in this block's tiles: normalised, to their pages, and over what was copied of them with a tile. A
// warp has up to two.
struct NewRows {
  LatentRow rows[2];
  int first, last;  // of the block

  __device__ __forceinline__ NewRows(const MlaFusedLaunch& p, const FusedWork& w, const Scorer& s)
      : first(max(w.length - w.tokens, w.begin * kMlaTile)), last(min(w.length, w.end * kMlaTile)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + s.warp + 4 * i;
      if (row >= last) continue;
      rows[i] = normalised_row(p.args.append, row - (w.length - w.tokens), s.lane);
      store_row(page_row(p.args.pages, 0, row), rows[i], s.lane);
    }
  }

  template <int N>
  __device__ __forceinline__ void patch(int tile, char* ring, Turn<FusedLayout<N>::kRing> block, const FusedBars<N>& bars,
                                        const Scorer& s) const {
    int slots[kFusedColumns];
#pragma unroll
    for (int i = 0; i < kFusedColumns; ++i) {
      mbar_wait(bars.full(block.slot), block.parity);
      slots[i] = block.slot;
      block.advance();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + s.warp + 4 * i, in_tile = row - tile * kMlaTile;
      if (row >= last || in_tile < 0 || in_tile >= kMlaTile) continue;
      *reinterpret_cast<uint32_t*>(ring + slots[0] * kBlockBytes + swizzle_128(in_tile, s.lane * 4)) = rows[i].key;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int column = 0; column < 4; ++column) {  // the slot is chosen by the lane
          if (s.lane / 8 != column) continue;
          *reinterpret_cast<uint4*>(ring + slots[1 + 4 * half + column] * kBlockBytes +
                                    swizzle_128(in_tile, s.lane % 8 * 16)) = rows[i].latents[half];
        }
      }
    }
    fence_async_proxy();
    s.meet();
  }
};

template <int N>
__device__ void score_role(const MlaFusedLaunch& p, const FusedWork& w, uint32_t shared, char* base,
                           const FusedBars<N>& bars) {
  constexpr int kRing = FusedLayout<N>::kRing;
  float* floats = reinterpret_cast<float*>(base + FusedLayout<N>::kFloats);
  float* factor = floats + N;
  const Scorer s = make_scorer(1, floats, reinterpret_cast<int*>(floats + 2 * N), floats + 3 * N);
  int* flag = reinterpret_cast<int*>(base + FusedLayout<N>::kFlag);
  char* ring = base + FusedLayout<N>::kRingAt;
  Softmax<N> softmax{s, factor, flag, shared + FusedLayout<N>::kP + p_place(s)};
  const int window = w.length - w.tokens + 1, heads = static_cast<int>(p.args.heads);
  if (s.thread < N) s.limits[s.thread] = s.thread < w.rows ? window + s.thread / heads : 0;
  pdl_wait();
  const NewRows news(p, w, s);
  Turn<kRing> turn;
  int patched = w.begin;  // tiles before it are as they should be
  for (Turn<kRing> at; patched < w.end && (patched - w.begin + 1) * kFusedColumns <= kRing;
       ++patched, at.advance(kFusedColumns)) {
    if ((patched + 1) * kMlaTile >= window) news.patch<N>(patched, ring, at, bars, s);
  }
  softmax.sums.clear();
  load_query<N>(p, w, base);
  named_barrier(kQueryBarrier, kQueryThreads);
#pragma unroll 1
  for (int tile = w.begin; tile < w.end; ++tile) {
    if (tile >= patched && (tile + 1) * kMlaTile >= window) news.patch<N>(tile, ring, turn, bars, s);
    float x[N / 2];
    tile_scores<N>(x, turn, bars, shared + FusedLayout<N>::kRingAt, shared);
    if (s.lane == 0) mbar_arrive(bars.empty(turn.slot));  // the shared key is not a value
    softmax.take(x, tile, window, w.length, tile == w.begin, 0, ring, turn, bars);
    turn.advance(kFusedColumns);
  }
  s.meet();  // cross has been read
  softmax.sums.store(s);
  s.meet();
  if (s.thread < w.rows) {
    const float* l = s.cross + s.thread;
    p.sums[blockIdx.x * N + s.thread] = {s.reference[s.thread], l[0] + l[N] + l[2 * N] + l[3 * N]};
  }
}

// ---- values: the warpgroups that absorbed ----

// acc of a row in the order of merge_head: latents 16 b + i and + 8 side by side.
template <int N>
__device__ void value_role(const MlaFusedLaunch& p, const FusedWork& w, uint32_t shared, char* base,
                           const FusedBars<N>& bars) {
  constexpr int kRing = FusedLayout<N>::kRing;
  load_query<N>(p, w, base);
  named_barrier_arrive(kQueryBarrier, kQueryThreads);
  const float* factor = reinterpret_cast<const float*>(base + FusedLayout<N>::kFloats) + N;
  const int group = uniform(static_cast<int>(threadIdx.x) / 128), warp = static_cast<int>(threadIdx.x) / 32 % 4,
            lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  int slot = 1 + group;  // of this warpgroup's first block of the tile
  uint32_t parity = 0;
  float acc[4][N / 2];
#pragma unroll 1
  for (int tile = w.begin; tile < w.end; ++tile) {
    mbar_wait(bars.p_full(), parity);
    parity ^= 1;
    const int flag = uniform(*reinterpret_cast<const volatile int*>(base + FusedLayout<N>::kFlag));
    if ((flag & kRescale) != 0) {
      rescale<4, N>(acc, [&](int j) { return *reinterpret_cast<const float2*>(factor + 8 * j + 2 * quad); });
    }
    add_values<N, kRing>(acc, slot, shared + FusedLayout<N>::kRingAt, shared + FusedLayout<N>::kP, (flag & kFirst) != 0,
                         [&](int read) {
                           if (lane == 0) mbar_arrive(bars.empty(read));
                         });
    warp_arrive(bars.p_empty(), lane);
  }
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = 8 * j + 2 * quad + c;
      if (row >= w.rows) continue;
      float* part = p.acc + (static_cast<int64_t>(blockIdx.x) * N + row) * kLatent + 16 * warp + lane / 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float2*>(part + 64 * (2 * i + group)) = {acc[i][4 * j + c], acc[i][4 * j + 2 + c]};
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads, 1) fused(const __grid_constant__ MlaFusedLaunch p) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = static_cast<uint32_t>(uniform(static_cast<int>(shared_address(memory))));
  const FusedBars<N> bars{shared + FusedLayout<N>::kBars};
  const int role = uniform(static_cast<int>(threadIdx.x) / 128);
  if (threadIdx.x == 384) {
    if ((shared & 1023) != 0) __trap();
    for (int i = 0; i < FusedLayout<N>::kRing; ++i) {
      mbar_init(bars.full(i), 1);
      mbar_init(bars.empty(i), 4);
    }
    mbar_init(bars.keys(), 1);
    mbar_init(bars.p_full(), 4 * kWarpArrivals);
    mbar_init(bars.p_empty(), 8 * kWarpArrivals);
    mbar_init_fence();
    ask_for_keys<N>(p, shared, bars);
  }
  __syncthreads();
  pdl_release();
  const FusedWork w = fused_work(p);
  if (role == 3) {
    if (threadIdx.x == 384) copy_role<N>(p, w, shared, bars);
    if (threadIdx.x / 32 == 13 && w.has_tiles()) meet_role(p);
    __syncwarp();
  } else if (role == 2) {
    if (w.has_tiles()) score_role<N>(p, w, shared, memory, bars);
  } else {
    pdl_wait();
    absorb_role<N>(p, w, shared, bars);
    if (w.has_tiles()) value_role<N>(p, w, shared, memory, bars);
  }
  __syncthreads();
  if (threadIdx.x == 0 && w.has_tiles()) grid_arrive(p.counters + 1);
  if (w.unit < w.unit_end) finish<N>(p, w, memory);
  if (threadIdx.x == 0) grid_leave(p.counters, 2, p.counters + 2);
}

template <int N>
int start(const MlaFusedLaunch& p, cudaStream_t stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(p.config.blocks)),
                              .block = dim3(kThreads),
                              .shared_bytes = FusedLayout<N>::kBytes,
                              .dependent = true};
  return launch(fused<N>, options, stream, p);
}

}  // namespace

int mla_fused_launch(const MlaFusedLaunch& p, cudaStream_t stream) {
  return p.config.row_tile == 16 ? start<16>(p, stream) : start<32>(p, stream);
}

}  // namespace k3::ops::cuda
