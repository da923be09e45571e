// Grouped products of BF16 experts, in clusters of two blocks. The two share the weights of two row tiles of an expert; of an
// odd number of tiles, the last one's rows are what they share, for two tiles of weights.
#include "k3/ops/cuda/multicast.cuh"
#include "k3/ops/moe/cuda/moe_grouped_kernel.cuh"

namespace k3::ops::cuda {
namespace grouped {
namespace {

constexpr int kGroups = 2, kConsumers = 128 * kGroups, kConsumerWarps = 4 * kGroups, kThreads = kConsumers + 128;
constexpr int kStages = 4, kMostRows = 168;
constexpr int kColumns = 64, kUnit = 2048, kUnits = 8 * kGroups, kWeightBytes = kUnits * kUnit;  // of a stage

constexpr int kRowsAt = kStages * kWeightBytes, kOut = kRowsAt + kStages * kMostRows * 128,
              kInfo = kOut + kGroups * kStageOutBytes, kMail = kInfo + kSlots * 16, kFull = kMail + kSlots * 4,
              kEmpty = kFull + 8 * kStages, kSlotFull = kEmpty + 8 * kStages, kSlotEmpty = kSlotFull + 8 * kSlots,
              kMailFull = kSlotEmpty + 8 * kSlots, kMailEmpty = kMailFull + 8 * kSlots,
              kSharedBytes = kMailEmpty + 8 * kSlots + 1024;  // and alignment
static_assert(kSharedBytes <= 227 * 1024 && kStages == 4 && kSlots == 4 && kUnits == 2 * moe_grouped_units(MoeWeights::bf16) &&
              kUnit == moe_grouped_unit_bytes(MoeWeights::bf16));

constexpr int kRowsShared = 1 << 30;  // of Work::m_tile: the blocks of the cluster have the same rows, else the same weights

struct Piece {
  Work work;
  bool real;
};

// Piece `at` of block `rank`. Of an expert with c tiles: c / 2 pairs of tiles for each tile of weights, then, when c is odd,
// pairs of tiles of weights for the last. Each tile of rows has as many numbers, so some stand for nothing.
__device__ __forceinline__ Piece piece_at(const MoeGroupedGemm& p, int at, int m_tiles, int rank) {
  const int half = (m_tiles + 1) / 2, near = at / half;
  MoeTile tile = p.tiles[near];
  const int count = tile.reserved >> 16, index = tile.reserved & 0xFFFF, first = near - index, local = at - first * half;
  const int pairs = count / 2, beyond = local - pairs * 2 * half;
  const bool weights = beyond < 0;
  const int m_tile = weights ? local / pairs : 2 * beyond + rank, mine = weights ? 2 * (local % pairs) + rank : count - 1;
  if (mine != index) tile = p.tiles[first + mine];
  return {{weights ? m_tile : m_tile | kRowsShared, tile.expert, tile.row, tile.rows}, !weights || m_tile < m_tiles};
}

// By one warp of each block; block 0 draws the numbers and tells block 1.
__device__ __forceinline__ void stream_weights(const MoeGroupedGemm& p, int32_t* counter, uint32_t base, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m_tiles = (p.units + kUnits - 1) / kUnits;
  const int total = p.header->tiles * ((m_tiles + 1) / 2), steps = (p.k + kColumns - 1) / kColumns;
  Slots slots{base + kInfo, base + kSlotFull, base + kSlotEmpty};
  Turn mail, turn;
  const auto take = [&] {
    int at = 0;
    const uint32_t slot = mail.stage();
    if (lane == 0 && rank == 0) {
      do at = atomicAdd(counter, 1);
      while (at < total && !piece_at(p, at, m_tiles, 0).real);
      mbar_wait(base + kMailEmpty + 8 * slot, mail.parity() ^ 1);
      cluster_store(cluster_map(base + kMail + 4 * slot, 1), static_cast<uint32_t>(at));
      mbar_arrive_cluster(base + kMailFull + 8 * slot, 1);
    } else if (lane == 0) {
      mbar_wait_cluster(base + kMailFull + 8 * slot, mail.parity());
      at = static_cast<int>(shared_load_4(base + kMail + 4 * slot));
      mbar_arrive_cluster(base + kMailEmpty + 8 * slot, 0);
    }
    mail.next();
    at = __shfl_sync(0xFFFFFFFFU, at, 0);
    const Work work = at < total ? piece_at(p, at, m_tiles, rank).work : Work{0, 0, 0, -1};
    if (lane == 0) slots.announce(work);
    slots.turn.next();
    return work;
  };
  Work work = take();
  while (work.rows >= 0) {
    const Work after = take();
    const int m_tile = uniform(work.m_tile);
    const bool shared = (m_tile & kRowsShared) == 0;
    const int first = (m_tile & ~kRowsShared) * kUnits, live = max(0, min(kUnits, p.units - first));
    const int expert = uniform(work.expert);
    const bool by_address = p.places.slot != nullptr;
    const int each = shared ? kUnits / 2 : kUnits, unit = shared ? rank * each + lane : lane;
    const bool mine = by_address && lane < each && unit < live;
    const uint8_t* from = mine ? weights_of(p, expert) + static_cast<int64_t>(first + unit) * p.unit_bytes : nullptr;
    for (int s = 0; s < steps; ++s, turn.next(), from += kUnit) {
      const uint32_t full = base + kFull + 8 * turn.stage(), to = base + turn.stage() * kWeightBytes;
      mbar_wait(base + kEmpty + 8 * turn.stage(), turn.parity() ^ 1);  // of reads alone: nothing to acquire
      if (lane == 0) {
        mbar_expect(full, static_cast<uint32_t>((by_address ? live : kUnits) * kUnit));
        if (!by_address && shared) {
          tma_load_lines_both(to + static_cast<uint32_t>(rank) * (kWeightBytes / 2), &p.weights_map, s * (kUnit / 128),
                              first + rank * (kUnits / 2), expert, full);
        } else if (!by_address) {
          load_weights(to, p, s * (kUnit / 128), first, expert, full, true);
          load_weights(to + kWeightBytes / 2, p, s * (kUnit / 128), first + kUnits / 2, expert, full, true);
        }
      }
      __syncwarp();
      if (mine && shared) bulk_load_both(to + static_cast<uint32_t>(unit * kUnit), from, kUnit, full);
      if (mine && !shared) bulk_load_once(to + static_cast<uint32_t>(unit * kUnit), from, kUnit, full);
    }
    work = after;
  }
}

// By one warp. Boxes reach beyond the tile's rows, into those of the next expert or beyond the last (zeros); what becomes of
// them is not stored. A box begins at a multiple of 8 rows, as the swizzle does, so of 168 rows the second begins within the
// first: 8 rows are written twice, with the same bytes.
template <int kN>
__device__ __forceinline__ void stream_rows(const MoeGroupedGemm& p, uint32_t base, int rank) {
  constexpr int kBox = moe_grouped_box(MoeWeights::bf16, kN), kSecond = kN - kBox;
  static_assert(kSecond % 8 == 0 && kSecond <= kBox && kN <= kMostRows);
  const int steps = (p.k + kColumns - 1) / kColumns;
  Slots slots{base + kInfo, base + kSlotFull, base + kSlotEmpty};
  Turn turn;
  for (;;) {
    const Work work = slots.take();
    if (work.rows < 0) return;
    const bool shared = (uniform(work.m_tile) & kRowsShared) != 0;
    const int row = uniform(work.row), mine = row + rank * kSecond;
    for (int s = 0; s < steps; ++s, turn.next()) {
      const uint32_t full = base + kFull + 8 * turn.stage(), to = base + kRowsAt + turn.stage() * kMostRows * 128;
      mbar_wait(base + kEmpty + 8 * turn.stage(), turn.parity() ^ 1);
      if (threadIdx.x % 32 == 0) {
        mbar_expect(full, 2 * kBox * 128);
        if (shared) {
          tma_load_2d_both(to + static_cast<uint32_t>(rank) * (kSecond * 128), &p.map, s * kColumns, mine, full);
        } else {
          tma_load_2d(to, &p.map, s * kColumns, row, full);
          tma_load_2d(to + kSecond * 128, &p.map, s * kColumns, row + kSecond, full);
        }
      }
      __syncwarp();
    }
  }
}

// Read again at each call: beside the sums of 168 rows there are no registers to keep it, or the work, in.
__device__ __forceinline__ Place place_of(uint32_t base) {
  const int thread = thread_again();
  return {thread / 128, thread / 32 % 4, thread % 32, base + kOut + static_cast<uint32_t>(thread / 128) * kStageOutBytes};
}

// What is loaded from shared memory during the products of 32 columns becomes fragments when those before them are done: the
// load takes as long as two products, for they read shared memory, too.
template <int kN, bool kDown>
__device__ __forceinline__ void tile(const MoeGroupedGemm& p, uint32_t base, Turn& turn, const Slots& slots) {
  float d[kJ][kN / 2];
  uint32_t a[2][kJ][2][4];  // [group of 32 columns % 2][j][product of 16 columns][register]
  uint4 low[kJ], high[kJ];  // rows g and g + 8 of 32 columns
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[0][i] = d[1][i] = 0;
  const int steps = (p.k + kColumns - 1) / kColumns;
  const Place here = place_of(base);
  const int lane = here.lane;
  const uint32_t mine = base + static_cast<uint32_t>((here.group * 8 + here.warp) * kUnit + lane * 16);
  const auto load = [&](uint32_t stage, int q) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      const uint32_t at = mine + stage * kWeightBytes + static_cast<uint32_t>(j * 4 * kUnit + q * 1024);
      low[j] = shared_load_16(at), high[j] = shared_load_16(at + 512);
    }
  };
  // Not plain copies: those would be made when the load comes back, into registers that products still read, and the products
  // would be made to wait. zero: unknown to the compiler.
  const uint32_t zero = static_cast<uint32_t>(p.k) >> 31;
  const auto take = [&](int q) {
    const auto copy = [zero](uint32_t& to, uint32_t from) { to = copy_here(from, zero); };
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      copy(a[q][j][0][0], low[j].x), copy(a[q][j][0][1], high[j].x), copy(a[q][j][0][2], low[j].y), copy(a[q][j][0][3], high[j].y);
      copy(a[q][j][1][0], low[j].z), copy(a[q][j][1][1], high[j].z), copy(a[q][j][1][2], low[j].w), copy(a[q][j][1][3], high[j].w);
    }
  };
  const auto products = [&](uint64_t rows, int q) {
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kJ; ++j) Wgmma<kN>::rs(d[j], a[q][j][m], rows + static_cast<uint64_t>(4 * q + 2 * m), true);
    }
    wgmma_commit();
    wgmma_wait<1>();
  };
  const auto release = [&](uint32_t stage) {  // lane 0 tells this block, lane 1 the other
    __syncwarp();
    if (lane < 2) mbar_arrive_cluster_relaxed(base + kEmpty + 8 * stage, static_cast<uint32_t>(lane));
  };
  mbar_wait(base + kFull + 8 * turn.stage(), turn.parity());
  load(turn.stage(), 0);
  take(0);
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const uint32_t stage = turn.stage();
    const auto first = static_cast<uint32_t>(uniform(static_cast<int>(base + kRowsAt + stage * kMostRows * 128)));
    const uint64_t rows = make_desc(first, 0, 1024, Swizzle::bytes_128);
    load(stage, 1);
    products(rows, 0);
    if (s > 0) release((stage + 3) & 3);
    take(1);
    turn.next();
    if (s + 1 < steps) {
      mbar_wait(base + kFull + 8 * turn.stage(), turn.parity());
      load(turn.stage(), 0);
    }
    products(rows, 1);
    take(0);
  }
  wgmma_wait<0>();
  release((turn.stage() + 3) & 3);
  const Place me = place_of(base);
  Work work = slots.work();
  work.m_tile &= ~kRowsShared;
  if constexpr (kDown) {
    finish_down<kN, kGroups>(p, me, work, d);
  } else {
    finish_gate_up<kN, kGroups>(p, me, work, d);
  }
}

