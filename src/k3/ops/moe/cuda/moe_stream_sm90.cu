// Experts for few tokens: weights stream through shared memory once, tokens are the N side of the products.
//
// A block owns a range of units (16 packed rows, all of K) of the tiles in order; a segment is the part of the range inside one tile.
// The chunks of a segment, one after another in memory, are split evenly over the warps; each warp fetches its own by bulk copies
// into a ring of its own, which runs ahead across segments, so that only the activations of a segment (B fragments in shared memory)
// make the warps meet. A unit that two warps share is summed in shared memory by the warp that has its beginning.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kSmallTokens = 8, kSmallSlots = 128;

__device__ __forceinline__ uint4 shared_load(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ float glu(const MoeGlu& kind, float gate, float up) {
  const float sigmoid = 1.0F / (1.0F + __expf(-gate));
  if (!kind.situ) return gate * sigmoid * up;
  if (kind.linear_beta != 0) up = kind.linear_beta * tanhf(up / kind.linear_beta);
  return kind.beta * tanhf(gate / kind.beta) * sigmoid * up;
}

// Products of one chunk. B fragments of its first group lie at `b`; kBlocks of 8 tokens.
template <MoeWeights kKind, int kBlocks>
__device__ __forceinline__ void multiply(uint32_t chunk, uint32_t b, int lane, float (&acc)[2][kBlocks][4]) {
  constexpr int kGroups = static_cast<int>(moe_chunk_columns(kKind)) / 32;
  const auto products = [&](int q, const uint32_t(&low)[4], const uint32_t(&high)[4]) {  // rows g and g + 8
    const uint32_t first[4] = {low[0], high[0], low[1], high[1]}, second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const uint4 x = shared_load(b + static_cast<uint32_t>((q * kBlocks + n) * 512));
      const uint32_t x0[2] = {x.x, x.y}, x1[2] = {x.z, x.w};
      mma_bf16(acc[q & 1][n], first, x0);
      mma_bf16(acc[q & 1][n], second, x1);
    }
  };
  const uint32_t at = chunk + static_cast<uint32_t>(lane) * 16;
  if constexpr (kKind == MoeWeights::bf16) {
#pragma unroll
    for (int q = 0; q < kGroups; ++q) {
      const uint4 l = shared_load(at + static_cast<uint32_t>(q * 1024)), h = shared_load(at + static_cast<uint32_t>(q * 1024 + 512));
      const uint32_t low[4] = {l.x, l.y, l.z, l.w}, high[4] = {h.x, h.y, h.z, h.w};
      products(q, low, high);
    }
  } else {
    const uint4 s = shared_load(chunk + static_cast<uint32_t>(lane / 4 * 16));
    const uint32_t scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int p = 0; p < kGroups / 2; ++p) {
      const uint4 c = shared_load(at + static_cast<uint32_t>(128 + p * 512));
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

// What the blocks of a pass must know of the routing. in_order (tokens <= 8): tile i is the i-th distinct expert in the order of ids,
// column n is token n, slots from a table; else tiles and slots come from the plan.
struct Table {
  int16_t* expert;  // [max_tiles], from the block's first tile on
  int32_t* rows;    // planned: [max_tiles][2] first row, rows
  uint8_t* slot;    // in order: [kSmallSlots][8], 255: none
};

__device__ int tokens_now(const MoeStreamPass& p) {
  if (p.token_count == nullptr) return p.tokens;
  const int count = *p.token_count;
  return count < 0 ? 0 : count < p.tokens ? count : p.tokens;
}

// Returns the number of tiles. By all threads; at least 128.
__device__ int small_table(const MoeStreamPass& p, const Table& table) {
  __shared__ int16_t local[kSmallSlots], tile_of[kSmallSlots];
  __shared__ int firsts[4];
  const int tid = static_cast<int>(threadIdx.x), slots = tokens_now(p) * p.topk;
  for (int i = tid; i < kSmallSlots * kSmallTokens / 4; i += static_cast<int>(blockDim.x)) reinterpret_cast<uint32_t*>(table.slot)[i] = 0xFFFFFFFFU;
  if (tid < kSmallSlots) {
    const int e = tid < slots ? p.ids[tid] - p.first_expert : -1;
    local[tid] = static_cast<int16_t>(e >= 0 && e < p.experts ? e : -1);
  }
  __syncthreads();
  int leader = tid, mine = -1, before = 0;
  if (tid < kSmallSlots) {
    mine = local[tid];
    for (int i = 0; i < slots; ++i) {
      if (local[i] == mine && i < leader) leader = i;
    }
    const unsigned vote = __ballot_sync(0xFFFFFFFFU, mine >= 0 && leader == tid);
    before = __popc(vote & ((1U << (tid % 32)) - 1));
    if (tid % 32 == 0) firsts[tid / 32] = __popc(vote);
  }
  __syncthreads();
  int count = 0;
  for (int w = 0; w < 4; ++w) {
    if (w < tid / 32) before += firsts[w];
    count += firsts[w];
  }
  if (tid < kSmallSlots && mine >= 0 && leader == tid) {
    tile_of[tid] = static_cast<int16_t>(before);
    table.expert[before] = static_cast<int16_t>(mine);
  }
  __syncthreads();
  if (tid < kSmallSlots && mine >= 0) table.slot[tile_of[leader] * kSmallTokens + tid / p.topk] = static_cast<uint8_t>(tid);
  __syncthreads();
  return count;
}

template <MoeWeights kKind, bool kGate, int kBlocks, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32, 1) stream_pass(const __grid_constant__ MoeStreamPass p, int b_bytes) {
  constexpr int kTile = kBlocks * 8, kThreads = kWarps * 32, kBytes = static_cast<int>(moe_chunk_bytes(kKind));
  constexpr int kColumns = static_cast<int>(moe_chunk_columns(kKind));
  extern __shared__ __align__(128) uint8_t shared[];
  // B fragments | rings | shared units | barriers | table
  const uint32_t b_base = shared_address(shared);
  float* joined = reinterpret_cast<float*>(shared + b_bytes + kWarps * kStages * kBytes);
  const uint32_t bars = shared_address(joined + kWarps * 32 * kBlocks * 4);
  uint8_t* tables = reinterpret_cast<uint8_t*>(joined + kWarps * 32 * kBlocks * 4) + kWarps * kStages * 8;
  const bool in_order = p.tiles == nullptr;
  const Table table{reinterpret_cast<int16_t*>(tables + (in_order ? kSmallSlots * kSmallTokens : p.max_tiles * 8)),
                    reinterpret_cast<int32_t*>(tables), tables};
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const uint32_t ring = b_base + static_cast<uint32_t>(b_bytes + warp * kStages * kBytes), my_bars = bars + static_cast<uint32_t>(warp * kStages * 8);
  if (lane < kStages) mbar_init(my_bars + static_cast<uint32_t>(lane) * 8, 1);
  mbar_init_fence();

  // The routing is older than the pass before: the down pass may read it before it waits for the activations.
  if constexpr (kGate) {
    pdl_wait();
    pdl_release();
  }
  int tile_count, first_tile = 0;
  if (in_order) {
    tile_count = small_table(p, table);
  } else {
    tile_count = *p.tile_count;
  }
  const int64_t all_units = static_cast<int64_t>(tile_count) * p.units;
  const int begin = static_cast<int>(all_units * blockIdx.x / gridDim.x), end = static_cast<int>(all_units * (blockIdx.x + 1) / gridDim.x);
  if (!in_order) {
    first_tile = begin / p.units;
    const int count = end > begin ? (end - 1) / p.units + 1 - first_tile : 0;
    for (int i = tid; i < count; i += kThreads) {
      const MoeTile tile = p.tiles[first_tile + i];
      table.expert[i] = static_cast<int16_t>(tile.expert);
      table.rows[2 * i] = tile.row;
      table.rows[2 * i + 1] = tile.rows;
    }
  }
  __syncthreads();
  const bool one_segment = in_order && kGate;  // B is the tokens themselves
  const auto segment_end = [&](int from) { return one_segment ? end : min(end, (from / p.units + 1) * p.units); };
  const auto share = [&](int from, int to, int w) { return static_cast<int>(static_cast<int64_t>(to - from) * p.chunks * w / kWarps); };

  // Where this warp's next fetch comes from: chunk `at` of [.., until) of the segment [from, to), `left` chunks until the address jumps.
  const uint8_t* source = nullptr;
  int from = begin, to = begin, at = 0, until = 0, left = 0;
  const auto fetch = [&](uint32_t stage) {
    if (left == 0) {
      while (at == until) {
        if (to == end) return;
        from = to;
        to = segment_end(from);
        at = share(from, to, warp);
        until = share(from, to, warp + 1);
      }
      const int chunk = from * p.chunks + at, tile = chunk / (p.units * p.chunks), inside = chunk - tile * (p.units * p.chunks);
      const int64_t expert = table.expert[tile - first_tile];
      source = static_cast<const uint8_t*>(p.packed) + (expert * (static_cast<int64_t>(p.units) * p.chunks) + inside) * kBytes;
      left = min(until - at, p.units * p.chunks - inside);
    }
    if (lane == 0) {
      mbar_expect(my_bars + stage * 8, kBytes);
      bulk_load(ring + stage * kBytes, source, kBytes, my_bars + stage * 8);
    }
    source += kBytes;
    ++at;
    --left;
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(static_cast<uint32_t>(i));
  if constexpr (!kGate) {
    pdl_wait();
    pdl_release();
  }

  const auto slot_of = [&](int tile, int n) {  // of column n, or -1
    if (in_order) {
      const int slot = table.slot[tile * kSmallTokens + n];
      return slot == 255 ? -1 : slot;
    }
    const int* rows = table.rows + 2 * (tile - first_tile);
    return n < rows[1] ? p.row_slot[rows[0] + n] : -1;
  };
  // B fragments of a segment: a thread always copies for the same column.
  const int groups = p.chunks * (kColumns / 32);
  const auto load_b = [&](int tile) {
    const int n = warp % kBlocks * 8 + g;
    int row;
    if (one_segment) {
      row = n < tokens_now(p) ? n : -1;
    } else {
      row = slot_of(tile, n);
      if (kGate && row >= 0) row /= p.topk;
    }
    if (row >= 0) {
      const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(p.in) + static_cast<int64_t>(row) * p.columns;
      for (int i = warp; i < groups * kBlocks; i += kWarps) {
        const int column = i / kBlocks * 32 + t * 8;
        const bool inside = column < p.columns;
        cp_async<16>(b_base + static_cast<uint32_t>(i * 512 + lane * 16), x + (inside ? column : 0), inside);
      }
    }
    cp_async_commit();
  };
  static_assert(kWarps % kBlocks == 0, "a thread's column is fixed");

  const auto store = [&](int unit, float (&acc)[2][kBlocks][4]) {  // of the block's numbering
    const int tile = unit / p.units, row = (unit - tile * p.units) * (kGate ? 8 : 16) + g;
    float scale[2] = {1, 1};
    if (p.factors != nullptr) {
      const float* f = p.factors + static_cast<int64_t>(table.expert[tile - first_tile]) * 4;
      scale[0] = f[kGate ? 0 : 1];
      scale[1] = f[kGate ? 2 : 1];
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t slot = slot_of(tile, n * 8 + t * 2 + i);
        if (slot < 0) continue;
        const float first = (acc[0][n][i] + acc[1][n][i]) * scale[0], second = (acc[0][n][2 + i] + acc[1][n][2 + i]) * scale[1];
        if constexpr (kGate) {
          static_cast<__nv_bfloat16*>(p.out)[slot * p.rows + row] = __float2bfloat16(glu(p.glu, first, second));
        } else {
          float* out = static_cast<float*>(p.out) + slot * p.rows;
          out[row] = first;
          if (row + 8 < p.rows) out[row + 8] = second;
        }
      }
    }
  };

  uint32_t stage = 0, parity = 0;
  if (begin < end) load_b(begin / p.units);
  for (int seg = begin; seg < end;) {
    const int seg_end = segment_end(seg);
    cp_async_wait<0>();
    __syncthreads();
    const int first = share(seg, seg_end, warp), last = share(seg, seg_end, warp + 1);
    float acc[2][kBlocks][4] = {};
    int unit = seg + first / p.chunks, k = first % p.chunks;
    bool begun_before = k != 0;
    for (int c = first; c < last; ++c) {
      mbar_wait(my_bars + stage * 8, parity);
      multiply<kKind, kBlocks>(ring + stage * kBytes, b_base + static_cast<uint32_t>(k * (kColumns / 32) * kBlocks * 512 + lane * 16), lane, acc);
      __syncwarp();
      fetch(stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
      ++k;
      if (k == p.chunks || (c + 1 == last && begun_before)) {  // complete, or this warp's part of a unit that an earlier warp began
        if (begun_before) {
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) {
            float4* to_join = reinterpret_cast<float4*>(joined) + (warp * kBlocks + n) * 32 + lane;
            *to_join = {acc[0][n][0] + acc[1][n][0], acc[0][n][1] + acc[1][n][1], acc[0][n][2] + acc[1][n][2], acc[0][n][3] + acc[1][n][3]};
          }
        } else {
          store(unit, acc);
        }
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[0][n][i] = acc[1][n][i] = 0;
        }
        if (k == p.chunks) {
          k = 0;
          ++unit;
          begun_before = false;
        }
      }
    }
    __syncthreads();  // B is free, and the parts are there
    if (seg_end < end) load_b(seg_end / p.units);
    if (first < last && k != 0 && !begun_before) {  // the end of this unit is with the warps after
      for (int w = warp + 1; w < kWarps && share(seg, seg_end, w) < (unit - seg + 1) * p.chunks; ++w) {
        if (share(seg, seg_end, w) == share(seg, seg_end, w + 1)) continue;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const float4 part = reinterpret_cast<const float4*>(joined)[(w * kBlocks + n) * 32 + lane];
          acc[0][n][0] += part.x, acc[0][n][1] += part.y, acc[0][n][2] += part.z, acc[0][n][3] += part.w;
        }
      }
      store(unit, acc);
    }
    seg = seg_end;
  }
}

