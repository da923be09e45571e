// Absorbed decode on Hopper for 96 query rows: a cluster of two blocks shares each tile, each holding half of the latent
// columns (and half of the shared key) of tile and query, so that the tile is read once, nearly three fit where two
// would, and every product has N = 96. Per tile and block:
//   partial scores^T [64, 96] over its 288 columns     a warpgroup; two of them take alternate tiles
//   the other block's 48 rows of them are sent there, those of its own are added to what comes from there
//   softmax of its own 48 rows, p to both blocks
//   ol^T [256, 96] += its columns^T x p                two warpgroups
// The reference of the softmax and its raising are those of mla_decode_sm90.cu; tiles decide about it in their order.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/mla/cuda/mla_decode_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kN = 96, kMine = kN / 2, kThreads = 640, kColumns = 5;  // kColumns: blocks of a tile, the shared key first
constexpr int kQueryBlock = kN * 128, kInbox = kMine * 64 * 4, kPBytes = kN * 128, kPHalf = kMine * 128, kMetaBytes = 256;

// Arrivals at the barriers of p and of the sums: of one thread for the warpgroup, behind a barrier of its own (racecheck: of all of them).
constexpr uint32_t kPArrivals = kWarpArrivals == 32 ? 128 : 1;

constexpr int kRing = 14, kPAt = kColumns * kQueryBlock, kInboxAt = kPAt + 2 * kPBytes, kRingAt = kInboxAt + 2 * kInbox;
constexpr int kMetaAt = kRingAt + kRing * kBlockBytes;  // [2 buffers][2 halves]: factors [48], flag
constexpr int kSumsAt = kMetaAt + 4 * kMetaBytes;       // [2 halves]: 1 / l [48]
constexpr int kFloatsAt = kSumsAt + 2 * kMetaBytes;     // reference, limit [48]; cross [2, 4, 48]
constexpr int kTargetAt = kFloatsAt + 10 * kMine * 4;
constexpr int kBarsAt = kTargetAt + 16;  // full, empty [ring]; inbox, p full, p empty [2]; query full, empty; sums full
constexpr int kBytes = kBarsAt + (2 * kRing + 9) * 8;
static_assert(kBytes <= 232448 && kPAt % 1024 == 0 && kRingAt % 1024 == 0);

struct Bars {
  uint32_t base;
  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + 8 * (kRing + i); }
  __device__ __forceinline__ uint32_t inbox(int i) const { return base + 8 * (2 * kRing + i); }
  __device__ __forceinline__ uint32_t p_full(int i) const { return base + 8 * (2 * kRing + 2 + i); }
  __device__ __forceinline__ uint32_t p_empty(int i) const { return base + 8 * (2 * kRing + 4 + i); }
  __device__ __forceinline__ uint32_t query_full() const { return base + 8 * (2 * kRing + 6); }
  __device__ __forceinline__ uint32_t query_empty() const { return base + 8 * (2 * kRing + 7); }
  __device__ __forceinline__ uint32_t sums_full() const { return base + 8 * (2 * kRing + 8); }
};

__device__ void copy_role(const MlaDecodeLaunch& p, Walk w, uint32_t shared, int rank) {
  const Bars bars{shared + kBarsAt};
  Turn<kRing> turn;
  uint32_t query_parity = 0;
  Segment s;
  const int box_tokens = p.box_tokens, boxes = kMlaTile / box_tokens,
            page_tokens = static_cast<int>(p.args.pages.page_tokens);
  const int latent0 = rank * (kLatent / 2);
  while (next_segment<1, false>(p, w, s)) {
    mbar_wait(bars.query_empty(), query_parity ^ 1);
    query_parity ^= 1;
    mbar_expect(bars.query_full(), kColumns * kQueryBlock);
    for (int i = 0; i < kColumns; ++i) {
      tma_load_2d(shared + i * kQueryBlock, &p.query, i == 0 ? kLatent : latent0 + 64 * (i - 1), s.row0, bars.query_full());
    }
    const int32_t* table = p.args.pages.table + s.request * p.args.pages.table_stride;
    Boxes next;
    const auto look_up = [&](int tile) { next.look_up(table, tile * kMlaTile, boxes, box_tokens, page_tokens, s.length); };
    look_up(s.begin);
#pragma unroll 1
    for (int tile = s.begin; tile < s.end; ++tile) {
      const Boxes at = next;
      const int left = s.length - tile * kMlaTile;
      const int taken = left >= kMlaTile ? boxes : max(0, (left + box_tokens - 1) / box_tokens);
      if (tile + 1 < s.end) look_up(tile + 1);
#pragma unroll 1
      for (int i = 0; i < kColumns; ++i) {
        copy_block<1>(p.pages, bars, turn, shared + kRingAt, i == 0 ? kLatent : latent0 + 64 * (i - 1), at, taken,
                      box_tokens * 128, 0, taken * box_tokens * 128);
      }
    }
  }
}