template <int kN, bool kDown>
__global__ void __launch_bounds__(kThreads, 1) product_bf16(const __grid_constant__ MoeGroupedGemm p) {
  K3_SHARED_BYTES(raw, 1);
  const uint32_t base = (shared_address(raw) + 1023U) & ~1023U;
  const int thread = static_cast<int>(threadIdx.x), rank = uniform(static_cast<int>(cluster_rank()));
  if (thread == 0) {
    for (uint32_t i = 0; i < 4; ++i) {
      mbar_init(base + kFull + 8 * i, 2);
      mbar_init(base + kEmpty + 8 * i, 2 * kConsumerWarps);
      mbar_init(base + kSlotFull + 8 * i, 1);
      mbar_init(base + kSlotEmpty + 8 * i, kConsumerWarps + 1);
      mbar_init(base + kMailFull + 8 * i, 1);
      mbar_init(base + kMailEmpty + 8 * i, 1);
    }
    mbar_init_fence();
  }
  cluster_sync();
  if (thread < kConsumers) {
    more_registers<232>();
    Slots slots{base + kInfo, base + kSlotFull, base + kSlotEmpty};
    Turn turn;
    for (;;) {
      slots.wait();
      if (slots.work().rows < 0) break;
      tile<kN, kDown>(p, base, turn, slots);
      slots.give_back();
    }
  } else {
    fewer_registers<40>();
    if (thread < kConsumers + 32) {
      stream_weights(p, &p.header->next[kDown ? 1 : 0], base, rank);
    } else if (thread < kConsumers + 64) {
      stream_rows<kN>(p, base, rank);
    }
  }
  __syncwarp();
  cluster_sync();  // until then the other block may write here and arrive here
}

