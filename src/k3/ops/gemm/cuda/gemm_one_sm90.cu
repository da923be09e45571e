// Dense products of one token, BF16: rows of the weights come by bulk copies into a ring, the first of them before the kernel
// before has ended; eight warps share the columns of each group of rows.
//
// Few rows: every block has an equal part of them, and all are under way at once. Many: blocks take the next group as they
// finish, because multiprocessors do not get the same share of the memory's bandwidth. Rows lie an odd multiple of 64 bytes
// apart, so that lane (g, q) = (lane / 4, lane % 4) reads 16 bytes of row g, columns 8 q .. 8 q + 7 of a step of 32, without
// conflicts: the fragments of two mma.m16n8k16 whose K indices are renamed alike on both sides. Another warp adds the parts
// of the eight in order.
//
// A split x, two rows of BF16 that add up to it, is two columns of the same products: their N side is eight, of which one row takes
// one. With a site in front, x is the norm of the running sum and of what the kernel before adds to it; every block computes it
// anew, which takes less than a launch. The last block that has read the sum writes the new one.
#include "k3/ops/cuda/beside.cuh"
#include "k3/ops/cuda/once.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/gemm/cuda/gemm_one_words.cuh"
#include "k3/ops/gemm/cuda/gemm_site.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kConsumers = kGemmWarps, kProducer = kConsumers, kFinisher = kConsumers + 1, kThreads = 32 * (kConsumers + 2);
constexpr int kColumnThreads = 32 * kConsumers;
constexpr int kSums = 16, kEnd = -1;

struct State {
  uint64_t full[kOneGroups], used[kOneGroups], summed[kSums], taken[kSums];
  int rows_of[kSums];  // first row | rows << 24 of a group, or kEnd
  float sums[kSums][kConsumers][8];
  SiteShared site;
};

__device__ __forceinline__ uint32_t row_bytes(const Rows& p) { return (static_cast<uint32_t>(p.in) * 2 + 127) & ~127U; }  // of x in shared memory
__device__ __forceinline__ uint32_t at(const uint64_t& bar) { return shared_address(&bar); }

// Copies groups of rows, as long as there are any.
__device__ __forceinline__ void produce(const Rows& p, State& s, uint32_t ring) {
  const int lane = threadIdx.x % 32, grid = gridDim.x, height = p.one.height, groups = p.one.groups;
  const Tile tile = tile_at(p, blockIdx.x);
  const int all = (p.rows + height - 1) / height, first_claim = grid * groups;
  int taken = 0;
  const auto copy = [&](int first, int end) {  // rows [first, first + height) below end
    const int stage = taken % groups, entry = taken % kSums, rows = min(height, end - first);
    if (taken >= groups) mbar_wait(at(s.used[stage]), static_cast<uint32_t>(taken / groups & 1) ^ 1);
    if (taken >= kSums) mbar_wait(at(s.taken[entry]), static_cast<uint32_t>(taken / kSums & 1) ^ 1);
    if (lane == 0) {
      s.rows_of[entry] = first | rows << 24;
      mbar_expect(at(s.full[stage]), static_cast<uint32_t>(rows * p.in * 2));
    }
    __syncwarp();
    if (lane < rows) {
      bulk_load_once(ring + static_cast<uint32_t>((stage * height + lane) * p.one.pitch), weight_row(p, first + lane), static_cast<uint32_t>(p.in * 2),
                     at(s.full[stage]));
    }
    ++taken;
  };
  if (p.one.claims == nullptr) {
    int row = tile.begin;
    for (; row < tile.end && taken < groups; row += height) copy(row, tile.end);
    if (row + lane < min(tile.end, row + height)) prefetch_l2(weight_row(p, row + lane), static_cast<uint32_t>(p.in * 2));
    if (!p.release_late) pdl_release();
    pdl_wait();
    if (p.release_late) pdl_release();
    for (; row < tile.end; row += height) copy(row, tile.end);
  } else {
    for (int i = blockIdx.x; i < min(all, first_claim); i += grid) copy(i * height, p.rows);
    if (!p.release_late) pdl_release();
    pdl_wait();
    if (p.release_late) pdl_release();
    for (int now = -1;;) {
      int claim = 0;
      if (lane == 0) claim = static_cast<int>(atomicAdd(p.one.claims, 1U));  // for the group after this one
      if (now >= 0) copy(now * height, p.rows);
      now = first_claim + __shfl_sync(0xFFFFFFFFU, claim, 0);
      if (now >= all) {  // every block claims once too often; then nobody claims any more
        if (lane == 0 && now == max(all, first_claim) + grid - 1) *p.one.claims = 0;
        break;
      }
    }
  }
  const int stage = taken % groups, entry = taken % kSums;
  if (taken >= groups) mbar_wait(at(s.used[stage]), static_cast<uint32_t>(taken / groups & 1) ^ 1);
  if (taken >= kSums) mbar_wait(at(s.taken[entry]), static_cast<uint32_t>(taken / kSums & 1) ^ 1);
  if (lane == 0) {
    s.rows_of[entry] = kEnd;
    mbar_arrive(at(s.full[stage]));
  }
}

// This warp's columns of all groups.
__device__ __forceinline__ void consume(const Rows& p, State& s, const uint8_t* x, const uint8_t* ring, int x_columns) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4, groups = p.one.groups;
  const int steps = p.in / kGemmKStep, mine = warp < steps ? (steps - warp + kConsumers - 1) / kConsumers : 0;
  constexpr int kStride = kConsumers * kGemmKStep * 2, kBatch = 5;
  const uint8_t* const x_mine = x + (g == 1 && x_columns == 2 ? row_bytes(p) : 0) + warp * kGemmKStep * 2 + 16 * q;
