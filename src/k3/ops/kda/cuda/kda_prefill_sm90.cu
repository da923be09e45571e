// The fused prefill kernel (kernels.md 2.4): one block a (sequence, head, piece). Producer warps turn raw rows into the
// factors of their chunks, in shared memory alone; two consumer warpgroups own 64 value rows each, whose FP32 state never
// leaves their registers between chunks (wgmma accumulators) and meets no other row's. Pairs: two blocks share the work on
// chunks (Config).
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/kda/cuda/kda_prefill_producer.cuh"

namespace k3::ops::cuda {
namespace {

// state[4 n + 2 half + c]: value 16 warp + lane / 4 + 8 half, key 8 n + 2 (lane % 4) + c.
using State = float[64];

// f(first of two places in the state, value, key).
template <class F>
__device__ __forceinline__ void for_pairs(int warp, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int value = 16 * warp + 8 * half + lane / 4;
#pragma unroll
    for (int n = 0; n < 16; ++n) f(4 * n + 2 * half, value, 8 * n + 2 * (lane & 3));
  }
}

__device__ __forceinline__ void store_rows(const State& state, float* to, int warp) {
  for_pairs(warp, [&](int i, int value, int key) {
    *reinterpret_cast<float2*>(to + value * kDim + key) = {state[i], state[i + 1]};
  });
}

__device__ __forceinline__ void store_slot(const K3KdaPrefill& a, const State& state, int slot, int head, int warp) {
  if (slot < 0) return;
  const int64_t base = slot * a.slot_stride + static_cast<int64_t>(head) * kDim * kDim;
  if (a.state_bf16 == 0) return store_rows(state, static_cast<float*>(a.states) + base, warp);
  auto* to = static_cast<__nv_bfloat16*>(a.states) + base;
  for_pairs(warp, [&](int i, int value, int key) {
    *reinterpret_cast<uint32_t*>(to + value * kDim + key) = pack_bf16(state[i], state[i + 1]);
  });
}

__device__ __forceinline__ float* map_of(const K3KdaPrefill& a, int index, int head, int part) {
  return static_cast<float*>(a.workspace) + ((static_cast<int64_t>(index) * a.heads + head) * 2 + part) * kDim * kDim;
}

template <bool kMaps>
__device__ __forceinline__ void load_state(const K3KdaPrefill& a, const Piece& piece, State& state, int warp) {
  const int slot = piece.begin == 0 && (!kMaps || piece.rank == 0) ? a.from[piece.sequence] : -1;
  const int64_t base = slot * a.slot_stride + static_cast<int64_t>(piece.head) * kDim * kDim;
  if (kMaps && piece.rank == 1) {
    for_pairs(warp, [&](int i, int value, int key) {
      state[i] = key == value ? 1.0F : 0.0F, state[i + 1] = key + 1 == value ? 1.0F : 0.0F;
    });
  } else if (slot >= 0 && a.state_bf16 != 0) {
    const auto* from = static_cast<const __nv_bfloat16*>(a.states) + base;
    for_pairs(warp, [&](int i, int value, int key) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(from + value * kDim + key);
      state[i] = low_bf16(two), state[i + 1] = high_bf16(two);
    });
  } else if (slot >= 0 || (!kMaps && piece.begin > 0)) {
    const float* from = slot >= 0 ? static_cast<const float*>(a.states) + base : map_of(a, piece.index - 1, piece.head, 0);
    for_pairs(warp, [&](int i, int value, int key) {
      const float2 two = *reinterpret_cast<const float2*>(from + value * kDim + key);
      state[i] = two.x, state[i + 1] = two.y;
    });
  } else {
#pragma unroll
    for (float& x : state) x = 0;
  }
}