template <int kN>
int launch_width(const MoeGroupedGemm& gemm, bool down, int blocks, cudaStream_t stream) {
  const LaunchOptions options{
      .grid = static_cast<unsigned>(blocks / 2 * 2), .block = kThreads, .shared_bytes = kSharedBytes, .cluster = 2};
  return launch(down ? product_bf16<kN, true> : product_bf16<kN, false>, options, stream, gemm);
}

}  // namespace
}  // namespace grouped

int moe_grouped_bf16_launch(const MoeGroupedGemm& gemm, bool down, int rows, int blocks, cudaStream_t stream) {
  switch (rows) {
    case 32: return grouped::launch_width<32>(gemm, down, blocks, stream);
    case 64: return grouped::launch_width<64>(gemm, down, blocks, stream);
    case 80: return grouped::launch_width<80>(gemm, down, blocks, stream);
    case 96: return grouped::launch_width<96>(gemm, down, blocks, stream);
    case 112: return grouped::launch_width<112>(gemm, down, blocks, stream);
    case 128: return grouped::launch_width<128>(gemm, down, blocks, stream);
    case 144: return grouped::launch_width<144>(gemm, down, blocks, stream);
    case 160: return grouped::launch_width<160>(gemm, down, blocks, stream);
    case 168: return grouped::launch_width<168>(gemm, down, blocks, stream);
    default: return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace k3::ops::cuda
