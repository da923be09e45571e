// Grouped products of MXFP4 experts. The two warpgroups take turns: one decodes while the products of the other are issued. A
// product with register operands holds the scheduler for a while, so side by side they would wait for the same thing.
#include "k3/ops/moe/cuda/moe_grouped_kernel.cuh"

namespace k3::ops::cuda {
namespace grouped {
namespace {

constexpr int kGroups = 2;
constexpr int kColumns = 256, kUnit = 2176;  // of a stage: weights and rows of so many columns

template <int kN>
struct Shape {
  static constexpr int kConsumers = 128 * kGroups, kWarps = 4 * kGroups, kThreads = kConsumers + 128, kUnits = 8 * kGroups;
  static constexpr int kWeightBytes = kUnits * kUnit, kPartBytes = kN * 128;  // rows: parts of 64 columns
  static constexpr int kStageBytes = kWeightBytes + 4 * kPartBytes;
  static constexpr int kStages = 3 * kStageBytes + kGroups * kStageOutBytes <= 224 * 1024 ? 3 : 2;
  static constexpr int kOut = kStages * kStageBytes, kInfo = kOut + kGroups * kStageOutBytes, kFull = kInfo + kSlots * 16,
                       kRowsFull = kFull + 8 * kStages,  // of half a stage
      kEmpty = kRowsFull + 16 * kStages, kSlotFull = kEmpty + 8 * kStages, kSlotEmpty = kSlotFull + 8 * kSlots,
                       kTurns = kSlotEmpty + 8 * kSlots, kSharedBytes = kTurns + 16 + 1024;  // and alignment
  static_assert(kSharedBytes <= 227 * 1024 && kWeightBytes % 1024 == 0 && kPartBytes % 1024 == 0 &&
                kUnits == moe_grouped_units(MoeWeights::mxfp4) && kUnit == moe_grouped_unit_bytes(MoeWeights::mxfp4));
};

template <int kStages>
struct Ring {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <class S>
__device__ __forceinline__ void stream_weights(const MoeGroupedGemm& p, int32_t* counter, uint32_t base) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m_tiles = (p.units + S::kUnits - 1) / S::kUnits;
  const int total = p.header->tiles * m_tiles, chunks = (p.k + kColumns - 1) / kColumns;
  Slots slots{base + S::kInfo, base + S::kSlotFull, base + S::kSlotEmpty};
  Ring<S::kStages> ring;
  struct Piece {
    Work work;
    bool once;  // no other tile takes these weights
  };
  int next = lane == 0 ? atomicAdd(counter, 1) : 0;
  const auto take = [&] {
    const int at = __shfl_sync(0xFFFFFFFFU, next, 0);
    Piece piece{{0, 0, 0, -1}, true};
    if (at < total) {
      // Work lies in the order expert, weight rows, row tile: those who share weights run side by side.
      const int near = at / m_tiles;
      MoeTile tile = p.tiles[near];
      const int count = tile.reserved >> 16, first = near - (tile.reserved & 0xFFFF), local = at - first * m_tiles;
      if (count > 1) tile = p.tiles[first + local % count];
      piece = {{local / count, tile.expert, tile.row, tile.rows}, count == 1};
      if (lane == 0) next = atomicAdd(counter, 1);
    }
    if (lane == 0) slots.announce(piece.work);
    slots.turn.next();
    return piece;
  };
  Piece piece = take();
  while (piece.work.rows >= 0) {
    const Piece after = take();
    const int first = uniform(piece.work.m_tile) * S::kUnits, live = min(S::kUnits, p.units - first);
    const int expert = uniform(piece.work.expert);
    const bool by_address = p.places.slot != nullptr, once = uniform(static_cast<int>(piece.once)) != 0;
    const uint8_t* from = by_address ? weights_of(p, expert) + (first + lane) * p.unit_bytes : nullptr;
    for (int c = 0; c < chunks; ++c, ring.next(), from += kUnit) {
      const uint32_t full = base + S::kFull + 8 * ring.stage, to = base + ring.stage * S::kStageBytes;
      mbar_wait(base + S::kEmpty + 8 * ring.stage, ring.parity ^ 1);
      if (lane == 0) {
        mbar_expect(full, static_cast<uint32_t>((by_address ? live : S::kUnits) * kUnit));
        if (!by_address) load_weights(to, p, c * (kUnit / 128), first, expert, full, once);
      }
      __syncwarp();
      if (by_address && lane < live) bulk_load(to + static_cast<uint32_t>(lane * kUnit), from, kUnit, full);
    }
    __syncwarp();
    piece = after;
  }
}

// By one warp. Boxes reach beyond the tile's rows, into those of the next expert or beyond the last (zeros); what becomes of
// them is not stored. Columns beyond the matrix are zeros, too.
template <class S>
__device__ __forceinline__ void stream_rows(const MoeGroupedGemm& p, uint32_t base) {
  const int chunks = (p.k + kColumns - 1) / kColumns;
  Slots slots{base + S::kInfo, base + S::kSlotFull, base + S::kSlotEmpty};
  Ring<S::kStages> ring;
  for (;;) {
    const Work work = slots.take();
    if (work.rows < 0) return;
    const int row = uniform(work.row);
    for (int c = 0; c < chunks; ++c, ring.next()) {
      mbar_wait(base + S::kEmpty + 8 * ring.stage, ring.parity ^ 1);
      if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const uint32_t full = base + S::kRowsFull + 16 * ring.stage + static_cast<uint32_t>(part / 2 * 8);
          if (part % 2 == 0) mbar_expect(full, 2 * S::kPartBytes);
          tma_load_2d(base + ring.stage * S::kStageBytes + static_cast<uint32_t>(S::kWeightBytes + part * S::kPartBytes), &p.map,
                      c * kColumns + part * 64, row, full);
        }
      }
      __syncwarp();
    }
  }
}

struct Codes {  // of 64 columns and 2 x 64 weight rows: [j], groups of 32 columns q: x, y (q = 0) and z, w, rows g and g + 8
  uint4 words[kJ];
  uint32_t scales[kJ];
};

// Registers `half` of the fragments of group q: rows g (0) or g + 8 (1) of 32 columns.
__device__ __forceinline__ void decode(const Codes& codes, int j, int q, int half, uint32_t (&a)[2][4]) {
  const uint4& w = codes.words[j];
  uint32_t pairs[4];
  mxfp4_decode(q == 0 ? (half == 0 ? w.x : w.y) : (half == 0 ? w.z : w.w), pairs);
  const uint32_t factors = mxfp4_factors(codes.scales[j], q);
  const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&factors);
  const __nv_bfloat162 factor = half == 0 ? __low2bfloat162(both) : __high2bfloat162(both);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i / 2][half + 2 * (i % 2)] = mxfp4_scaled(pairs[i], factor);
}