#pragma unroll 1
  for (int taken = 0;; ++taken) {
    const int stage = taken % groups, entry = taken % kSums;
    mbar_wait(at(s.full[stage]), static_cast<uint32_t>(taken / groups & 1));
    const int what = s.rows_of[entry];
    if (what == kEnd) {
      warp_arrive(at(s.summed[entry]), lane);
      break;
    }
    const bool is_row = g < what >> 24;
    const uint8_t* const w = ring + (stage * p.one.height + g) * p.one.pitch + warp * kGemmKStep * 2 + 16 * q;
    float acc[2][4] = {};
#pragma unroll 1
    for (int begin = 0; begin < mine; begin += kBatch) {  // loads first: they take longer than the products
      uint4 a[kBatch], b[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool is = begin + i < mine;
        a[i] = is && is_row ? *reinterpret_cast<const uint4*>(w + (begin + i) * kStride) : uint4{0, 0, 0, 0};
        b[i] = is && g < x_columns ? *reinterpret_cast<const uint4*>(x_mine + (begin + i) * kStride) : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        mma_bf16(acc[0], {a[i].x, 0, a[i].y, 0}, {b[i].x, b[i].y});
        mma_bf16(acc[1], {a[i].z, 0, a[i].w, 0}, {b[i].z, b[i].w});
      }
    }
    warp_arrive(at(s.used[stage]), lane);
    if (q == 0) s.sums[entry][warp][g] = (acc[0][0] + acc[1][0]) + (acc[0][1] + acc[1][1]);  // the second column: zeros, or of the rest
    warp_arrive(at(s.summed[entry]), lane);
  }
}

// Adds the warps' parts of every group and stores them.
__device__ __forceinline__ void finish_groups(const Rows& p, State& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int taken = 0;; ++taken) {
    const int entry = taken % kSums;
    mbar_wait(at(s.summed[entry]), static_cast<uint32_t>(taken / kSums & 1));
    const int what = s.rows_of[entry];
    if (what == kEnd) break;
    const int first = what & 0xFFFFFF, rows = what >> 24;
    float total = 0;
    if (lane < rows) {
#pragma unroll
      for (int k = 0; k < kConsumers; ++k) total += s.sums[entry][k][lane];
    }
    warp_arrive(at(s.taken[entry]), lane);
    const float next = __shfl_down_sync(0xFFFFFFFFU, total, 1);
    if (lane >= rows) continue;
    const RowsPart& part = p.parts[part_of(p, first + lane)];
    const int local = first + lane - part.row_begin;
    if (part.up == nullptr) {
      store(part, 0, local, total);
    } else if (local % 2 == 0) {  // groups have whole pairs
      store(part, 0, local / 2, glu_of(p.glu, total, next));
    }
  }
}

template <bool kSite>
__global__ void __launch_bounds__(kThreads, 2) one_kernel(const __grid_constant__ Rows p) {
  K3_SHARED_BYTES(shared, 128);
  __shared__ __align__(8) State s;
  const int tid = threadIdx.x, warp = tid / 32;
  const uint32_t x_at = shared_address(shared), ring = x_at + row_bytes(p) * (p.split ? 2 : 1);
  if (tid == kProducer * 32) {
    for (int i = 0; i < p.one.groups; ++i) mbar_init(at(s.full[i]), 1), mbar_init(at(s.used[i]), kConsumers * kWarpArrivals);
    for (int i = 0; i < kSums; ++i) mbar_init(at(s.summed[i]), kConsumers * kWarpArrivals), mbar_init(at(s.taken[i]), kWarpArrivals);
    mbar_init_fence();
  }
  __syncthreads();
  if (warp == kProducer) return produce(p, s, ring);
  SiteRows<kColumnThreads> rows;
  if (kSite && warp < kConsumers) rows.load(p);  // older than the kernel before
  if (!p.release_late) pdl_release();
  pdl_wait();
  if (p.release_late) pdl_release();
  if (warp == kFinisher) return finish_groups(p, s);
  uint32_t arrived = 0;
  if constexpr (kSite) {
    rows.norm_sum(p, s.site, x_at, p.split ? x_at + row_bytes(p) : 0);
    if (tid == 0) arrived = atomicInc(p.site.counter, gridDim.x - 1);  // the block has read the sum: a barrier ago
  } else {
    for (int i = tid; i < p.in / 8; i += kColumnThreads) {
      shared_store_16(x_at + 16 * i, load_16(static_cast<const uint16_t*>(p.x) + 8 * i));
      if (p.split) shared_store_16(x_at + row_bytes(p) + 16 * i, load_16(static_cast<const uint16_t*>(p.x_rest) + 8 * i));
    }
  }
  named_barrier(1, kColumnThreads);
  consume(p, s, shared, shared + (ring - x_at), p.split ? 2 : 1);
  if constexpr (kSite) {
    if (tid == 0) s.site.last = arrived == gridDim.x - 1;
    named_barrier(1, kColumnThreads);
    if (s.site.last) rows.store_sum(p);
  }
}

}  // namespace

int gemm_one_launch(const Rows& rows, bool dependent, cudaStream_t stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(rows.tiles)),
                              .block = dim3(kThreads),
                              .shared_bytes = (rows.in * 2 + 127) / 128 * 128 * (rows.split ? 2 : 1) + rows.one.ring_bytes,
                              .dependent = dependent};
  return rows.site.delta != nullptr ? launch_beside(one_kernel<true>, options, stream, rows) : launch_beside(one_kernel<false>, options, stream, rows);
}

}  // namespace k3::ops::cuda