// This warp's 16 values of the chunk's tokens, turned in shared memory so that whole sectors are written: 16 bytes of token
// lane % 16, values 8 (lane / 16). out: 4 (token / 8) + 2 half + c.
__device__ __forceinline__ void turn_out(const float* out, const float (&scale)[4], uint32_t staging, uint32_t (&o)[4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = pack_bf16(out[2 * i] * scale[2 * (i / 2)], out[2 * i + 1] * scale[2 * (i / 2) + 1]);
  __syncwarp();  // the last chunk's rows have been read
  stmatrix_x4_trans(staging + lane * 16, o);
  __syncwarp();
  load_shared(o, staging + (((lane & 8) >> 2) + (lane >> 4)) * 128 + (lane & 7) * 16);
}

template <class C>
__device__ __forceinline__ void consume(const K3KdaPrefill& a, const Piece& piece, PrefillShared& s, int index) {
  constexpr bool kMaps = C::kMaps;
  constexpr int kRows = kMaps ? 16 : 32;  // of the first product: W, and Q
  const int warp = index + (C::kPair ? 4 * piece.rank : 0);
  State state;
  load_state<kMaps>(a, piece, state, warp);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t buffers = shared_address(s.buffers), staging = shared_address(s.out[index]);
  const uint32_t values = square_at(tile_lane(true), warp, kStepKV) + kAtV;
  auto* out = static_cast<__nv_bfloat16*>(a.out) + (piece.first + piece.begin + (lane & 15)) * a.out_stride +
              piece.head * kDim + 16 * warp + 8 * static_cast<int>(lane >> 4);
  // Buffers of chunks made here and there, in turns: the place of this chunk among its maker's, and its place here if it was
  // sent.
  int place = 0, sent = 0, at = piece.begin;
  uint32_t place_parity = 0, sent_parity = 0;
  bool own = !C::kPair || piece.rank == 0;
  const auto advance = [&](int count) {
    at += count;
    if (C::kPair && own == (piece.rank == 0)) {
      own = !own;
      return;
    }
    own = C::kPair ? !own : true;
    if (++place == C::kOwn) place = 0, place_parity ^= 1;
    if (C::kPair && ++sent == C::kReceived) sent = 0, sent_parity ^= 1;
  };
  const auto one_chunk = [&](int stop) {
    const int slot = own ? place : C::kOwn + sent, count = min(kChunk, stop - at);
    const uint32_t parity = own ? place_parity : sent_parity;
    const uint32_t buffer = buffers + static_cast<uint32_t>(slot * kBufferBytes);
    const uint64_t rows = make_desc(buffer + kAtZ, 0, 1024, Swizzle::bytes_128),
                   t = make_desc(buffer + kAtT, 512, 128, Swizzle::none);
    const uint64_t p = make_desc(buffer + kAtP, 512, 128, Swizzle::none);
    const uint64_t keys = make_desc(buffer + kAtK, 2048, 1024, Swizzle::bytes_128);
    uint32_t x[8][4], v[4] = {}, u[4];
    float d[kRows / 2];  // r u, then S Q: 4 (token / 8) + 2 half + c
    const auto pack_state = [&](int j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = pack_bf16(state[8 * j + 2 * i], state[8 * j + 2 * i + 1]);
    };
    const auto step = [&](int j) {
      Wgmma<kRows>::rs(d, x[j], rows + static_cast<uint64_t>(j / 4 * (kStepZQ / 16) + j % 4 * 2), j > 0);
    };
#pragma unroll
    for (int j = 0; j < 4; ++j) pack_state(j);
    mbar_wait(shared_address(&s.full[slot]), parity);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) step(j);
    if (!kMaps || piece.rank == 0) ldmatrix_x4_trans(v, buffer + values);
#pragma unroll
    for (int j = 4; j < 8; ++j) pack_state(j);
    wgmma_fence();
#pragma unroll
    for (int j = 4; j < 8; ++j) step(j);
    Wgmma<kRows>::rs(d, v, t, true);
    wgmma_commit();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float decay[4];
      load_shared(decay, buffer + kAtE + (lane & 3) * kERow + static_cast<uint32_t>(j * 16));
#pragma unroll
      for (int i = 0; i < 8; ++i) state[8 * j + i] *= decay[i / 4 * 2 + (i & 1)];
    }
    float scale[4];
    if constexpr (!kMaps) load_shared(scale, buffer + kAtScale + (lane & 3) * 16);
    wgmma_wait<0>();
    settle(d);
#pragma unroll
    for (int i = 0; i < 4; ++i) u[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
    wgmma_fence();
    if constexpr (!kMaps) {
      Wgmma<kRows>::rs(d, u, p, true);
      wgmma_commit();
    }
    Wgmma<128>::template rs<1>(state, u, keys, true);
    wgmma_commit();
    uint32_t turned[4];
    if constexpr (!kMaps) {
      wgmma_wait<1>();
      settle(d);
      turn_out(d + 8, scale, staging, turned);
    }
    wgmma_wait<0>();
    settle(state);
    if (arrives(static_cast<int>(lane))) {
      const uint32_t empty = shared_address(&s.empty[place]);
      if (own) {
        mbar_arrive(empty);
      } else {
        mbar_arrive_there(cluster_map(empty, static_cast<uint32_t>(1 - piece.rank)));
      }
    }
    if constexpr (!kMaps) {
      if (static_cast<int>(lane & 15) < count) *reinterpret_cast<uint4*>(out) = {turned[0], turned[1], turned[2], turned[3]};
      out += count * a.out_stride;
    }
    advance(count);
  };
  for (int cut = 0; at < piece.end;) {  // from cut to cut: nothing of them inside the chain of chunks
    const int stop = cut < s.cuts.count ? min(s.cuts.tokens[cut], piece.end) : piece.end;
    while (at < stop) one_chunk(stop);
    for (; cut < s.cuts.count && s.cuts.tokens[cut] <= at; ++cut)
      store_slot(a, state, s.cuts.slots[cut], s.piece.head, warp);
  }
  const Piece& done = s.piece;
  if constexpr (kMaps) {
    store_rows(state, map_of(a, done.index, done.head, done.rank), warp);
  } else if (done.end == done.length) {
    store_slot(a, state, a.to[done.sequence], done.head, warp);
  }
}