// The codes of the next 64 columns are fetched while the products of these begin, and decoded while they run.
template <int kN, bool kDown>
__device__ __forceinline__ void tile(const MoeGroupedGemm& p, const Place& me, uint32_t base,
                                     Ring<Shape<kN>::kStages>& ring, uint32_t& turn, const Work& work) {
  using S = Shape<kN>;
  float d[kJ][kN / 2];
  uint32_t a[2][2][kJ][2][4];  // [part % 2][group of 32 columns][j][product of 16 columns][register]
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[0][i] = d[1][i] = 0;
  const int chunks = (p.k + kColumns - 1) / kColumns;
  const uint32_t mine = base + static_cast<uint32_t>((me.group * 8 + me.warp) * kUnit);
  const uint32_t my_codes = mine + static_cast<uint32_t>(128 + me.lane * 16), my_scales = mine + static_cast<uint32_t>(me.lane / 4 * 16);
  Codes codes;
  const auto fetch = [&](uint32_t stage, int part) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      codes.words[j] = shared_load_16(my_codes + stage * S::kStageBytes + static_cast<uint32_t>(j * 4 * kUnit + part * 512));
      codes.scales[j] = shared_load_4(my_scales + stage * S::kStageBytes + static_cast<uint32_t>(j * 4 * kUnit + part * 4));
    }
  };
  uint32_t before = 0;  // barrier of the stage whose last products may be in flight
  mbar_wait(base + S::kFull + 8 * ring.stage, ring.parity);
  fetch(ring.stage, 0);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const uint32_t rows_full = base + S::kRowsFull + 16 * ring.stage, rows_parity = ring.parity,
                   empty = base + S::kEmpty + 8 * ring.stage;
    const auto first = static_cast<uint32_t>(uniform(static_cast<int>(base + ring.stage * S::kStageBytes + S::kWeightBytes)));
    const uint64_t rows = make_desc(first, 0, 1024, Swizzle::bytes_128);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int set = part % 2;
#pragma unroll
      for (int i = 0; i < 8; ++i) decode(codes, i % 2, i / 4, i / 2 % 2, a[set][i / 4][i % 2]);
      if (part < 3) {
        fetch(ring.stage, part + 1);
      } else {
        ring.next();
        if (c + 1 < chunks) {
          mbar_wait(base + S::kFull + 8 * ring.stage, ring.parity);
          fetch(ring.stage, 0);
        }
      }
      if (part % 2 == 0) mbar_wait(rows_full + 8 * (part / 2), rows_parity);