// Scorer `group` (0, 1) takes the tiles whose number in this block's sequence is of its parity.
__device__ void score_role(const MlaDecodeLaunch& p, Walk w, uint32_t shared, char* base, int rank, int group) {
  const Bars bars{shared + kBarsAt};
  float* floats = reinterpret_cast<float*>(base + kFloatsAt);
  const Scorer own = make_scorer(1 + group, floats, reinterpret_cast<int*>(floats + kMine), floats + 2 * kMine + group * 4 * kMine);
  const int thread = own.thread, lane = own.lane;
  const auto meta = [&](int buffer) { return reinterpret_cast<float*>(base + kMetaAt + (2 * buffer + rank) * kMetaBytes); };
  const auto flag = [&](int buffer) { return reinterpret_cast<volatile int*>(meta(buffer) + kMine); };
  const float4* inbox = reinterpret_cast<const float4*>(base + kInboxAt + group * kInbox) + thread;
  const uint32_t other = static_cast<uint32_t>(1 - rank);
  const uint32_t outbox = cluster_map(shared + kInboxAt + group * kInbox + thread * 16, other);
  const uint32_t outbox_bar = cluster_map(bars.inbox(group), other);
  const uint32_t p_mine = shared + kPAt + group * kPBytes + rank * kPHalf;
  const uint32_t p_store = p_mine + p_place(own);
  Turn<kRing> turn;
  uint32_t query_parity = 0, parity = 0;  // parity: of this scorer's next tile, for inbox, p full and p empty
  int number = 0;                         // of the tile in this block's sequence
  Segment s;
  RowSums<kMine> l;
  if (group == 1) named_barrier_arrive(4, 256);  // scorer 0 decides first
  while (next_segment<1, true>(p, w, s)) {
    const int window = uniform(s.length - s.tokens + 1), heads = static_cast<int>(p.args.heads),
              row0 = s.row_tile * kN + rank * kMine;
    const int begin = uniform(s.begin), end = uniform(s.end), length = uniform(s.length);
    sync_named(3, 256);  // limits and sums of the segment before have been read
    if (group == 0 && thread < kMine) {
      own.limits[thread] = rank * kMine + thread < s.rows ? window + (row0 + thread) / heads : 0;
    }
    l.clear();
    sync_named(3, 256);
    mbar_wait(bars.query_full(), query_parity);
    query_parity ^= 1;
    const auto process = [&](int tile) {
      float raw[kN / 2];
      Turn<kRing> at = turn;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        mbar_wait(bars.full(at.slot), at.parity);
        wgmma_fence();
        const uint64_t a = desc_128(shared + kRingAt + at.slot * kBlockBytes) + (i == 0 ? 4 * rank : 0);
        const uint64_t b = desc_128(shared + i * kQueryBlock) + (i == 0 ? 4 * rank : 0);
#pragma unroll
        for (int k = 0; k < (i == 0 ? 2 : 4); ++k) Wgmma<kN>::ss(raw, a + 2 * k, b + 2 * k, i + k > 0);
        at.advance();
      }
      wgmma_commit();
      if (thread == 0) mbar_expect(bars.inbox(group), kInbox);
      mbar_wait(bars.p_full(group), parity ^ 1);  // the other block has read what this scorer sent it two tiles ago
      wgmma_wait<0>();
      if (lane == 0) {
        mbar_arrive(bars.empty(turn.slot));  // the shared key is not a value
        if (tile + 1 == end || tile + 2 == end) mbar_arrive(bars.query_empty());
      }
      float x[kMine / 2];
#pragma unroll
      for (int j = 0; j < kMine / 8; ++j) {
        const float4 low = {raw[4 * j], raw[4 * j + 1], raw[4 * j + 2], raw[4 * j + 3]};
        const float* upper = raw + kMine / 2 + 4 * j;
        const float4 high = {upper[0], upper[1], upper[2], upper[3]};
        const float4 mine = rank == 0 ? low : high;
        cluster_store_async(outbox + j * 2048, rank == 0 ? high : low, outbox_bar);
        x[4 * j] = mine.x;
        x[4 * j + 1] = mine.y;
        x[4 * j + 2] = mine.z;
        x[4 * j + 3] = mine.w;
      }
      mbar_wait(bars.inbox(group), parity);
#pragma unroll
      for (int j = 0; j < kMine / 8; ++j) {
        const float4 v = inbox[j * 128];
        x[4 * j] += v.x;
        x[4 * j + 1] += v.y;
        x[4 * j + 2] += v.z;
        x[4 * j + 3] += v.w;
      }
      const int first_token = tile * kMlaTile, left = length - first_token;
      const bool first = tile == begin;
      mbar_wait(bars.p_empty(group), parity ^ 1);  // p, factors and flag of two tiles ago have been read, in both blocks
      named_barrier(4 + group, 256);               // the tile before has decided
      if (!first && (*flag(1 - group) & kRescale) != 0) l.scale(meta(1 - group), own);
      scale_scores<kMine>(x, own, first_token, window, first);
      const bool raise = wants_raise<kMine>(x, own, first);
      float* factor = meta(group);
      if (raise) {
        raise_reference<kMine, true>(x, own, factor, first);
        l.scale(factor, own);
      } else if (thread < kMine) {
        factor[thread] = 1;
      }
      if (thread == 0) *flag(group) = (first ? kFirst : raise ? kRescale : 0) | (tile + 1 == end ? kLast : 0);
      named_barrier_arrive(5 - group, 256);
      Turn<kRing> block = turn;
      block.advance();
      if (left < kMlaTile) clear_rows<kRing>(base + kRingAt, block, kColumns - 1, max(left, 0), thread);
      float sums[kMine / 4];
      store_p<kMine>(x, p_store, sums);
      fence_async_proxy();
      named_barrier(1 + group, 128);
      if (thread == 0) {
        const uint32_t meta_at = shared + kMetaAt + (2 * group + rank) * kMetaBytes,
                       bar = cluster_map(bars.p_full(group), other);
        cluster_copy(cluster_map(p_mine, other), p_mine, kPHalf, bar);
        cluster_copy(cluster_map(meta_at, other), meta_at, kMetaBytes, bar);
        mbar_expect(bars.p_full(group), kPHalf + kMetaBytes);
      } else if (kPArrivals > 1) {
        mbar_arrive(bars.p_full(group));
      }
      l.add(sums, lane);
      parity ^= 1;
    };
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      if ((number & 1) == group) process(tile);
      turn.advance(kColumns);
      ++number;
    }
    if (end - begin == 1 && lane == 0 && (number & 1) == group)
      mbar_arrive(bars.query_empty());  // the scorer without a tile
    // The sums of the segment, by the scorer of its last tile.
    const int last = (number - 1) & 1;
    sync_named(3, 256);
    if (group != last && (*flag(last) & kRescale) != 0) l.scale(meta(last), own);
    l.store(own);
    sync_named(3, 256);
    if (group != last) continue;
    mbar_wait(bars.p_empty(group), parity ^ 1);  // the values of both blocks are past the segment before
    const int worker = worker_of_block<2>();
    const bool whole = s.begin == 0 && s.end == s.tiles;
    float* inverse = reinterpret_cast<float*>(base + kSumsAt + rank * kMetaBytes);
    if (thread < kMine) {
      const float* all = floats + 2 * kMine;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += all[i * kMine + thread];
      inverse[thread] = sum > 0 ? 1 / sum : 0;
      const int row = rank * kMine + thread;
      if (!whole) {
        p.parts.sums[mla_part_slot(worker, s.begin == 0) * kN + row] = {own.reference[thread], sum};
      } else if (p.args.lse != nullptr && row < s.rows) {
        p.args.lse[s.row0 + row] = sum > 0 ? (own.reference[thread] + log2f(sum)) * kLn2 : -INFINITY;
      }
    }
    if (thread == 0)
      *reinterpret_cast<Target*>(base + kTargetAt) = {s.row0, s.rows, whole ? -1 : mla_part_slot(worker, s.begin == 0)};
    fence_async_proxy();
    named_barrier(1 + group, 128);
    if (thread == 0) {
      const uint32_t at = shared + kSumsAt + rank * kMetaBytes;
      cluster_copy(cluster_map(at, other), at, kMetaBytes, cluster_map(bars.sums_full(), other));
      mbar_expect(bars.sums_full(), kMetaBytes);
      if (rank == 0 && !whole && s.begin == 0) {
        p.parts.splits[worker] = {s.request * p.config.row_tiles + s.row_tile,
                                  mla_last_worker(s.at, s.tiles, w.share) - worker + 1};
      }
    } else if (kPArrivals > 1) {
      mbar_arrive(bars.sums_full());
    }
  }
  if ((number & 1) == group) {
    mbar_wait(bars.p_empty(group), parity ^ 1);
    if (thread == 0) *flag(group) = kStop;
    if (thread == 0 || kPArrivals > 1) mbar_arrive(bars.p_full(group));
  }
}

