// Internal to ops/moe. Grouped products of routed experts on Hopper: a persistent grid over (256 weight rows, a tile of rows
// of one expert). Weights are the M side of wgmma and come from registers, rows are the N side in steps of 8.
//
// One warp takes work from a counter and streams weights (bulk copies, A ring), one streams the rows (boxes of a tensor map,
// B ring); two consumer warpgroups own 128 weight rows each: two products of 64 rows on one B tile. MXFP4 is decoded while
// the products of the step before are in flight. BF16 is bound by L2: tiles of up to 168 rows, so that the rows of most
// experts are one tile and weights are read once; its products come in halves of a step, for which registers are left.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/cuda/wgmma_wide.cuh"
#include "k3/ops/moe/cuda/moe_grouped_types.h"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"

namespace k3::ops::cuda {
namespace grouped {

constexpr int kGroups = 2;  // consumer warpgroups
constexpr int kConsumers = 128 * kGroups, kConsumerWarps = 4 * kGroups, kThreads = kConsumers + 128;
constexpr int kSlots = 4;                                      // tiles announced ahead
constexpr int kOutRows = 32, kStageOutBytes = kOutRows * 128;  // a warpgroup's outputs on their way: 32 rows x 64 columns

// A stage: 16 units x `kColumns` columns.
template <bool kMx>
struct Shape;
template <>
struct Shape<true> {
  static constexpr int kRows = moe_grouped_rows(MoeWeights::mxfp4), kBBytes = kRows * 128;  // of a B tile, 64 columns
  static constexpr int kColumns = 256, kUnit = 2176, kAStages = 3, kBStages = 6;
};
template <>
struct Shape<false> {
  static constexpr int kRows = moe_grouped_rows(MoeWeights::bf16), kBBytes = kRows * 128;
  static constexpr int kColumns = 64, kUnit = 2048, kAStages = 4, kBStages = 4;
};

template <bool kMx>
struct Layout {
  using S = Shape<kMx>;
  static constexpr int kABytes = kMoeGroupedUnits * S::kUnit;
  static constexpr int kB = S::kAStages * kABytes, kOut = kB + S::kBStages * S::kBBytes,
                       kInfo = kOut + kGroups * kStageOutBytes;
  static constexpr int kBars = kInfo + kSlots * 16;
  static constexpr int kAFull = kBars, kAEmpty = kAFull + 8 * S::kAStages, kBFull = kAEmpty + 8 * S::kAStages,
                       kBEmpty = kBFull + 8 * S::kBStages, kSlotFull = kBEmpty + 8 * S::kBStages,
                       kSlotEmpty = kSlotFull + 8 * kSlots;
  static constexpr int kBytes = kSlotEmpty + 8 * kSlots + 1024;  // and alignment
  static_assert(kABytes % 1024 == 0 && kBytes <= 227 * 1024);
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

struct Work {
  int m_tile, expert, row, rows;  // rows < 0: no more
};

__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ void store_shared_4(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_16(uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Weights that pass once must not push the activations out of L2.
__device__ __forceinline__ void bulk_load_once(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
      "policy;\n}\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

// A consumer reads the slot and gives it back; every lane gets the work.
__device__ __forceinline__ Work take_work(uint32_t info, uint32_t full, uint32_t empty, Ring<kSlots>& ring) {
  mbar_wait(full + 8 * static_cast<uint32_t>(ring.stage), ring.phase);
  const uint4 v = load_shared_16(info + 16 * static_cast<uint32_t>(ring.stage));
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbar_arrive(empty + 8 * static_cast<uint32_t>(ring.stage));
  ring.next();
  return {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z), static_cast<int>(v.w)};
}

template <bool kMx>
__device__ __forceinline__ void stream_weights(const MoeGroupedGemm& p, int32_t* counter, uint32_t base) {
  using L = Layout<kMx>;
  using S = Shape<kMx>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m_tiles = (p.units + kMoeGroupedUnits - 1) / kMoeGroupedUnits;
  const int total = p.header->tiles * m_tiles, stages = (p.k + S::kColumns - 1) / S::kColumns;
  Ring<kSlots> slots;
  Ring<S::kAStages> a;
  struct Piece {
    Work work;
    bool once;  // no other tile takes these weights
  };
  const auto announce = [&](int at) {
    Piece piece{{0, 0, 0, -1}, true};
    if (at < total) {
      // Work lies in the order expert, weight rows, row tile: those who share weights run side by side.
      const int near = at / m_tiles;
      MoeTile tile = p.tiles[near];
      const int count = tile.reserved >> 16, first = near - (tile.reserved & 0xFFFF), local = at - first * m_tiles;
      if (count > 1) tile = p.tiles[first + local % count];
      piece = {{local / count, tile.expert, tile.row, tile.rows}, count == 1};
    }
    if (lane == 0) {
      const auto slot = static_cast<uint32_t>(slots.stage);
      mbar_wait(base + L::kSlotEmpty + 8 * slot, slots.phase ^ 1);
      store_shared_16(base + L::kInfo + 16 * slot,
                      {static_cast<uint32_t>(piece.work.m_tile), static_cast<uint32_t>(piece.work.expert),
                       static_cast<uint32_t>(piece.work.row), static_cast<uint32_t>(piece.work.rows)});
      mbar_arrive(base + L::kSlotFull + 8 * slot);
    }
    slots.next();
    return piece;
  };
  const auto take = [&] { return lane == 0 ? atomicAdd(counter, 1) : 0; };
  int next = take();
  Piece piece = announce(__shfl_sync(0xFFFFFFFFU, next, 0));
  next = take();
  while (piece.work.rows >= 0) {
    const Piece after = announce(__shfl_sync(0xFFFFFFFFU, next, 0));
    if (after.work.rows >= 0) next = take();
    const int first = piece.work.m_tile * kMoeGroupedUnits, live = min(kMoeGroupedUnits, p.units - first);
    const uint8_t* const expert = p.places.slot == nullptr ? p.weights + piece.work.expert * p.expert_bytes
                                                           : expert_at(p.places, piece.work.expert) + p.place_offset;
    const uint8_t* from = expert + (first + lane) * p.unit_bytes;
    for (int s = 0; s < stages; ++s, a.next(), from += S::kUnit) {
      const uint32_t full = base + L::kAFull + 8 * static_cast<uint32_t>(a.stage);
      const uint32_t to = base + static_cast<uint32_t>(a.stage * L::kABytes + lane * S::kUnit);
      mbar_wait(base + L::kAEmpty + 8 * static_cast<uint32_t>(a.stage), a.phase ^ 1);
      if (lane == 0) mbar_expect(full, static_cast<uint32_t>(live * S::kUnit));
      __syncwarp();
      if (lane >= live) continue;
      if (piece.once) {
        bulk_load_once(to, from, S::kUnit, full);
      } else {
        bulk_load(to, from, S::kUnit, full);
      }
    }
    piece = after;
  }
}

// By one warp. The boxes of 8 rows of a tile reach up to 7 rows into the next expert, whose products are not stored.
template <bool kMx>
__device__ __forceinline__ void stream_rows(const MoeGroupedGemm& p, uint32_t base) {
  using L = Layout<kMx>;
  const int steps = (p.k + 63) / 64;
  Ring<kSlots> slots;
  Ring<Shape<kMx>::kBStages> b;
  for (;;) {
    const Work work = take_work(base + L::kInfo, base + L::kSlotFull, base + L::kSlotEmpty, slots);
    if (work.rows < 0) return;
    const int rows = (work.rows + 7) / 8 * 8;
    for (int s = 0; s < steps; ++s, b.next()) {
      const uint32_t full = base + L::kBFull + 8 * static_cast<uint32_t>(b.stage),
                     to = base + L::kB + static_cast<uint32_t>(b.stage) * Shape<kMx>::kBBytes;
      mbar_wait(base + L::kBEmpty + 8 * static_cast<uint32_t>(b.stage), b.phase ^ 1);
      if (threadIdx.x % 32 == 0) {
        mbar_expect(full, static_cast<uint32_t>(rows) * 128);
        int row = 0;
        for (; row + 32 <= rows; row += 32)
          tma_load_2d(to + static_cast<uint32_t>(row) * 128, &p.map32, s * 64, work.row + row, full);
        for (; row < rows; row += 8)
          tma_load_2d(to + static_cast<uint32_t>(row) * 128, &p.map8, s * 64, work.row + row, full);
      }
      __syncwarp();
    }
  }
}

__device__ __forceinline__ float glu_value(const MoeGroupedGlu& glu, float g, float u) {
  constexpr float kLog2E = 1.44269504F;
  if (glu.kind == 0) return __fdividef(g * u, 1 + exp2_approx(-kLog2E * g));
  const float size = fabsf(g);
  const float e = exp2_approx(glu.gate_exp * size);                     // e^{-2|g|/b1}
  const float s = glu.kind == 2 ? e * e : exp2_approx(-kLog2E * size);  // e^{-|g|}
  const float top = (1 - e) * (g < 0 ? s : 1), bottom = (1 + e) * (1 + s);
  if (glu.up_exp == 0) return copysignf(glu.scale, g) * u * __fdividef(top, bottom);
  const float f = exp2_approx(glu.up_exp * fabsf(u));
  const float value = glu.scale * __fdividef(top * (1 - f), bottom * (1 + f));
  return __uint_as_float(__float_as_uint(value) ^ ((__float_as_uint(g) ^ __float_as_uint(u)) & 0x80000000U));
}

// The state of a consumer warp that goes from tile to tile.
template <bool kMx>
struct Consumer {
  uint32_t base;
  int group, warp, lane;  // group: 0, 1
  Ring<Shape<kMx>::kAStages> a;
  Ring<Shape<kMx>::kBStages> b;
};

// The registers of wgmma: one set for every number of rows. kSets: of weights; two: one is decoded while the other is used.
template <bool kMx>
struct Operands {
  static constexpr int kRows = Shape<kMx>::kRows, kSets = 2, kGroups32 = kMx ? 2 : 1;
  float d[2][kRows / 2];                  // [j]: rows of weights 64 j .. 64 j + 63 of the group
  uint32_t a[kSets][kGroups32][2][2][4];  // [step % kSets][group of 32 columns][j][product of 16 columns][register]
};

// A fragments of 32 columns, q of 2, from what was read (codes, scales: mxfp4) or from shared memory (bf16).
template <bool kMx>
__device__ __forceinline__ void fragments(uint32_t (&a)[2][4], int q, uint4 codes, uint32_t scales, uint32_t at) {
  uint32_t half[2][4];  // rows g and g + 8
  if constexpr (kMx) {
    mxfp4_decode(q == 0 ? codes.x : codes.z, half[0]);
    mxfp4_decode(q == 0 ? codes.y : codes.w, half[1]);
    const uint32_t factors = mxfp4_factors(scales, q);
    const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&factors);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      half[0][i] = mxfp4_scaled(half[0][i], __low2bfloat162(both));
      half[1][i] = mxfp4_scaled(half[1][i], __high2bfloat162(both));
    }
  } else {
    const uint4 low = load_shared_16(at + static_cast<uint32_t>(q * 1024)),
                high = load_shared_16(at + static_cast<uint32_t>(q * 1024 + 512));
    half[0][0] = low.x, half[0][1] = low.y, half[0][2] = low.z, half[0][3] = low.w;
    half[1][0] = high.x, half[1][1] = high.y, half[1][2] = high.z, half[1][3] = high.w;
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
    a[m][0] = half[0][2 * m], a[m][1] = half[1][2 * m], a[m][2] = half[0][2 * m + 1], a[m][3] = half[1][2 * m + 1];
}

// Products of 64 columns (BF16: of 32) with N rows. Waits for those whose weights the next step overwrites.
template <int N, bool kMx>
__device__ __forceinline__ void products_of(Operands<kMx>& o, int parity, uint64_t rows) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 2 * Operands<kMx>::kGroups32; ++k) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Wgmma<N>::rs(reinterpret_cast<float(&)[N / 2]>(o.d[j]), o.a[parity][k / 2][j][k % 2],
                   rows + static_cast<uint64_t>(2 * k), true);
    }
  }
  wgmma_commit();
  wgmma_wait<Operands<kMx>::kSets - 1>();
}

