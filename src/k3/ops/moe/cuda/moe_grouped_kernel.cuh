// Internal to ops/moe. Grouped products of routed experts on Hopper: a persistent grid over (256 weight rows, up to 128 rows
// of one expert). Weights are the M side of wgmma and come from registers, rows are the N side in steps of 8.
//
// One warp takes work from a counter and streams weights (bulk copies, A ring), one streams the rows (boxes of a tensor map,
// B ring); four consumer warpgroups own 64 weight rows each: while one decodes its weights, the products of the others run.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/moe/cuda/moe_grouped_types.h"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"

namespace k3::ops::cuda {
namespace grouped {

constexpr int kGroups = 4;  // consumer warpgroups
constexpr int kConsumers = 128 * kGroups, kConsumerWarps = 4 * kGroups, kThreads = kConsumers + 128;
constexpr int kBBytes = kMoeGroupedRows * 128;  // 64 columns
constexpr int kMaxN = kMoeGroupedRows;
constexpr int kSlots = 4;                                      // tiles announced ahead
constexpr int kOutRows = 32, kStageOutBytes = kOutRows * 128;  // a warpgroup's outputs on their way: 32 rows x 64 columns

// A stage: 16 units x `kColumns` columns.
template <bool kMx>
struct Shape;
template <>
struct Shape<true> {
  static constexpr int kColumns = 256, kUnit = 2176, kAStages = 3, kBStages = 6;
};
template <>
struct Shape<false> {
  static constexpr int kColumns = 64, kUnit = 2048, kAStages = 4, kBStages = 5;
};

template <bool kMx>
struct Layout {
  using S = Shape<kMx>;
  static constexpr int kABytes = kMoeGroupedUnits * S::kUnit;
  static constexpr int kB = S::kAStages * kABytes, kOut = kB + S::kBStages * kBBytes,
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

// By one thread. The boxes of 8 rows of a tile reach up to 7 rows into the next expert, whose products are not stored.
template <bool kMx>
__device__ __forceinline__ void stream_rows(const MoeGroupedGemm& p, uint32_t base) {
  using L = Layout<kMx>;
  const int steps = (p.k + 63) / 64;
  Ring<kSlots> slots;
  Ring<Shape<kMx>::kBStages> b;
  for (;;) {
    const Work work = take_work(base + L::kInfo, base + L::kSlotFull, base + L::kSlotEmpty, slots);
    if (work.rows < 0) return;
    if (threadIdx.x % 32 != 0) continue;
    const int rows = (work.rows + 7) / 8 * 8;
    for (int s = 0; s < steps; ++s, b.next()) {
      const uint32_t full = base + L::kBFull + 8 * static_cast<uint32_t>(b.stage),
                     to = base + L::kB + static_cast<uint32_t>(b.stage) * kBBytes;
      mbar_wait(base + L::kBEmpty + 8 * static_cast<uint32_t>(b.stage), b.phase ^ 1);
      mbar_expect(full, static_cast<uint32_t>(rows) * 128);
      int row = 0;
      for (; row + 32 <= rows; row += 32)
        tma_load_2d(to + static_cast<uint32_t>(row) * 128, &p.map32, s * 64, work.row + row, full);
      for (; row < rows; row += 8) tma_load_2d(to + static_cast<uint32_t>(row) * 128, &p.map8, s * 64, work.row + row, full);
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
  int group, warp, lane;  // group: 0..3
  Ring<Shape<kMx>::kAStages> a;
  Ring<Shape<kMx>::kBStages> b;
};

// The registers of wgmma: one set for every number of rows.
struct Operands {
  float d[kMaxN / 2];
  uint32_t a[4][4];  // [product of 16 columns][register]
};

// Products of 64 columns with N rows.
template <int N>
__device__ __forceinline__ void products_of(Operands& o, uint64_t rows) {
  wgmma_fence();
#pragma unroll
  for (int m = 0; m < 4; ++m)
    Wgmma<N>::rs(reinterpret_cast<float(&)[N / 2]>(o.d), o.a[m], rows + static_cast<uint64_t>(2 * m), true);
  wgmma_commit();
}

// The width is chosen here and not around the whole loop: of several loops ptxas keeps all registers apart as if all were in
// flight at once, runs out of them, and waits after every product. Fence and commit belong into the branch for the same
// reason.
__device__ __forceinline__ void products(Operands& o, uint64_t rows, int eights) {
  switch (eights) {
    case 1: return products_of<8>(o, rows);
    case 2: return products_of<16>(o, rows);
    case 3: return products_of<24>(o, rows);
    case 4: return products_of<32>(o, rows);
    case 5: return products_of<40>(o, rows);
    case 6: return products_of<48>(o, rows);
    case 7: return products_of<56>(o, rows);
    case 8: return products_of<64>(o, rows);
    case 9: return products_of<72>(o, rows);
    case 10: return products_of<80>(o, rows);
    case 11: return products_of<88>(o, rows);
    case 12: return products_of<96>(o, rows);
    case 13: return products_of<104>(o, rows);
    case 14: return products_of<112>(o, rows);
    case 15: return products_of<120>(o, rows);
    default: return products_of<128>(o, rows);
  }
}

// kColumns outputs (64 or 32) of up to 32 rows from the staging area to out.
template <int kColumns>
__device__ __forceinline__ uint32_t staged(int row, int chunk) {  // of 16 bytes
  const auto r = static_cast<uint32_t>(row), c = static_cast<uint32_t>(chunk);
  return kColumns == 64 ? swizzle_128(r, c * 16) : r * 64 + ((c ^ (r / 2 % 4)) << 4);
}
template <int kColumns>
__device__ __forceinline__ void store_block(const MoeGroupedGemm& p, uint32_t out, const Work& work, int first_row,
                                            int column) {
  constexpr int kChunks = kColumns / 8;
  const int thread = static_cast<int>(threadIdx.x) % 128, chunk = thread % kChunks;
  if (column + chunk * 8 >= p.out_columns) return;
#pragma unroll
  for (int row = thread / kChunks; row < kOutRows; row += 128 / kChunks) {
    if (first_row + row >= work.rows) break;
    const uint4 v = load_shared_16(out + staged<kColumns>(row, chunk));
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + (work.row + first_row + row) * p.out_stride + column +
                              chunk * 8) = v;
  }
}

template <bool kMx>
__device__ __forceinline__ void finish_gate_up(const MoeGroupedGemm& p, const Consumer<kMx>& me, const Work& work,
                                               const float (&d)[kMaxN / 2]) {
  const uint32_t out = me.base + Layout<kMx>::kOut + static_cast<uint32_t>(me.group) * kStageOutBytes;
  const int g = me.lane / 4, q = me.lane % 4, unit = work.m_tile * kMoeGroupedUnits + me.group * 4 + me.warp;
  const bool real = unit * 8 + g < p.hidden;
  float f1 = 1, f3 = 1;
  if (kMx && p.factors != nullptr) f1 = p.factors[work.expert * 4], f3 = p.factors[work.expert * 4 + 2];
#pragma unroll
  for (int first = 0; first < kMaxN; first += kOutRows) {
    if (first >= work.rows) break;
    named_barrier(1 + me.group, 128);
#pragma unroll
    for (int block = first / 8; block < (first + kOutRows) / 8; ++block) {
      if (block * 8 >= work.rows) break;
      const float v0 = real ? glu_value(p.glu, d[4 * block] * f1, d[4 * block + 2] * f3) : 0;
      const float v1 = real ? glu_value(p.glu, d[4 * block + 1] * f1, d[4 * block + 3] * f3) : 0;
      // Lanes of even g keep the even row, of odd g the odd one; a word has the columns of both.
      const float other = __shfl_xor_sync(0xFFFFFFFFU, g % 2 == 0 ? v1 : v0, 4);
      const uint32_t word = g % 2 == 0 ? pack_bf16(v0, other) : pack_bf16(other, v1);
      store_shared_4(out + staged<32>(8 * block - first + 2 * q + g % 2, g / 2) + static_cast<uint32_t>(me.warp) * 4, word);
    }
    named_barrier(1 + me.group, 128);
    store_block<32>(p, out, work, first, work.m_tile * 128 + me.group * 32);
  }
}

template <bool kMx>
__device__ __forceinline__ void finish_down(const MoeGroupedGemm& p, const Consumer<kMx>& me, const Work& work,
                                            const float (&d)[kMaxN / 2]) {
  const uint32_t out = me.base + Layout<kMx>::kOut + static_cast<uint32_t>(me.group) * kStageOutBytes;
  const float f = kMx && p.factors != nullptr ? p.factors[work.expert * 4 + 1] : 1;
  const int matrix = me.lane / 8;
#pragma unroll
  for (int first = 0; first < kMaxN; first += kOutRows) {
    if (first >= work.rows) break;
    named_barrier(1 + me.group, 128);
#pragma unroll
    for (int block = first / 8; block < (first + kOutRows) / 8; block += 2) {
      if (block * 8 >= work.rows) break;
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = pack_bf16(d[4 * block + 2 * i] * f, d[4 * block + 2 * i + 1] * f);
      stmatrix_x4_trans(out + staged<64>(8 * (block + matrix / 2) - first + me.lane % 8, 2 * me.warp + matrix % 2), r);
    }
    named_barrier(1 + me.group, 128);
    store_block<64>(p, out, work, first, work.m_tile * 256 + me.group * 64);
  }
}

template <bool kMx, bool kDown>
__device__ __forceinline__ void tile(const MoeGroupedGemm& p, Consumer<kMx>& me, const Work& work, Operands& o) {
  using L = Layout<kMx>;
  using S = Shape<kMx>;
  constexpr int kSteps = S::kColumns / 64;  // of an A stage
#pragma unroll
  for (float& d : o.d) d = 0;
  const int eights = __shfl_sync(0xFFFFFFFFU, (work.rows + 7) / 8, 0);
  const int steps = (p.k + 63) / 64;
  for (int s = 0; s < steps; ++s) {
    const int part = s % kSteps;
    if (part == 0) mbar_wait(me.base + L::kAFull + 8 * static_cast<uint32_t>(me.a.stage), me.a.phase);
    const uint32_t unit = me.base + static_cast<uint32_t>(me.a.stage * L::kABytes + (me.group * 4 + me.warp) * S::kUnit);
    uint4 codes{};
    uint32_t scales = 0;
    if constexpr (kMx) {
      codes = load_shared_16(unit + 128 + static_cast<uint32_t>(part * 512 + me.lane * 16));
      scales = load_shared_4(unit + static_cast<uint32_t>(me.lane / 4 * 16 + part * 4));
    }
    if (s > 0) {  // products of the step before: their rows and the registers of their weights are free
      wgmma_wait<0>();
      __syncwarp();
      if (me.lane == 0) mbar_arrive(me.base + L::kBEmpty + 8 * static_cast<uint32_t>(me.b.stage));
      me.b.next();
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {  // groups of 32 columns
      uint32_t half[2][4];         // rows g and g + 8
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
        const uint32_t at = unit + static_cast<uint32_t>(q * 1024 + me.lane * 16);
        const uint4 low = load_shared_16(at), high = load_shared_16(at + 512);
        half[0][0] = low.x, half[0][1] = low.y, half[0][2] = low.z, half[0][3] = low.w;
        half[1][0] = high.x, half[1][1] = high.y, half[1][2] = high.z, half[1][3] = high.w;
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        o.a[2 * q + m][0] = half[0][2 * m], o.a[2 * q + m][1] = half[1][2 * m];
        o.a[2 * q + m][2] = half[0][2 * m + 1], o.a[2 * q + m][3] = half[1][2 * m + 1];
      }
    }
    mbar_wait(me.base + L::kBFull + 8 * static_cast<uint32_t>(me.b.stage), me.b.phase);
    products(o, make_desc(me.base + L::kB + static_cast<uint32_t>(me.b.stage) * kBBytes, 0, 1024, Swizzle::bytes_128),
             eights);
    if (part == kSteps - 1 || s == steps - 1) {
      __syncwarp();
      if (me.lane == 0) mbar_arrive(me.base + L::kAEmpty + 8 * static_cast<uint32_t>(me.a.stage));
      me.a.next();
    }
  }
  wgmma_wait<0>();
  __syncwarp();
  if (me.lane == 0) mbar_arrive(me.base + L::kBEmpty + 8 * static_cast<uint32_t>(me.b.stage));
  me.b.next();
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
  Operands o;
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
    more_registers<112>();
    consume<kMx, kDown>(p, base);
  } else {
    fewer_registers<32>();
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
