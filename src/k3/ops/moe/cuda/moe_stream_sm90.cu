// Experts for few tokens: weights stream through shared memory once, tokens are the N side of the products.
//
// A block owns a range of units (16 packed rows, all of K) of the tiles in order; a segment is the part of the range inside
// one tile. The chunks of a segment, one after another in memory, are split evenly over the warps; each warp fetches its own
// by bulk copies into a ring of its own, which runs ahead across segments, so that only the activations of a segment (B
// fragments in shared memory) make the warps meet. A unit that two warps share is summed in shared memory by the warp that
// has its beginning.
//
// One launch does all: after its part of the gate and up rows a block goes on to its part of the down rows, whose weights
// are on their way by then; counters in memory say which tiles' activations are complete, and when all is there the blocks
// sum up the tokens. So all blocks must be resident at once: one a multiprocessor.
#include <cuda_bf16.h>

#include "k3/ops/cuda/counters.cuh"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/once.cuh"
#include "k3/ops/moe/cuda/moe_combine_cuda.cuh"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"
#include "k3/ops/router/cuda/router_token.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kSmallTokens = 8, kSmallSlots = 128;

__device__ __forceinline__ float glu(const MoeGlu& kind, float gate, float up) {
  if (!kind.situ) return silu_glu(gate, up);
  const bool linear = kind.linear_beta != 0;
  const SituBetas betas = {linear ? kind.beta * kind.linear_beta : kind.beta, 1 / kind.beta, linear ? 1 / kind.linear_beta : 0};
  return linear ? situ_glu<false, true>(gate, up, betas) : situ_glu<false, false>(gate, up, betas);
}

// Products of one chunk with the first kUsed of kBlocks blocks of 8 tokens; `b`: B fragments of its first group.
template <MoeWeights kKind, int kBlocks, int kUsed>
__device__ __forceinline__ void multiply(uint32_t chunk, uint32_t b, int lane, float (&acc)[2][kBlocks][4]) {
  constexpr int kGroups = static_cast<int>(moe_chunk_columns(kKind)) / 32;
  const auto products = [&](int q, const uint32_t(&low)[4], const uint32_t(&high)[4]) {  // rows g and g + 8
    const uint32_t first[4] = {low[0], high[0], low[1], high[1]}, second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
    for (int n = 0; n < kUsed; ++n) {
      const uint4 x = shared_load_16(b + static_cast<uint32_t>((q * kBlocks + n) * 512));
      const uint32_t x0[2] = {x.x, x.y}, x1[2] = {x.z, x.w};
      mma_bf16(acc[q & 1][n], first, x0);
      mma_bf16(acc[q & 1][n], second, x1);
    }
  };
  const uint32_t at = chunk + static_cast<uint32_t>(lane) * 16;
  if constexpr (kKind == MoeWeights::bf16) {
#pragma unroll
    for (int q = 0; q < kGroups; ++q) {
      const uint4 l = shared_load_16(at + static_cast<uint32_t>(q * 1024)),
                  h = shared_load_16(at + static_cast<uint32_t>(q * 1024 + 512));
      const uint32_t low[4] = {l.x, l.y, l.z, l.w}, high[4] = {h.x, h.y, h.z, h.w};
      products(q, low, high);
    }
  } else {
    const uint4 s = shared_load_16(chunk + static_cast<uint32_t>(lane / 4 * 16));
    const uint32_t scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int p = 0; p < kGroups / 2; ++p) {
      const uint4 c = shared_load_16(at + static_cast<uint32_t>(128 + p * 512));
      const uint32_t codes[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t factors = mxfp4_factors(scales[p], i);
        const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&factors);
        const __nv_bfloat162 factor_low = __low2bfloat162(both), factor_high = __high2bfloat162(both);
        uint32_t low[4], high[4];
        mxfp4_decode(codes[2 * i], low);
        mxfp4_decode(codes[2 * i + 1], high);
#pragma unroll
        for (int j = 0; j < 4; ++j) low[j] = mxfp4_scaled(low[j], factor_low), high[j] = mxfp4_scaled(high[j], factor_high);
        products(2 * p + i, low, high);
      }
    }
  }
}