// The width is chosen here and not around the whole loop: of several loops ptxas keeps all registers apart as if all were in
// flight at once, runs out of them, and waits after every product. Fence, commit and wait belong into the branch for the
// same reason.
template <bool kMx>
__device__ __forceinline__ void products(Operands<kMx>& o, int parity, uint64_t rows, int eights) {
  if constexpr (!kMx) {
    switch ((eights + 1) / 2) {
      case 9: return products_of<144>(o, parity, rows);
      case 10: return products_of<160>(o, parity, rows);
      case 11: return products_of<168>(o, parity, rows);
      default: break;
    }
  }
  switch (eights) {
    case 1: return products_of<8>(o, parity, rows);
    case 2: return products_of<16>(o, parity, rows);
    case 3: return products_of<24>(o, parity, rows);
    case 4: return products_of<32>(o, parity, rows);
    case 5: return products_of<40>(o, parity, rows);
    case 6: return products_of<48>(o, parity, rows);
    case 7: return products_of<56>(o, parity, rows);
    case 8: return products_of<64>(o, parity, rows);
    case 9: return products_of<72>(o, parity, rows);
    case 10: return products_of<80>(o, parity, rows);
    case 11: return products_of<88>(o, parity, rows);
    case 12: return products_of<96>(o, parity, rows);
    case 13: return products_of<104>(o, parity, rows);
    case 14: return products_of<112>(o, parity, rows);
    case 15: return products_of<120>(o, parity, rows);
    default: return products_of<128>(o, parity, rows);
  }
}