#pragma unroll
      for (int e = 0; e < 32; ++e) asm volatile("" : "+r"(a[set][e / 16][e / 8 % 2][e / 4 % 2][e % 4]));  // decoded by now
      mbar_wait(base + S::kTurns + 8 * static_cast<uint32_t>(me.group), turn);
      turn ^= 1;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 8; ++i)
        Wgmma<kN>::rs(d[i % 2], a[set][i / 4][i % 2][i / 2 % 2],
                      rows + static_cast<uint64_t>(part * (S::kPartBytes / 16) + 2 * (i / 2)), true);
      wgmma_commit();
      __syncwarp();
      if (me.lane == 0) mbar_arrive(base + S::kTurns + 8 * static_cast<uint32_t>(1 - me.group));
      wgmma_wait<1>();
      if (part == 0) {
        __syncwarp();
        if (me.lane == 0 && c > 0) mbar_arrive(before);
        before = empty;
      }
    }
  }
  wgmma_wait<0>();
  __syncwarp();
  if (me.lane == 0) mbar_arrive(before);
  if constexpr (kDown) {
    finish_down<kN, kGroups>(p, me, work, d);
  } else {
    finish_gate_up<kN, kGroups>(p, me, work, d);
  }
}

template <int kN, bool kDown>
__global__ void __launch_bounds__(Shape<kN>::kThreads, 1) product_mxfp4(const __grid_constant__ MoeGroupedGemm p) {
  using S = Shape<kN>;
  K3_SHARED_BYTES(raw, 1);
  const uint32_t base = (shared_address(raw) + 1023U) & ~1023U;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (uint32_t i = 0; i < S::kStages; ++i) {
      mbar_init(base + S::kFull + 8 * i, 1);
      mbar_init(base + S::kRowsFull + 16 * i, 1);
      mbar_init(base + S::kRowsFull + 16 * i + 8, 1);
      mbar_init(base + S::kEmpty + 8 * i, S::kWarps);
    }
    for (uint32_t i = 0; i < kSlots; ++i) {
      mbar_init(base + S::kSlotFull + 8 * i, 1);
      mbar_init(base + S::kSlotEmpty + 8 * i, S::kWarps + 1);
    }
    mbar_init(base + S::kTurns, 4);
    mbar_init(base + S::kTurns + 8, 4);
    mbar_init_fence();
  }
  __syncthreads();
  if (thread < S::kConsumers) {
    more_registers<232>();
    const Place me{thread / 128, thread / 32 % 4, thread % 32,
                   base + S::kOut + static_cast<uint32_t>(thread / 128) * kStageOutBytes};
    Slots slots{base + S::kInfo, base + S::kSlotFull, base + S::kSlotEmpty};
    Ring<S::kStages> ring;
    uint32_t turn = 0;
    if (me.group == 1 && me.lane == 0) mbar_arrive(base + S::kTurns);
    for (;;) {
      const Work work = slots.take();
      if (work.rows < 0) break;
      tile<kN, kDown>(p, me, base, ring, turn, work);
    }
  } else {
    fewer_registers<40>();
    if (thread < S::kConsumers + 32) {
      stream_weights<S>(p, &p.header->next[kDown ? 1 : 0], base);
    } else if (thread < S::kConsumers + 64) {
      stream_rows<S>(p, base);
    }
  }
}

template <int kN>
int launch_width(const MoeGroupedGemm& gemm, bool down, int blocks, cudaStream_t stream) {
  using S = Shape<kN>;
  const LaunchOptions options{.grid = static_cast<unsigned>(blocks), .block = S::kThreads, .shared_bytes = S::kSharedBytes};
  return launch(down ? product_mxfp4<kN, true> : product_mxfp4<kN, false>, options, stream, gemm);
}

}  // namespace
}  // namespace grouped

int moe_grouped_mxfp4_launch(const MoeGroupedGemm& gemm, bool down, int rows, int blocks, cudaStream_t stream) {
  switch (rows) {
    case 16: return grouped::launch_width<16>(gemm, down, blocks, stream);
    case 32: return grouped::launch_width<32>(gemm, down, blocks, stream);
    case 48: return grouped::launch_width<48>(gemm, down, blocks, stream);
    case 64: return grouped::launch_width<64>(gemm, down, blocks, stream);
    case 80: return grouped::launch_width<80>(gemm, down, blocks, stream);
    case 96: return grouped::launch_width<96>(gemm, down, blocks, stream);
    case 112: return grouped::launch_width<112>(gemm, down, blocks, stream);
    case 128: return grouped::launch_width<128>(gemm, down, blocks, stream);
    default: return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace k3::ops::cuda