// Unsplit: longer sequences first, so that the last blocks to start are short ones.
__device__ __noinline__ int by_length(const K3KdaPrefill& a, int rank, PrefillShared& s) {
  const int count = static_cast<int>(a.sequences);
  if (count == 1) return 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int length = a.offsets[i + 1] - a.offsets[i];
    int before = 0;
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      const int other = a.offsets[j + 1] - a.offsets[j];
      if (other > length || (other == length && j < i)) ++before;
    }
    if (before == rank) s.sequence = i;
  }
  __syncthreads();
  return s.sequence;
}

// false: nothing to do, for both blocks of a pair.
template <class C>
__device__ bool find_piece(const K3KdaPrefill& a, PrefillShared& s, Piece& piece) {
  int block = static_cast<int>(blockIdx.x), number = 0;
  const int heads = static_cast<int>(a.heads), segment = static_cast<int>(a.segment);
  piece.rank = 0;
  if constexpr (C::kMaps || C::kPair) piece.rank = block & 1, block >>= 1;
  piece.head = block % heads, block /= heads;
  if (segment == 0) {
    piece.sequence = by_length(a, block, s);
  } else {
    const int pieces = (static_cast<int>(a.longest) + segment - 1) / segment - (C::kMaps ? 1 : 0);
    number = block % pieces, piece.sequence = block / pieces;
  }
  piece.first = a.offsets[piece.sequence];
  piece.length = a.offsets[piece.sequence + 1] - static_cast<int>(piece.first);
  piece.begin = number * segment;
  piece.end = segment == 0 ? piece.length : min(piece.begin + segment, piece.length);
  piece.index = segment == 0 ? 0 : static_cast<int>(piece.first) / segment + piece.sequence + number;
  if constexpr (C::kMaps) return piece.end < piece.length && (piece.rank == 0 || number > 0);
  return piece.begin < piece.length;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    fused(const __grid_constant__ K3KdaPrefill a, const __grid_constant__ PrefillMaps maps) {
  K3_SHARED_BYTES(raw, 1024);
  PrefillShared& s = *reinterpret_cast<PrefillShared*>(raw);
  Piece piece;
  if (!find_piece<C>(a, s, piece)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(0xFFFFFFFFU, thread / 32, 0);
  // The first rows are asked for before anything else; where they are depends on the exports alone. racecheck calls it a race when a
  // barrier is made and used before the block has met, though by one thread.
  const bool early = kWarpArrivals == 1 && (a.export_count == 0 || C::kMaps);
  if (thread == 32 * C::kConsumers) {
    for (int i = 0; i < C::kAhead; ++i) mbar_init(shared_address(&s.raw[i]), 1);
    mbar_init_fence();
    for (int i = 0; i < C::kAhead; ++i) {
      const int at = piece.begin + kChunk * (C::kEvery * i + (C::kPair ? piece.rank : 0));
      if (early && at < piece.end) {
        load_rows<C::kMaps>(maps, piece.head, !C::kMaps || piece.rank == 0, static_cast<int>(piece.first) + at,
                            shared_address(s.buffers[i]), shared_address(&s.raw[i]));
      }
    }
  } else if (thread < kBuffers) {
    if (thread >= C::kAhead) mbar_init(shared_address(&s.raw[thread]), 1);
    mbar_init(shared_address(&s.full[thread]), thread < C::kOwn ? kWarpArrivals : 1);  // what is sent here: an arrival with bytes
    mbar_init(shared_address(&s.empty[thread]), C::kConsumers * C::kEvery * kWarpArrivals);
  }
  if (thread == 0) s.piece = piece;
  if (thread < 64) {
    const float rate = gate_rate<C::kBounded>(a, piece.head);
    const float* bias = a.dt_bias + piece.head * kDim + thread / 8 * 16 + thread % 8;
    s.bias[thread / 8][thread % 8] = {rate * bias[0], rate * bias[8]};
  }
  mbar_init_fence();
  for (int i = thread; i < kBuffers * 64; i += C::kThreads) {  // the rows of zeros of T and P
    const uint32_t zeros[4] = {}, half = static_cast<uint32_t>(i / 16 % 2);
    store_shared(shared_address(s.buffers[i / 64]) + (i / 32 % 2 == 0 ? kAtT + 256 : kAtP) + half * 512 +
                     static_cast<uint32_t>(i % 16 * 16),
                 zeros);
  }
  fence_async_proxy();
  if constexpr (C::kMaps) {
    if (thread == 0) s.cuts.count = 0;
    __syncthreads();
  } else {
    kda_load_cuts(a, piece.sequence, piece.begin, piece.end, s.cuts, C::kThreads);
  }
  if constexpr (C::kPair) cluster_sync();  // the other block's barriers are ready
  if (warp < C::kConsumers) {
    if constexpr (C::kMoveRegisters) more_registers<C::kConsumerRegisters>();
    consume<C>(a, piece, s, warp);
  } else {
    if constexpr (C::kMoveRegisters) fewer_registers<C::kProducerRegisters>();
    produce<C>(a, maps, piece, s, warp - C::kConsumers, early);
  }
  if constexpr (C::kPair) {
    __syncwarp();
    cluster_sync();  // nothing more comes from or goes to the other block
  }
}

template <class C>
int launch_fused(const K3KdaPrefill& a, const PrefillMaps& maps, int64_t pieces, cudaStream_t stream) {
  if (pieces == 0) return 0;
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(pieces * a.heads * (C::kMaps || C::kPair ? 2 : 1)));
  o.block = dim3(C::kThreads);
  o.cluster = C::kPair ? 2 : 1;
  o.shared_bytes = static_cast<int>(sizeof(PrefillShared));
  return launch(fused<C>, o, stream, a, maps);
}

template <bool kMaps, bool kPair>
int launch_gate(const K3KdaPrefill& a, const PrefillMaps& maps, int64_t pieces, cudaStream_t stream) {
  return a.bounded != 0 ? launch_fused<Config<kMaps, kPair, true>>(a, maps, pieces, stream)
                        : launch_fused<Config<kMaps, kPair, false>>(a, maps, pieces, stream);
}

}  // namespace

int kda_prefill_fused_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  K3KdaPrefill whole = a;
  whole.segment = 0;
  PrefillMaps maps;
  const int code = kda_prefill_encode(a, maps);
  if (code != 0) return code;
  return a.pairs != 0 ? launch_gate<false, true>(whole, maps, a.sequences, stream)
                      : launch_gate<false, false>(whole, maps, a.sequences, stream);
}

int kda_prefill_segments_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  const int64_t pieces = (a.longest + a.segment - 1) / a.segment;
  PrefillMaps maps;
  int code = kda_prefill_encode(a, maps);
  if (code == 0) code = launch_gate<true, false>(a, maps, a.sequences * (pieces - 1), stream);
  if (code == 0 && pieces > 2) code = kda_prefill_scan_launch(a, stream);
  return code != 0 ? code : launch_gate<false, false>(a, maps, a.sequences * pieces, stream);
}

}  // namespace k3::ops::cuda