// 64 outputs of up to 32 rows from the staging area to out.
__device__ __forceinline__ void store_block(const MoeGroupedGemm& p, uint32_t out, const Work& work, int first_row,
                                            int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128, chunk = thread % 8;
  if (column + chunk * 8 >= p.out_columns) return;
#pragma unroll
  for (int i = 0; i < kOutRows; i += 16) {
    const int row = i + thread / 8;
    if (first_row + row >= work.rows) break;
    const uint4 v = load_shared_16(out + swizzle_128(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk) * 16));
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + (work.row + first_row + row) * p.out_stride + column +
                              chunk * 8) = v;
  }
}

template <bool kMx>
constexpr int blocks_below(int rows) {
  return (rows < Shape<kMx>::kRows ? rows : Shape<kMx>::kRows) / 8;
}

template <bool kMx>
__device__ __forceinline__ void finish_gate_up(const MoeGroupedGemm& p, const Consumer<kMx>& me, const Work& work,
                                               const float (&d)[2][Shape<kMx>::kRows / 2]) {
  const uint32_t out = me.base + Layout<kMx>::kOut + static_cast<uint32_t>(me.group) * kStageOutBytes;
  const int g = me.lane / 4, q = me.lane % 4, unit = work.m_tile * kMoeGroupedUnits + me.group * 8 + me.warp;
  float f1 = 1, f3 = 1;
  if (kMx && p.factors != nullptr) f1 = p.factors[work.expert * 4], f3 = p.factors[work.expert * 4 + 2];
#pragma unroll
  for (int first = 0; first < Shape<kMx>::kRows; first += kOutRows) {
    if (first >= work.rows) break;
    named_barrier(1 + me.group, 128);
#pragma unroll
    for (int block = first / 8; block < blocks_below<kMx>(first + kOutRows); ++block) {
      if (block * 8 >= work.rows) break;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool real = (unit + 4 * j) * 8 + g < p.hidden;
        const float v0 = real ? glu_value(p.glu, d[j][4 * block] * f1, d[j][4 * block + 2] * f3) : 0;
        const float v1 = real ? glu_value(p.glu, d[j][4 * block + 1] * f1, d[j][4 * block + 3] * f3) : 0;
        // Lanes of even g keep the even row, of odd g the odd one; a word has the columns of both.
        const float other = __shfl_xor_sync(0xFFFFFFFFU, g % 2 == 0 ? v1 : v0, 4);
        const uint32_t word = g % 2 == 0 ? pack_bf16(v0, other) : pack_bf16(other, v1);
        const auto row = static_cast<uint32_t>(8 * block - first + 2 * q + g % 2);
        store_shared_4(
            out + swizzle_128(row, static_cast<uint32_t>(4 * j + g / 2) * 16) + static_cast<uint32_t>(me.warp) * 4, word);
      }
    }
    named_barrier(1 + me.group, 128);
    store_block(p, out, work, first, work.m_tile * 128 + me.group * 64);
  }
}