// What a block must know of the routing. in_order (tokens <= 8): tile i is the i-th distinct expert in the order of ids,
// column n is token n, slots from a table; else tiles and slots come from the plan.
struct Table {
  float* factors;   // [max_tiles][4], from the block's first tile on
  int32_t* rows;    // planned: [max_tiles][2] first row, rows
  int16_t* expert;  // [max_tiles]
  uint8_t* slot;    // in order: [kSmallSlots][8], 255: none
};

__device__ __forceinline__ int quotient(int x, const MoeDivisor& d) {
  return d.magic == 0 ? x : static_cast<int>(__umulhi(static_cast<uint32_t>(x), d.magic));
}

__device__ int tokens_now(const MoeStreamPass& p) {
  if (p.token_count == nullptr) return p.tokens;
  const int count = *p.token_count;
  return count < 0 ? 0 : count < p.tokens ? count : p.tokens;
}

// Where a block keeps its own routing (kMoeRouteBytes).
struct RouteShared {
  int32_t* ids;    // [kSmallSlots]
  float* weights;  // [kSmallSlots]
  uint2* candidates;
  int* chosen;
  __device__ RouteShared(uint8_t* at, int warp)
      : ids(reinterpret_cast<int32_t*>(at)),
        weights(reinterpret_cast<float*>(ids + kSmallSlots)),
        candidates(reinterpret_cast<uint2*>(weights + kSmallSlots) + warp * kRouterCandidates),
        chosen(reinterpret_cast<int*>(reinterpret_cast<uint2*>(weights + kSmallSlots) + kSmallTokens * kRouterCandidates) +
               warp * kRouterTopk) {}
};

// Rows [first, first + rows) of the shared experts' down matrix times their activations, one row a warp at a time. `w` and
// `sums` [tokens][rows] in shared memory.
__device__ __forceinline__ void shared_rows(const MoeSharedCuda& p, int tokens, int rows, const uint8_t* w, float* sums, int warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, pieces = p.columns / 8;
#pragma unroll 1
  for (int item = warp; item < rows * tokens; item += warps) {
    const int row = item % rows, token = item / rows;
    const auto* x = static_cast<const uint4*>(p.hidden) + static_cast<int64_t>(token) * pieces;
    const auto* y = reinterpret_cast<const uint4*>(w) + row * pieces;
    float sum = 0;
#pragma unroll 4
    for (int i = lane; i < pieces; i += 32) {
      const uint4 a = x[i], b = y[i];
      sum = fmaf(low_bf16(a.x), low_bf16(b.x), fmaf(high_bf16(a.x), high_bf16(b.x), sum));
      sum = fmaf(low_bf16(a.y), low_bf16(b.y), fmaf(high_bf16(a.y), high_bf16(b.y), sum));
      sum = fmaf(low_bf16(a.z), low_bf16(b.z), fmaf(high_bf16(a.z), high_bf16(b.z), sum));
      sum = fmaf(low_bf16(a.w), low_bf16(b.w), fmaf(high_bf16(a.w), high_bf16(b.w), sum));
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[item] = sum;
  }
}

// One token's routing by one warp, in each block anew. shared_keys: of all experts.
template <int kHeld>
__device__ __forceinline__ void route_here(const MoeStreamPass& p, const RouteShared& to, const uint32_t* shared_keys,
                                           const float* logits, int token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keys[i] = i * 32 + lane < p.route.experts ? shared_keys[i * 32 + lane] : 0;
  const RouteChoice choice =
      route_token({p.route.experts, p.topk, p.route.renormalise, p.route.scale}, logits, keys, to.candidates, to.chosen);
  if (lane < p.topk) {
    to.ids[token * p.topk + lane] = choice.expert;
    to.weights[token * p.topk + lane] = choice.weight;
  }
}

// The table in order; `slots` are those of real tokens. Table::slot is all 255 and a barrier has passed. Returns the number
// of tiles. By all threads, at least 128; ends with a barrier.
__device__ int small_table(const MoeStreamPass& p, const int32_t* ids, const Table& table, int slots) {
  __shared__ int16_t local[kSmallSlots], tile_of[kSmallSlots];
  __shared__ int firsts[4];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const bool one_warp = slots <= 32;
  if (warp >= (one_warp ? 1 : 4)) {
    __syncthreads();
    if (!one_warp) __syncthreads();
    if (!one_warp) __syncthreads();
    return one_warp ? firsts[0] : firsts[0] + firsts[1] + firsts[2] + firsts[3];
  }
  const int global = tid < slots ? ids[tid] - p.first_expert : -1, mine = global >= 0 && global < p.experts ? global : -1;
  int leader = warp * 32 + __ffs(static_cast<int>(__match_any_sync(0xFFFFFFFFU, mine))) - 1;
  if (!one_warp) {
    local[tid] = static_cast<int16_t>(mine);
    __syncthreads();
#pragma unroll 8
    for (int i = warp * 32 - 1; i >= 0; --i) {
      if (local[i] == mine) leader = i;
    }
  }
  const unsigned vote = __ballot_sync(0xFFFFFFFFU, mine >= 0 && leader == tid);
  int before = __popc(vote & ((1U << lane) - 1)), count = __popc(vote);
  if (lane == 0) firsts[warp] = count;
  if (!one_warp) {
    __syncthreads();
    count = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if (w < warp) before += firsts[w];
      count += firsts[w];
    }
  }
  if (mine >= 0 && leader == tid) {
    tile_of[tid] = static_cast<int16_t>(before);
    table.expert[before] = static_cast<int16_t>(mine);
    if (p.factors != nullptr) cp_async<16>(shared_address(table.factors + before * 4), p.factors + mine * 4);
  }
  if (one_warp) {
    __syncwarp();
  } else {
    named_barrier(1, 128);
  }
  if (mine >= 0) table.slot[tile_of[leader] * kSmallTokens + tid / p.topk] = static_cast<uint8_t>(tid);
  __syncthreads();
  return count;
}