template <MoeWeights kKind, bool kGate, int kBlocks, int kWarps, int kStages>
int launch_as(const MoeStreamConfig& c, const MoeStreamPass& p, cudaStream_t stream) {
  const int b_bytes = p.chunks * static_cast<int>(moe_chunk_columns(kKind)) / 32 * kBlocks * 512;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>(c.grid)), .block = dim3(kWarps * 32), .shared_bytes = kGate ? c.shared_gate : c.shared_down,
                  .dependent = true};
  return launch(stream_pass<kKind, kGate, kBlocks, kWarps, kStages>, o, stream, p, b_bytes);
}

template <MoeWeights kKind, bool kGate>
int launch_shape(const MoeStreamConfig& c, const MoeStreamPass& p, cudaStream_t stream) {
  if constexpr (kKind == MoeWeights::mxfp4) {
    if (c.tile == 8 && c.warps == 16 && c.stages == 4) return launch_as<kKind, kGate, 1, 16, 4>(c, p, stream);
    if (c.tile == 16 && c.warps == 12 && c.stages == 3) return launch_as<kKind, kGate, 2, 12, 3>(c, p, stream);
  } else {
    if (c.tile == 8 && c.warps == 8 && c.stages == 4) return launch_as<kKind, kGate, 1, 8, 4>(c, p, stream);
    if (c.tile == 16 && c.warps == 8 && c.stages == 3) return launch_as<kKind, kGate, 2, 8, 3>(c, p, stream);
  }
  return static_cast<int>(cudaErrorInvalidConfiguration);
}

}  // namespace

int moe_stream_launch(MoeWeights kind, bool gate, const MoeStreamConfig& c, const MoeStreamPass& p, CUstream_st* stream) {
  if (kind == MoeWeights::mxfp4) return gate ? launch_shape<MoeWeights::mxfp4, true>(c, p, stream) : launch_shape<MoeWeights::mxfp4, false>(c, p, stream);
  return gate ? launch_shape<MoeWeights::bf16, true>(c, p, stream) : launch_shape<MoeWeights::bf16, false>(c, p, stream);
}

}  // namespace k3::ops::cuda
