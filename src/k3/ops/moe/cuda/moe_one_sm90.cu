// The experts of one token: each weight passes once, and nothing but weights should take time.
//
// Items are units (16 packed rows, all of K): first those of gate and up, expert by expert, then those of down, expert by
// expert. Blocks take the next item when they have asked for the one before, so that a multiprocessor that gets less of the
// memory's bandwidth gets fewer of them. One warp claims items and copies their chunks into a ring, which runs on across
// items; consumer warps take the chunks in turn and leave the 16 sums of each in shared memory; two warps add up an item's
// chunks in order, whoever computed them, store it and say so; one warp brings the activations of an expert once all its
// gate and up rows are there, long before the down rows are due.
//
// Whoever brings the last of a token's 16 rows (one expert each, and the shared experts' product, which its block computed
// before) sums them up. Counters are left as they were found: zero.
#include "k3/ops/cuda/beside.cuh"
#include "k3/ops/cuda/once.cuh"
#include "k3/ops/moe/cuda/moe_one_device.cuh"

namespace k3::ops::cuda {
namespace one_token {
namespace {

template <MoeWeights kKind, bool kPlaces>
__device__ __forceinline__ void produce(const MoeOne& p, State<kKind>& s, uint32_t ring, int shared_stage) {
  using Is = Shape<kKind>;
  const int lane = static_cast<int>(threadIdx.x) % 32, grid = static_cast<int>(gridDim.x), tiles = s.tiles;
  const int gate_items = tiles * p.units[0], items = gate_items + tiles * p.units[1];
  const int most = max(p.chunks[0], p.chunks[1]);
  int taken = 0, chunk = 0;
  for (int item = static_cast<int>(blockIdx.x);;) {
    int claim = 0;
    if (lane == 0) claim = atomicAdd(p.counters, 1);  // for the item after this one
    if (item < items) {
      const int phase = item < gate_items ? 0 : 1, left = item - phase * gate_items;
      const int tile = quotient(left, p.by_units[phase]), unit = left - tile * p.units[phase], chunks = p.chunks[phase];
      const int64_t inside = static_cast<int64_t>(unit) * chunks * Is::kBytes;
      const uint8_t* source;
      if constexpr (kPlaces) {
        source = expert_at(p.places, s.expert[tile]) + (phase == 0 ? 0 : static_cast<int64_t>(p.units[0]) * p.chunks[0] * Is::kBytes) + inside;
      } else {
        source = static_cast<const uint8_t*>(p.packed[phase]) + static_cast<int64_t>(s.expert[tile]) * p.units[phase] * chunks * Is::kBytes + inside;
      }
      const int buffer = taken % kBuffers;
      mbar_wait(at(s.taken[buffer]), static_cast<uint32_t>(taken / kBuffers & 1) ^ 1);
      if (lane == 0) s.item_of[buffer] = unit | phase << 16 | tile << 20;
      __syncwarp();
#pragma unroll 1
      for (int begin = 0; begin < chunks; begin += Is::kBatch) {
        const int k = begin + lane;
        if (lane < Is::kBatch && k < chunks) {
          const int stage = (chunk + k) % Is::kStages;
          if (stage >= shared_stage && chunk + k < Is::kStages) mbar_wait(at(s.shared_done), 0);
          mbar_wait(at(s.empty[stage]), static_cast<uint32_t>((chunk + k) / Is::kStages & 1) ^ 1);
          s.chunk_of[stage] = buffer | k << 4 | phase << 12 | tile << 16;
          mbar_expect(at(s.full[stage]), Is::kBytes);
          bulk_load_once(ring + static_cast<uint32_t>(stage * Is::kBytes), source + k * Is::kBytes, Is::kBytes, at(s.full[stage]));
        }
        __syncwarp();
      }
      chunk += chunks;
      ++taken;
    }
    const int next = grid + __shfl_sync(0xFFFFFFFFU, claim, 0);
    if (next >= items) {  // every block claims once too often; then nobody claims any more
      if (lane == 0 && next == max(items, grid) + grid - 1) *p.counters = 0;
      break;
    }
    item = next;
  }
  if (lane < Is::kConsumers) {
    const int stage = (chunk + lane) % Is::kStages;
    mbar_wait(at(s.empty[stage]), static_cast<uint32_t>((chunk + lane) / Is::kStages & 1) ^ 1);
    s.chunk_of[stage] = kEnd;
    mbar_arrive(at(s.full[stage]));
  }
  if (lane < kFinishers) {
    const int buffer = (taken + lane) % kBuffers;
    mbar_wait(at(s.taken[buffer]), static_cast<uint32_t>((taken + lane) / kBuffers & 1) ^ 1);
    s.item_of[buffer] = kEnd;
    mbar_arrive_many(at(s.summed[buffer]), most * static_cast<int>(kWarpArrivals));
  }
}

template <MoeWeights kKind>
__device__ __forceinline__ void consume(const MoeOne& p, State<kKind>& s, uint32_t ring, uint32_t x, uint32_t hidden, float* sums) {
  using Is = Shape<kKind>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, q = lane % 4;
  const int most = max(p.chunks[0], p.chunks[1]);
  const uint32_t hidden_bytes = static_cast<uint32_t>(p.chunks[1] * Is::kColumns * 2);
#pragma unroll 1
  for (int chunk = warp;; chunk += Is::kConsumers) {
    const int stage = chunk % Is::kStages;
    mbar_wait(at(s.full[stage]), static_cast<uint32_t>(chunk / Is::kStages & 1));
    const int what = s.chunk_of[stage];
    if (what == kEnd) break;
    const int buffer = what & 15, k = what >> 4 & 255, phase = what >> 12 & 15, tile = what >> 16;
    if (phase == 1) mbar_wait(at(s.brought[tile]), 0);
    const uint32_t from = (phase == 0 ? x : hidden + static_cast<uint32_t>(tile) * hidden_bytes) + static_cast<uint32_t>(k * Is::kColumns * 2 + 16 * q);
    float acc[2][4] = {};
    multiply<kKind>(ring + static_cast<uint32_t>(stage * Is::kBytes), from, lane, acc);
    warp_arrive(at(s.empty[stage]), lane);
    if (q == 0) {
      float* to = sums + (buffer * most + k) * 16 + g;
      to[0] = acc[0][0] + acc[1][0];
      to[8] = acc[0][2] + acc[1][2];
    }
    if (arrives(lane)) mbar_arrive_many(at(s.summed[buffer]), k == 0 ? most - p.chunks[phase] + 1 : 1);
  }
}

template <MoeWeights kKind>
__device__ __forceinline__ void finish(const MoeOne& p, State<kKind>& s, const float* sums, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32, most = max(p.chunks[0], p.chunks[1]);
#pragma unroll 1
  for (int taken = first;; taken += kFinishers) {
    const int buffer = taken % kBuffers;
    mbar_wait(at(s.summed[buffer]), static_cast<uint32_t>(taken / kBuffers & 1));
    const int what = s.item_of[buffer];
    if (what == kEnd) break;
    const int unit = what & 0xFFFF, phase = what >> 16 & 15, tile = what >> 20, chunks = p.chunks[phase];
    float sum = 0;
    if (lane < 16) {
      const float* from = sums + buffer * most * 16 + lane;
#pragma unroll 4
      for (int k = 0; k < chunks; ++k) sum += from[k * 16];
    }
    warp_arrive(at(s.taken[buffer]), lane);
    if (p.factors != nullptr) sum *= p.factors[s.expert[tile] * 4 + (phase == 1 ? 1 : lane < 8 ? 0 : 2)];
    const int slot = s.slot[tile];
    if (phase == 0) {
      const float up = __shfl_down_sync(0xFFFFFFFFU, sum, 8);
      if (lane < 8) static_cast<__nv_bfloat16*>(p.hidden)[static_cast<int64_t>(slot) * p.hidden_width + unit * 8 + lane] = __float2bfloat16(glu(p.glu, sum, up));
      __syncwarp();
      if (lane == 0) release_add(p.counters + kMoeOneExperts + tile, 1);
    } else {
      const int row = unit * 16 + lane;
      if (lane < 16 && row < p.width) p.slot_out[static_cast<int64_t>(slot) * p.width + row] = sum;
      arrive_rows(p, s, unit);
    }
  }
}

// Activations of one expert after the other into shared memory, when they are complete.
template <MoeWeights kKind>
__device__ __forceinline__ void bring(const MoeOne& p, State<kKind>& s, uint32_t hidden) {
  const int lane = static_cast<int>(threadIdx.x) % 32, pieces = p.chunks[1] * Shape<kKind>::kColumns / 8;
  const int tiles = s.tiles;
  for (int tile = 0; tile < tiles; ++tile) {
    if (lane == 0) {
      while (acquire_load(p.counters + kMoeOneExperts + tile) < p.units[0]) {
      }
    }
    __syncwarp();
    const auto* from = static_cast<const __nv_bfloat16*>(p.hidden) + static_cast<int64_t>(s.slot[tile]) * p.hidden_width;
    const uint32_t to = hidden + static_cast<uint32_t>(tile * pieces * 16);
    for (int i = lane; i < pieces; i += 32) {
      const bool inside = 8 * i < p.hidden_width;
      const uint4 v = inside ? __ldcg(reinterpret_cast<const uint4*>(from + 8 * i)) : uint4{0, 0, 0, 0};
      shared_store_16(to + static_cast<uint32_t>(i * 16), v);
    }
    warp_arrive(at(s.brought[tile]), lane);
  }
  if (lane == 0 && tiles > 0 && atomicInc(reinterpret_cast<unsigned*>(p.counters + kMoeOneSeen), gridDim.x - 1) == gridDim.x - 1) {
    for (int tile = 0; tile < tiles; ++tile) p.counters[kMoeOneExperts + tile] = 0;  // all blocks have seen them
  }
}

// The shared experts' product for the rows of this block's units, whose weights lie in the ring.
template <MoeWeights kKind>
__device__ __forceinline__ void shared_rows(const MoeOne& p, const uint8_t* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, pieces = p.shared.columns / 8;
  constexpr int kKept = 4;  // vectors of the input a lane keeps in registers
  uint4 x[kKept];
#pragma unroll
  for (int c = 0; c < kKept; ++c) x[c] = lane + 32 * c < pieces ? __ldcg(static_cast<const uint4*>(p.shared.hidden) + lane + 32 * c) : uint4{0, 0, 0, 0};
  int held = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < p.units[1]; unit += static_cast<int>(gridDim.x), ++held) {
#pragma unroll 2
    for (int i = warp; i < 16; i += Shape<kKind>::kConsumers) {
      const int row = unit * 16 + i;
      if (row >= p.width) break;
      const auto* y = reinterpret_cast<const uint4*>(weights) + (held * 16 + i) * pieces;
      float sum = 0;
      const auto add = [&](const uint4& a, const uint4& b) {
        sum = fmaf(low_bf16(a.x), low_bf16(b.x), fmaf(high_bf16(a.x), high_bf16(b.x), sum));
        sum = fmaf(low_bf16(a.y), low_bf16(b.y), fmaf(high_bf16(a.y), high_bf16(b.y), sum));
        sum = fmaf(low_bf16(a.z), low_bf16(b.z), fmaf(high_bf16(a.z), high_bf16(b.z), sum));
        sum = fmaf(low_bf16(a.w), low_bf16(b.w), fmaf(high_bf16(a.w), high_bf16(b.w), sum));
      };
#pragma unroll
      for (int c = 0; c < kKept; ++c) {
        if (lane + 32 * c < pieces) add(x[c], y[lane + 32 * c]);
      }
      for (int c = lane + 32 * kKept; c < pieces; c += 32) add(__ldcg(static_cast<const uint4*>(p.shared.hidden) + c), y[c]);
      sum = warp_sum(sum);
      if (lane == 0) p.shared_out[row] = sum;
    }
  }
}

template <MoeWeights kKind, bool kPlaces>
__global__ void __launch_bounds__(Shape<kKind>::kThreads, kKind == MoeWeights::bf16 ? 2 : 1) one_token_experts(const __grid_constant__ MoeOne p) {
  using Is = Shape<kKind>;
  K3_SHARED_BYTES(shared, 128);
  __shared__ __align__(8) State<kKind> s;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, most = max(p.chunks[0], p.chunks[1]);
  const uint32_t ring = shared_address(shared), x = ring + Is::kStages * Is::kBytes;  // then activations, then sums
  const int x_bytes = p.chunks[0] * Is::kColumns * 2, hidden_bytes = p.chunks[1] * Is::kColumns * 2 * p.topk;
  const uint32_t hidden = x + static_cast<uint32_t>(x_bytes);
  float* const sums = reinterpret_cast<float*>(shared + Is::kStages * Is::kBytes + x_bytes + hidden_bytes);
  if (tid == 0) {
    for (int i = 0; i < Is::kStages; ++i) mbar_init(at(s.full[i]), 1), mbar_init(at(s.empty[i]), kWarpArrivals);
    for (int i = 0; i < kBuffers; ++i) mbar_init(at(s.summed[i]), static_cast<uint32_t>(most) * kWarpArrivals), mbar_init(at(s.taken[i]), kWarpArrivals);
    for (int i = 0; i < kMoeOneTopk; ++i) mbar_init(at(s.brought[i]), kWarpArrivals);
    mbar_init(at(s.routed), kWarpArrivals);
    mbar_init(at(s.weighed), kWarpArrivals);
    mbar_init(at(s.shared_there), 1);
    mbar_init(at(s.shared_done), Is::kConsumers * kWarpArrivals);
    mbar_init_fence();
  }
  __syncthreads();
  // The shared experts' rows lie at the end of the ring: there is room for the first chunks before it.
  const bool with_shared = p.shared.w != nullptr;
  const int shared_stage = Is::kStages - (moe_one_shared_rows(p.width, static_cast<int>(gridDim.x)) * p.shared.columns * 2 + Is::kBytes - 1) / Is::kBytes;
  const uint32_t shared_at = static_cast<uint32_t>(shared_stage * Is::kBytes);
  if (warp == Is::kProducer) {
    if (with_shared && lane == 0) {  // constants, before anything else
      int rows = 0;
      for (int unit = static_cast<int>(blockIdx.x); unit < p.units[1]; unit += static_cast<int>(gridDim.x)) rows += min(16, p.width - unit * 16);
      const int row_bytes = p.shared.columns * 2;
      mbar_expect(at(s.shared_there), static_cast<uint32_t>(rows * row_bytes));
      int held = 0;
      for (int unit = static_cast<int>(blockIdx.x); unit < p.units[1]; unit += static_cast<int>(gridDim.x), ++held) {
        bulk_load_once(ring + shared_at + static_cast<uint32_t>(held * 16 * row_bytes), static_cast<const uint8_t*>(p.shared.w) + static_cast<int64_t>(unit) * 16 * row_bytes,
                       static_cast<uint32_t>(min(16, p.width - unit * 16) * row_bytes), at(s.shared_there));
      }
    }
    __syncwarp();
    pdl_wait();
    pdl_release();
    mbar_wait(at(s.routed), 0);
    produce<kKind, kPlaces>(p, s, ring, with_shared ? shared_stage : Is::kStages);
  } else if (warp == Is::kBringer) {
    pdl_wait();
    pdl_release();
    mbar_wait(at(s.routed), 0);
    bring<kKind>(p, s, hidden);
  } else if (warp >= Is::kFinisher) {
    if (warp == Is::kFinisher) {
      // Twice: the first time on the bias, before the kernel before has ended, so that its code is there.
#pragma unroll 1
      for (int pass = p.route.logits != nullptr && p.route.bias != nullptr ? 0 : 1; pass < 2; ++pass) {
        if (pass == 1) {
          pdl_wait();
          pdl_release();  // not before: what follows may read what the kernel two before this one wrote
        }
        route<kKind>(p, s, pass == 1 ? p.route.logits : p.route.bias, pass == 1);
        __syncwarp();
      }
    } else {
      pdl_wait();
      pdl_release();
      mbar_wait(at(s.routed), 0);
      mbar_wait(at(s.weighed), 0);
      if (with_shared) mbar_wait(at(s.shared_done), 0);
      for (int unit = static_cast<int>(blockIdx.x); unit < p.units[1]; unit += static_cast<int>(gridDim.x)) arrive_rows(p, s, unit);
    }
    finish<kKind>(p, s, sums, warp - Is::kFinisher);
  } else {
    pdl_wait();
    pdl_release();
    for (int i = tid; i < x_bytes / 16; i += Is::kConsumers * 32) {
      const uint4 v = load_16(static_cast<const __nv_bfloat16*>(p.z) + 8 * i, 8 * i < p.width);
      shared_store_16(x + static_cast<uint32_t>(i * 16), v);
    }
    if (with_shared) {
      mbar_wait(at(s.shared_there), 0);
      shared_rows<kKind>(p, shared + shared_at);
      warp_arrive(at(s.shared_done), lane);
    }
    named_barrier(1, Is::kConsumers * 32);
    consume<kKind>(p, s, ring, x, hidden, sums);
  }
}

template <MoeWeights kKind>
int launch_as(const MoeOne& p, int grid, int shared_bytes, cudaStream_t stream) {
  const LaunchOptions o{.grid = dim3(static_cast<unsigned>(grid)),
                        .block = dim3(Shape<kKind>::kThreads),
                        .shared_bytes = shared_bytes,
                        .dependent = true};
  if (p.places.slot != nullptr) return launch_beside(one_token_experts<kKind, true>, o, stream, p);
  return launch_beside(one_token_experts<kKind, false>, o, stream, p);
}

}  // namespace
}  // namespace one_token

int moe_one_launch(MoeWeights kind, const MoeOne& p, int grid, int shared_bytes, CUstream_st* stream) {
  return kind == MoeWeights::bf16 ? one_token::launch_as<MoeWeights::bf16>(p, grid, shared_bytes, stream)
                                  : one_token::launch_as<MoeWeights::mxfp4>(p, grid, shared_bytes, stream);
}

}  // namespace k3::ops::cuda