__device__ void value_role(const MlaDecodeLaunch& p, uint32_t shared, const char* base, int rank) {
  const Bars bars{shared + kBarsAt};
  const int group = uniform(static_cast<int>(threadIdx.x) / 128), lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  int slot = 1 + group, buffer = 0;  // slot: of this warpgroup's first block of the tile
  uint32_t parity = 0, sums_parity = 0;
  float acc[2][kN / 2];
  const auto later = [](int at, int by) { return at + by >= kRing ? at + by - kRing : at + by; };
#pragma unroll 1
  while (true) {
    mbar_wait(bars.p_full(buffer), parity);
    const float* meta = reinterpret_cast<const float*>(base + kMetaAt + 2 * buffer * kMetaBytes);
    const int mine = *reinterpret_cast<const volatile int*>(meta + rank * (kMetaBytes / 4) + kMine);
    const int theirs = *reinterpret_cast<const volatile int*>(meta + (1 - rank) * (kMetaBytes / 4) + kMine);
    const int flag = uniform(mine | (theirs & kRescale));
    if ((flag & kStop) != 0) return;
    if ((flag & kRescale) != 0) {
      rescale<2, kN>(acc, [&](int j) {
        return *reinterpret_cast<const float2*>(meta + j / 6 * (kMetaBytes / 4) + j % 6 * 8 + 2 * quad);
      });
    }
    const uint64_t b = desc_128(shared + kPAt + buffer * kPBytes);
    int at = slot;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint64_t a = desc_128(shared + kRingAt + at * kBlockBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        Wgmma<kN>::template ss<1, 0>(acc[i], a + 128 * k, b + 2 * k, k > 0 || (flag & kFirst) == 0);
      wgmma_commit();
      at = later(at, 2);
    }
    wgmma_wait<1>();
    if (lane == 0) mbar_arrive(bars.empty(slot));
    slot = later(slot, 2);
    wgmma_wait<0>();
    if (lane == 0) mbar_arrive(bars.empty(slot));
    slot = later(slot, 3);
    warp_arrive_pair(bars.p_empty(buffer), lane);  // flag and factors have been read
    parity ^= static_cast<uint32_t>(buffer);
    buffer ^= 1;
    if ((flag & kLast) == 0) continue;
    mbar_wait(bars.sums_full(), sums_parity);
    sums_parity ^= 1;
    const Target target = *reinterpret_cast<const Target*>(base + kTargetAt);
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    if (target.slot >= 0) {
      float4* part = reinterpret_cast<float4*>(p.parts.acc) + static_cast<int64_t>(target.slot) * (kN * kLatent / 4) +
                     threadIdx.x % 128;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
          part[((4 * rank + 2 * i + group) * (kN / 8) + j) * 128] = {acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2],
                                                                     acc[i][4 * j + 3]};
        }
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const float2 inv = *reinterpret_cast<const float2*>(base + kSumsAt + j / 6 * kMetaBytes + (j % 6 * 8 + 2 * quad) * 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_rows(p.args, target, acc[i] + 4 * j, inv, 8 * j, 64 * (4 * rank + 2 * i + group) + 16 * warp, lane);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) decode(const __grid_constant__ MlaDecodeLaunch p) {
  K3_SHARED_MEMORY(memory);
  const uint32_t shared = shared_address(memory);
  const Bars bars{shared + kBarsAt};
  if (threadIdx.x == 0) {
    if ((shared & 1023) != 0) __trap();
    for (int i = 0; i < kRing; ++i) {
      mbar_init(bars.full(i), 1);
      mbar_init(bars.empty(i), 4);
    }
    for (int i = 0; i < 2; ++i) {
      mbar_init(bars.inbox(i), 1);
      mbar_init(bars.p_full(i), kPArrivals);
      mbar_init(bars.p_empty(i), 16 * kWarpArrivals);
    }
    mbar_init(bars.query_full(), 1);
    mbar_init(bars.query_empty(), 8);
    mbar_init(bars.sums_full(), kPArrivals);
    mbar_init_fence();
  }
  pdl_wait();
  pdl_release();
  if (threadIdx.x == 0 && blockIdx.x % 2 == 0) p.parts.splits[blockIdx.x / 2] = {-1, 0};
  const Walk w = find_share<2>(p, reinterpret_cast<int*>(memory + kFloatsAt));
  cluster_sync();  // nothing is sent to a barrier that is not there yet
  const int role = uniform(static_cast<int>(threadIdx.x) / 128), rank = static_cast<int>(blockIdx.x) % 2;
  if (role == 4) {
    fewer_registers<40>();
    if (threadIdx.x == 512) copy_role(p, w, shared, rank);
  } else if (role >= 2) {
    fewer_registers<88>();
    score_role(p, w, shared, memory, rank, role - 2);
  } else {
    more_registers<128>();
    value_role(p, shared, memory, rank);
  }
  __syncwarp();
  cluster_sync();  // a block stays as long as the other may write to it
}

}  // namespace

int mla_decode_halves_launch(const MlaDecodeLaunch& p, cudaStream_t stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(p.config.workers * 2)),
                              .block = dim3(kThreads),
                              .shared_bytes = kBytes,
                              .cluster = 2,
                              .dependent = true};
  return launch(decode, options, stream, p);
}

}  // namespace k3::ops::cuda