template <bool kMx>
__device__ __forceinline__ void finish_down(const MoeGroupedGemm& p, const Consumer<kMx>& me, const Work& work,
                                            const float (&d)[2][Shape<kMx>::kRows / 2]) {
  const uint32_t out = me.base + Layout<kMx>::kOut + static_cast<uint32_t>(me.group) * kStageOutBytes;
  const float f = kMx && p.factors != nullptr ? p.factors[work.expert * 4 + 1] : 1;
  const int matrix = me.lane / 8;
#pragma unroll
  for (int first = 0; first < Shape<kMx>::kRows; first += kOutRows) {
    if (first >= work.rows) break;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      named_barrier(1 + me.group, 128);
#pragma unroll
      for (int block = first / 8; block < blocks_below<kMx>(first + kOutRows); block += 2) {
        if (block * 8 >= work.rows) break;
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * block + 2 * i;
          r[i] = at < Shape<kMx>::kRows / 2 ? pack_bf16(d[j][at] * f, d[j][at + 1] * f) : 0;  // an odd number of blocks
        }
        const auto row = static_cast<uint32_t>(8 * (block + matrix / 2) - first + me.lane % 8);
        stmatrix_x4_trans(out + swizzle_128(row, static_cast<uint32_t>(2 * me.warp + matrix % 2) * 16), r);
      }
      named_barrier(1 + me.group, 128);
      store_block(p, out, work, first, work.m_tile * 256 + me.group * 128 + j * 64);
    }
  }
}