// kPlaces: experts lie where MoePlaces says; a kernel of its own, because it takes registers that the other needs.
template <MoeWeights kKind, int kBlocks, int kWarps, int kStages, int kPer, bool kPlaces>
__global__ void __launch_bounds__(kWarps * 32, 1) stream_experts(const __grid_constant__ MoeStreamPass p) {
  constexpr int kThreads = kWarps * 32, kBytes = static_cast<int>(moe_chunk_bytes(kKind)), kStage = kPer * kBytes;
  constexpr int kGroups = static_cast<int>(moe_chunk_columns(kKind)) / 32;
  static_assert(kWarps % kBlocks == 0, "a thread's column is fixed");
  K3_SHARED_BYTES(shared, 128);
  __shared__ __align__(8) uint64_t all_bars[kWarps * kStages];
  // B fragments | rings | shared units | table
  const uint32_t b_base = shared_address(shared);
  float* joined = reinterpret_cast<float*>(shared + p.b_bytes + kWarps * kStages * kStage);
  float* tables = joined + kWarps * 32 * kBlocks * 4;
  const bool in_order = p.tiles == nullptr;
  Table table;
  table.factors = tables;
  table.rows = reinterpret_cast<int32_t*>(tables + p.max_tiles * 4);
  table.slot = reinterpret_cast<uint8_t*>(table.rows);
  table.expert = reinterpret_cast<int16_t*>(table.rows + p.max_tiles * 2);  // slots of a tile in order: 8 bytes, too
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const uint32_t ring = b_base + static_cast<uint32_t>(p.b_bytes + warp * kStages * kStage),
                 my_bars = shared_address(all_bars + warp * kStages);
  if (lane < kStages) mbar_init(my_bars + static_cast<uint32_t>(lane) * 8, 1);
  mbar_init_fence();
  if (in_order) {
    for (int i = tid; i < kSmallSlots * kSmallTokens / 4; i += kThreads)
      reinterpret_cast<uint32_t*>(table.slot)[i] = 0xFFFFFFFFU;
  }
  // The sum in order is dealt by columns, and so are the shared experts' rows, which come before anything else.
  const int fours = p.sum.width / 4, each = (fours + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int first_four = min(static_cast<int>(blockIdx.x) * each, fours), my_fours = min(each, fours - first_four);
  const bool with_shared = kBlocks == 1 && p.shared.w != nullptr;
  float* const shared_sums = reinterpret_cast<float*>(shared + p.shared_at + 4 * each * p.shared.columns * 2);
  if (with_shared) {
    const auto* from = static_cast<const uint8_t*>(p.shared.w) + static_cast<int64_t>(4 * first_four) * p.shared.columns * 2;
    for (int i = tid; i < 4 * my_fours * (p.shared.columns / 8); i += kThreads) cp_async<16>(b_base + static_cast<uint32_t>(p.shared_at + i * 16), from + i * 16);
    cp_async_commit();
  }
  const bool routes = kBlocks == 1 && p.route.logits != nullptr;
  const RouteShared routed(shared + p.route_at, warp);
  const int32_t* const ids = routes ? routed.ids : p.ids;
  const float* const slot_weights = routes ? routed.weights : p.sum.weights;
  auto* const keys = reinterpret_cast<uint32_t*>(shared + p.b_bytes);  // in the rings, [tokens][experts]
  const auto route = [&](const float* logits, int stride, int count) {
    for (int token = 0; token < count; ++token) {
      for (int e = tid; e < p.route.experts; e += kThreads) {
        keys[token * p.route.experts + e] = route_key(logits[token * stride + e], p.route.bias != nullptr ? p.route.bias[e] : 0);
      }
    }
    __syncthreads();
    if (warp >= count) return;
    const uint32_t* mine = keys + warp * p.route.experts;
    if (p.route.experts <= 256) {
      route_here<8>(p, routed, mine, logits + warp * stride, warp);
    } else {
      route_here<32>(p, routed, mine, logits + warp * stride, warp);
    }
  };
  __syncthreads();
  int tokens = 0;
  // Routing runs twice: the first time on the bias, before the kernel before has ended, so that its code is there.
#pragma unroll 1
  for (int pass = routes && p.route.bias != nullptr ? 0 : 1; pass < 2; ++pass) {
    if (pass == 1) {
      pdl_wait();
      pdl_release();  // not before: what follows may read what the kernel two before this one wrote
      tokens = tokens_now(p);
    }
    if (!routes) continue;
    route(pass == 1 ? p.route.logits : p.route.bias, pass * p.route.experts, pass == 1 ? tokens : p.tokens);
    __syncthreads();
  }
  // B fragments of a segment: a thread always copies for the same column.
  const auto copy_b = [&](int phase, int row) {
    if (row >= 0) {
      const int columns = p.columns[phase], pieces = p.chunks[phase] * kGroups * kBlocks;
      const __nv_bfloat16* x =
          static_cast<const __nv_bfloat16*>(phase == 0 ? p.z : p.hidden) + static_cast<int64_t>(row) * columns;
      for (int i = warp; i < pieces; i += kWarps) {
        const int column = i / kBlocks * 32 + t * 8;
        const bool inside = column < columns;
        cp_async<16>(b_base + static_cast<uint32_t>(i * 512 + lane * 16), x + (inside ? column : 0), inside);
      }
    }
    cp_async_commit();
  };
  // Activations before weights: what comes after the first fill of the rings waits for it.
  if (in_order) copy_b(0, g < tokens ? g : -1);
  if (routes) fence_async_proxy();  // copies come where the keys were, after small_table's barriers
  const int tile_count = in_order ? small_table(p, ids, table, tokens * p.topk) : *p.tile_count;
  const auto part_of = [&](int units, int block) {  // the first unit of a block
    return static_cast<int>(static_cast<uint32_t>(tile_count * units) * static_cast<uint32_t>(block) / gridDim.x);
  };
  const int block = static_cast<int>(blockIdx.x);
  const int begins[2] = {part_of(p.units[0], block), part_of(p.units[1], block)},
            ends[2] = {part_of(p.units[0], block + 1), part_of(p.units[1], block + 1)};
  // Both passes divide the tiles alike, so that these are the tiles of both.
  const int first_tile = in_order ? 0 : quotient(begins[0], p.by_units[0]);
  if (in_order) cp_async_commit();  // the factors
  if (!in_order) {
    const int last_tile = (tile_count * (block + 1) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    for (int i = tid; i < last_tile - first_tile; i += kThreads) {
      const MoeTile tile = p.tiles[first_tile + i];
      table.expert[i] = static_cast<int16_t>(tile.expert);
      table.rows[2 * i] = tile.row;
      table.rows[2 * i + 1] = tile.rows;
      if (p.factors != nullptr) cp_async<16>(shared_address(table.factors + 4 * i), p.factors + tile.expert * 4);
    }
    __syncthreads();
  }
  // B of the first pass in order is the tokens themselves: one segment.
  const auto segment_end = [&](int phase, int from, int end) {
    return in_order && phase == 0 ? end : min(end, (quotient(from, p.by_units[phase]) + 1) * p.units[phase]);
  };
  const auto slot_of = [&](int tile, int n) {  // of column n, or -1
    if (in_order) {
      const int slot = table.slot[tile * kSmallTokens + n];
      return slot == 255 ? -1 : slot;
    }
    const int* rows = table.rows + 2 * (tile - first_tile);
    return n < rows[1] ? p.row_slot[rows[0] + n] : -1;
  };
  const auto load_b = [&](int phase, int tile) {
    if (phase == 1) {
      if (lane == 0) {
        while (acquire_load(p.counters + 2 + tile) < p.units[0]) {
        }
      }
      __syncwarp();
    }
    const int slot = slot_of(tile, warp % kBlocks * 8 + g);
    copy_b(phase, phase == 0 && slot >= 0 ? slot / p.topk : slot);
  };
  if (!in_order && begins[0] < ends[0]) load_b(0, first_tile);
  const auto share = [&](int phase, int units, int w) { return units * p.chunks[phase] * w / kWarps; };

  // Where this warp's next fetch comes from: chunk `at` of [.., until) of the segment [from, to), `left` chunks until the
  // address jumps.
  struct {
    int phase, from, to, end, at, until, left;
    const uint8_t* source;
  } f{0, 0, begins[0], ends[0], 0, 0, 0, nullptr};
  const auto fetch = [&](uint32_t stage) {
    if (f.left == 0) {
      while (f.at == f.until) {
        if (f.to == f.end) {
          if (f.phase == 1) return;
          f.phase = 1;
          f.to = begins[1];
          f.end = ends[1];
          continue;
        }
        f.from = f.to;
        f.to = segment_end(f.phase, f.from, f.end);
        f.at = share(f.phase, f.to - f.from, warp);
        f.until = share(f.phase, f.to - f.from, warp + 1);
      }
      const int of_tile = p.units[f.phase] * p.chunks[f.phase],
                tile = quotient(f.from + quotient(f.at, p.by_chunks[f.phase]), p.by_units[f.phase]);
      const int inside = f.from * p.chunks[f.phase] + f.at - tile * of_tile;
      if constexpr (kPlaces) {
        f.source = expert_at(p.places, table.expert[tile - first_tile]) +
                   static_cast<int64_t>(f.phase == 0 ? inside : p.units[0] * p.chunks[0] + inside) * kBytes;
      } else {
        f.source = static_cast<const uint8_t*>(p.packed[f.phase]) +
                   (static_cast<int64_t>(table.expert[tile - first_tile]) * of_tile + inside) * kBytes;
      }
      f.left = min(f.until - f.at, of_tile - inside);
    }
    const int count = min(f.left, kPer);
    if (lane == 0) {
      mbar_expect(my_bars + stage * 8, static_cast<uint32_t>(count * kBytes));
      bulk_load_once(ring + stage * kStage, f.source, static_cast<uint32_t>(count * kBytes), my_bars + stage * 8);
    }
    f.source += count * kBytes;
    f.at += count;
    f.left -= count;
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(static_cast<uint32_t>(i));
  if (with_shared) {  // while the first weights come
    cp_async_wait<0>();
    __syncthreads();
    shared_rows(p.shared, tokens, 4 * my_fours, shared + p.shared_at, shared_sums, kWarps);
  }

  const auto store = [&](int phase, int unit, const float(&acc)[2][kBlocks][4]) {
    const int tile = quotient(unit, p.by_units[phase]), row = (unit - tile * p.units[phase]) * (phase == 0 ? 8 : 16) + g;
    float scale[2] = {1, 1};
    if (p.factors != nullptr) {
      const float* factors = table.factors + (tile - first_tile) * 4;
      scale[0] = factors[phase == 0 ? 0 : 1];
      scale[1] = factors[phase == 0 ? 2 : 1];
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t slot = slot_of(tile, n * 8 + t * 2 + i);
        if (slot < 0) continue;
        const float first = (acc[0][n][i] + acc[1][n][i]) * scale[0],
                    second = (acc[0][n][2 + i] + acc[1][n][2 + i]) * scale[1];
        if (phase == 0) {
          static_cast<__nv_bfloat16*>(p.hidden)[slot * p.columns[1] + row] = __float2bfloat16(glu(p.glu, first, second));
        } else {
          float* out = p.slot_out + slot * p.columns[0];
          out[row] = first;
          if (row + 8 < p.columns[0]) out[row + 8] = second;
        }
      }
    }
  };
  const auto announce = [&](int from, int to) {  // units of activations, stored by all before a barrier
    if (tid != 0) return;
    while (from < to) {
      const int tile = quotient(from, p.by_units[0]), until = min(to, (tile + 1) * p.units[0]);
      release_add(p.counters + 2 + tile, until - from);
      from = until;
    }
  };

  uint32_t stage = 0, parity = 0;
  int pending = 0, pending_end = 0;  // units to announce after the next barrier
#pragma unroll 1
  for (int phase = 0; phase < 2; ++phase) {
    const int begin = phase == 0 ? begins[0] : begins[1], end = phase == 0 ? ends[0] : ends[1], chunks = p.chunks[phase],
              units = p.units[phase];
    if (phase == 1 && begin < end) {
      cp_async_wait<0>();  // a block without a unit of the first phase has not waited for its copies, whose place is written again
      load_b(phase, quotient(begin, p.by_units[phase]));
    }
#pragma unroll 1
    for (int seg = begin; seg < end;) {
      const int seg_end = segment_end(phase, seg, end), seg_units = seg_end - seg;
      const bool few = kBlocks > 1 && table.rows[2 * (quotient(seg, p.by_units[phase]) - first_tile) + 1] <= 8;
      cp_async_wait<0>();
      __syncthreads();
      announce(pending, pending_end);
      pending = pending_end;
      const int first = share(phase, seg_units, warp), last = share(phase, seg_units, warp + 1);
      float acc[2][kBlocks][4] = {};
      int unit = seg + quotient(first, p.by_chunks[phase]), k = first - (unit - seg) * chunks;
      bool begun_before = k != 0;
      int run = 0;  // chunks until the address jumps
      for (int c = first; c < last;) {
        mbar_wait(my_bars + stage * 8, parity);
        if (run == 0) {
          run = last - c;
          if (in_order) run = min(run, ((quotient(unit, p.by_units[phase]) + 1) * units - unit) * chunks - k);
        }
        const int have = min(run, kPer);
        run -= have;
        uint32_t chunk = ring + stage * kStage;
        for (int i = 0; i < have; ++i, chunk += kBytes) {
          const uint32_t b = b_base + static_cast<uint32_t>(k * kGroups * kBlocks * 512 + lane * 16);
          if (few) {
            multiply<kKind, kBlocks, 1>(chunk, b, lane, acc);
          } else {
            multiply<kKind, kBlocks, kBlocks>(chunk, b, lane, acc);
          }
          ++k;
          ++c;
          if (k == chunks ||
              (c == last && begun_before)) {  // complete, or this warp's part of a unit that an earlier warp began
            if (begun_before) {
#pragma unroll
              for (int n = 0; n < kBlocks; ++n) {
                float4* to_join = reinterpret_cast<float4*>(joined) + (warp * kBlocks + n) * 32 + lane;
                *to_join = {acc[0][n][0] + acc[1][n][0], acc[0][n][1] + acc[1][n][1], acc[0][n][2] + acc[1][n][2],
                            acc[0][n][3] + acc[1][n][3]};
              }
            } else {
              store(phase, unit, acc);
            }
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
              for (int j = 0; j < 4; ++j) acc[0][n][j] = acc[1][n][j] = 0;
            }
            if (k == chunks) {
              k = 0;
              ++unit;
              begun_before = false;
            }
          }
        }
        __syncwarp();
        fetch(stage);
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
      __syncthreads();  // B is free, and the parts are there
      if (seg_end < end) load_b(phase, quotient(seg_end, p.by_units[phase]));
      if (first < last && k != 0 && !begun_before) {  // the end of this unit is with the warps after
        for (int w = warp + 1; w < kWarps && share(phase, seg_units, w) < (unit - seg + 1) * chunks; ++w) {
          if (share(phase, seg_units, w) == share(phase, seg_units, w + 1)) continue;
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) {
            const float4 part = reinterpret_cast<const float4*>(joined)[(w * kBlocks + n) * 32 + lane];
            acc[0][n][0] += part.x, acc[0][n][1] += part.y, acc[0][n][2] += part.z, acc[0][n][3] += part.w;
          }
        }
        store(phase, unit, acc);
      }
      if (phase == 0) {
        pending = seg;
        pending_end = seg_end;
        if (seg_end == end) {  // before this block waits for tiles of its own
          __syncthreads();
          announce(pending, pending_end);
          pending = pending_end;
        }
      }
      seg = seg_end;
    }
  }

  const bool sums = p.sum.out != nullptr || p.sum.out_f32 != nullptr;
  cp_async_wait<0>();  // as above
  __syncthreads();
  if (sums) {
    if (tid == 0) release_add(p.counters, 1);
    const auto wait = [&] {
      if (lane == 0) {
        while (acquire_load(p.counters) < static_cast<int>(gridDim.x)) {
        }
      }
      __syncwarp();
    };
    if (kBlocks == 1 && in_order && p.sum.norm_weight == nullptr) {
      if (tid - lane < tokens * my_fours) {
        wait();
        for (int i = tid; i < tokens * my_fours; i += kThreads) {
          const int token = i / my_fours, four = i % my_fours;
          const float4 more = with_shared ? *reinterpret_cast<const float4*>(shared_sums + token * 4 * my_fours + 4 * four) : float4{};
          combine_four(p.sum, ids, slot_weights, token, first_four + four, more);
        }
      }
    } else {
      for (int token = block; token < tokens; token += static_cast<int>(gridDim.x)) {
        combine_token<kThreads>(p.sum, ids, slot_weights, token, 0, 1, reinterpret_cast<float4*>(shared), wait);
      }
    }
    __syncthreads();
  }
  if (tid == 0 && atomicAdd(p.counters + 1, 1) == static_cast<int>(gridDim.x) - 1) {  // the last to leave clears up
    for (int i = 0; i < tile_count + 2; ++i) p.counters[i] = 0;
  }
}

template <MoeWeights kKind, int kBlocks, int kWarps, int kStages, int kPer>
int launch_as(const MoeStreamConfig& c, const MoeStreamPass& p, cudaStream_t stream) {
  LaunchOptions o{.grid = dim3(static_cast<unsigned>(c.grid)),
                  .block = dim3(kWarps * 32),
                  .shared_bytes = c.shared_bytes,
                  .dependent = true};
  if (p.places.slot != nullptr) return launch(stream_experts<kKind, kBlocks, kWarps, kStages, kPer, true>, o, stream, p);
  return launch(stream_experts<kKind, kBlocks, kWarps, kStages, kPer, false>, o, stream, p);
}

}  // namespace

int moe_stream_launch(MoeWeights kind, const MoeStreamConfig& c, const MoeStreamPass& p, CUstream_st* stream) {
  const auto is = [&](MoeWeights k, int tile, int warps, int stages, int per) {
    return kind == k && c.tile == tile && c.warps == warps && c.stages == stages && c.per == per;
  };
  if (is(MoeWeights::mxfp4, 8, 16, 2, 2)) return launch_as<MoeWeights::mxfp4, 1, 16, 2, 2>(c, p, stream);
  if (is(MoeWeights::mxfp4, 16, 16, 2, 1)) return launch_as<MoeWeights::mxfp4, 2, 16, 2, 1>(c, p, stream);
  if (is(MoeWeights::bf16, 8, 8, 4, 1)) return launch_as<MoeWeights::bf16, 1, 8, 4, 1>(c, p, stream);
  if (is(MoeWeights::bf16, 16, 8, 3, 1)) return launch_as<MoeWeights::bf16, 2, 8, 3, 1>(c, p, stream);
  return static_cast<int>(cudaErrorInvalidConfiguration);
}

}  // namespace k3::ops::cuda