template <bool kMx, bool kDown>
__device__ __forceinline__ void tile(const MoeGroupedGemm& p, Consumer<kMx>& me, const Work& work, Operands<kMx>& o) {
  using L = Layout<kMx>;
  using S = Shape<kMx>;
  constexpr int kSteps = S::kColumns / 64;  // of an A stage
#pragma unroll
  for (int i = 0; i < S::kRows / 2; ++i) o.d[0][i] = o.d[1][i] = 0;
  const int eights = __shfl_sync(0xFFFFFFFFU, (work.rows + 7) / 8, 0);
  const int steps = (p.k + 63) / 64;
  const uint32_t my_unit = me.base + static_cast<uint32_t>((me.group * 8 + me.warp) * S::kUnit);
  uint32_t before = 0;  // the B stage whose products may be in flight; MXFP4 alone
  const auto step = [&](int s, int parity) {
    const int part = s % kSteps;
    if (part == 0) mbar_wait(me.base + L::kAFull + 8 * static_cast<uint32_t>(me.a.stage), me.a.phase);
    const uint32_t unit = my_unit + static_cast<uint32_t>(me.a.stage * L::kABytes);
    uint4 codes[2] = {};
    uint32_t scales[2] = {};
    if constexpr (kMx) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t at = unit + static_cast<uint32_t>(j * 4 * S::kUnit);
        codes[j] = load_shared_16(at + 128 + static_cast<uint32_t>(part * 512 + me.lane * 16));
        scales[j] = load_shared_4(at + static_cast<uint32_t>(me.lane / 4 * 16 + part * 4));
      }
    }
    const auto load = [&](int q, int set, int to) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        fragments<kMx>(o.a[set][to][j], q, codes[j], scales[j],
                       unit + static_cast<uint32_t>(j * 4 * S::kUnit + me.lane * 16));
      }
    };
    const uint64_t rows =
        make_desc(me.base + L::kB + static_cast<uint32_t>(me.b.stage) * S::kBBytes, 0, 1024, Swizzle::bytes_128);
    load(0, parity, 0);
    if constexpr (kMx) load(1, parity, 1);
    mbar_wait(me.base + L::kBFull + 8 * static_cast<uint32_t>(me.b.stage), me.b.phase);
    products<kMx>(o, parity, rows, eights);
    if constexpr (!kMx) {
      load(1, 1, 0);
      products<kMx>(o, 1, rows + 4, eights);
    }
    const bool last = part == kSteps - 1 || s == steps - 1;
    __syncwarp();
    const uint32_t empty = me.base + L::kBEmpty + 8 * static_cast<uint32_t>(me.b.stage);
    if (me.lane == 0) {
      if (s > 0) mbar_arrive(before);
      if (last) mbar_arrive(me.base + L::kAEmpty + 8 * static_cast<uint32_t>(me.a.stage));
    }
    if (last) me.a.next();
    before = empty;
    me.b.next();
  };
  if constexpr (kMx) {
    for (int s = 0; s < steps; s += 2) {
      step(s, 0);
      if (s + 1 < steps) step(s + 1, 1);
    }
  } else {
    for (int s = 0; s < steps; ++s) step(s, 0);
  }
  wgmma_wait<0>();
  __syncwarp();
  if (me.lane == 0) mbar_arrive(before);
  if constexpr (kDown) {
    finish_down<kMx>(p, me, work, o.d);
  } else {
    finish_gate_up<kMx>(p, me, work, o.d);
  }
}

template <bool kMx, bool kDown>
__device__ __forceinline__ void consume(const MoeGroupedGemm& p, uint32_t base) {
  using L = Layout<kMx>;
  const int thread = static_cast<int>(threadIdx.x);
  Consumer<kMx> me{base, thread / 128, thread / 32 % 4, thread % 32, {}, {}};
  Ring<kSlots> slots;
  Operands<kMx> o;
  for (;;) {
    const Work work = take_work(base + L::kInfo, base + L::kSlotFull, base + L::kSlotEmpty, slots);
    if (work.rows < 0) return;
    tile<kMx, kDown>(p, me, work, o);
  }
}

template <bool kMx, bool kDown>
__global__ void __launch_bounds__(kThreads, 1) grouped_product(const __grid_constant__ MoeGroupedGemm p) {
  using L = Layout<kMx>;
  using S = Shape<kMx>;
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < S::kAStages; ++i) {
      mbar_init(base + L::kAFull + 8 * i, 1);
      mbar_init(base + L::kAEmpty + 8 * i, kConsumerWarps);
    }
    for (uint32_t i = 0; i < S::kBStages; ++i) {
      mbar_init(base + L::kBFull + 8 * i, 1);
      mbar_init(base + L::kBEmpty + 8 * i, kConsumerWarps);
    }
    for (uint32_t i = 0; i < kSlots; ++i) {
      mbar_init(base + L::kSlotFull + 8 * i, 1);
      mbar_init(base + L::kSlotEmpty + 8 * i, kConsumerWarps + 1);
    }
    mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    more_registers<232>();
    consume<kMx, kDown>(p, base);
  } else {
    fewer_registers<40>();
    if (threadIdx.x < kConsumers + 32) {
      stream_weights<kMx>(p, &p.header->next[kDown ? 1 : 0], base);
    } else if (threadIdx.x < kConsumers + 64) {
      stream_rows<kMx>(p, base);
    }
  }
}

template <bool kMx>
int launch_product(const MoeGroupedGemm& gemm, bool down, int blocks, cudaStream_t stream) {
  const LaunchOptions options{.grid = static_cast<unsigned>(blocks), .block = kThreads, .shared_bytes = Layout<kMx>::kBytes};
  return down ? launch(grouped_product<kMx, true>, options, stream, gemm)
              : launch(grouped_product<kMx, false>, options, stream, gemm);
}

}  // namespace grouped
}  // namespace k3::ops::cuda
