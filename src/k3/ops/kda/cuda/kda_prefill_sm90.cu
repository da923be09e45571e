// The fused prefill kernel (kernels.md 2.4): one block a (sequence, head, piece). Producer warps turn raw rows into the factors of
// their chunks, in shared memory alone; the consumer warps own 32 value rows each, whose FP32 state never leaves their registers
// between chunks and meets no other warp's.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/cuda/kda_prefill_producer.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kProducerRegisters = 136, kConsumerRegisters = 232;

// state[m][n]: values 16 m + lane / 4 (and + 8) of the warp's 32, keys 8 n + 2 (lane % 4) + (0, 1).
using State = float[2][16][4];

// f(m, n, half, value row of the head, key): pairs of neighbouring keys.
template <class F>
__device__ __forceinline__ void for_pairs(int warp, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int value = 32 * warp + 16 * m + 8 * half + lane / 4;
#pragma unroll
      for (int n = 0; n < 16; ++n) f(m, n, half, value, 8 * n + 2 * (lane & 3));
    }
  }
}

__device__ __forceinline__ void store_slot(const K3KdaPrefill& a, const State& state, int slot, int head, int warp) {
  if (slot < 0) return;
  const int64_t base = slot * a.slot_stride + static_cast<int64_t>(head) * kDim * kDim;
  if (a.state_bf16 != 0) {
    auto* to = static_cast<__nv_bfloat16*>(a.states) + base;
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      *reinterpret_cast<uint32_t*>(to + value * kDim + key) = pack_bf16(state[m][n][2 * half], state[m][n][2 * half + 1]);
    });
  } else {
    float* to = static_cast<float*>(a.states) + base;
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      *reinterpret_cast<float2*>(to + value * kDim + key) = {state[m][n][2 * half], state[m][n][2 * half + 1]};
    });
  }
}

__device__ __forceinline__ float* map_of(const K3KdaPrefill& a, int index, int head, int part) {
  return static_cast<float*>(a.workspace) + ((static_cast<int64_t>(index) * a.heads + head) * 2 + part) * kDim * kDim;
}

template <bool kMaps>
__device__ __forceinline__ void load_state(const K3KdaPrefill& a, const Piece& piece, State& state, int warp) {
  const int slot = piece.begin == 0 && piece.part == 0 ? a.from[piece.sequence] : -1;
  const int64_t base = slot * a.slot_stride + static_cast<int64_t>(piece.head) * kDim * kDim;
  if (piece.part == 1) {
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      state[m][n][2 * half] = key == value ? 1.0F : 0.0F, state[m][n][2 * half + 1] = key + 1 == value ? 1.0F : 0.0F;
    });
  } else if (slot >= 0 && a.state_bf16 != 0) {
    const auto* from = static_cast<const __nv_bfloat16*>(a.states) + base;
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(from + value * kDim + key);
      state[m][n][2 * half] = low_bf16(two), state[m][n][2 * half + 1] = high_bf16(two);
    });
  } else if (slot >= 0 || (!kMaps && piece.begin > 0)) {
    const float* from = slot >= 0 ? static_cast<const float*>(a.states) + base : map_of(a, piece.index - 1, piece.head, 0);
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      const float2 two = *reinterpret_cast<const float2*>(from + value * kDim + key);
      state[m][n][2 * half] = two.x, state[m][n][2 * half + 1] = two.y;
    });
  } else {
    for_pairs(warp, [&](int m, int n, int half, int, int) { state[m][n][2 * half] = state[m][n][2 * half + 1] = 0; });
  }
}

// One chunk: state and, unless kMaps, out (before its scale).
template <bool kMaps>
__device__ __forceinline__ void advance(uint32_t buffer, uint32_t lane_at, uint32_t across, State& state, float (&out)[2][2][4], int warp, int part) {
  const uint32_t lane = threadIdx.x % 32;
  float u[2][2][4] = {};  // value rows x tokens
  if (!kMaps || part == 0) {
    uint32_t t[4];
    load_shared(t, buffer + kAtT + lane * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t v[4];
      ldmatrix_x4_trans(v, buffer + kAtV + tile_at(across, 2 * warp + m));
      mma16(u[m][0], v[0], v[1], v[2], v[3], t[0], t[1]);
      mma16(u[m][1], v[0], v[1], v[2], v[3], t[2], t[3]);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t w[4], q[4];
    float decay[4];
    ldmatrix_x4(w, buffer + kAtW + tile_at(across, j));
    if constexpr (!kMaps) ldmatrix_x4(q, buffer + kAtQ + tile_at(across, j));
    load_shared(decay, buffer + kAtE + (lane & 3) * kERow + static_cast<uint32_t>(j) * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float(&s0)[4] = state[m][2 * j];
      float(&s1)[4] = state[m][2 * j + 1];
      const uint32_t a0 = pack_bf16(s0[0], s0[1]), a1 = pack_bf16(s0[2], s0[3]), a2 = pack_bf16(s1[0], s1[1]), a3 = pack_bf16(s1[2], s1[3]);
      mma16(u[m][0], a0, a1, a2, a3, w[0], w[1]);
      mma16(u[m][1], a0, a1, a2, a3, w[2], w[3]);
      if constexpr (!kMaps) {
        mma16(out[m][0], a0, a1, a2, a3, q[0], q[1]);
        mma16(out[m][1], a0, a1, a2, a3, q[2], q[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) s0[i] *= decay[i & 1], s1[i] *= decay[2 + (i & 1)];
    }
  }
  uint32_t a[2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[m][i] = pack_bf16(u[m][i / 2][2 * (i % 2)], u[m][i / 2][2 * (i % 2) + 1]);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t k[4];
    ldmatrix_x4_trans(k, buffer + kAtK + tile_at(lane_at, j));
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma16(state[m][2 * j], a[m][0], a[m][1], a[m][2], a[m][3], k[0], k[1]);
      mma16(state[m][2 * j + 1], a[m][0], a[m][1], a[m][2], a[m][3], k[2], k[3]);
    }
  }
  if constexpr (!kMaps) {
    uint32_t p[4];
    load_shared(p, buffer + kAtP + lane * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma16(out[m][0], a[m][0], a[m][1], a[m][2], a[m][3], p[0], p[1]);
      mma16(out[m][1], a[m][0], a[m][1], a[m][2], a[m][3], p[2], p[3]);
    }
  }
}

// This warp's 32 values of the chunk's tokens, through shared memory so that whole sectors are written.
__device__ __forceinline__ void store_out(const K3KdaPrefill& a, const Piece& piece, const float (&out)[2][2][4], const float (&scale)[4], int first, int count,
                                          uint32_t staging, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32, token = lane & 15, half = lane >> 4;
  __syncwarp();  // the last chunk's rows have been read
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    uint32_t o[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      o[i] = pack_bf16(out[m][i / 2][2 * (i % 2)] * scale[2 * (i / 2)], out[m][i / 2][2 * (i % 2) + 1] * scale[2 * (i / 2) + 1]);
    }
    stmatrix_x4_trans(staging + static_cast<uint32_t>(m * 512 + lane * 16), o);
  }
  __syncwarp();
  if (token < count) {
    auto* to = static_cast<__nv_bfloat16*>(a.out) + (piece.first + first + token) * a.out_stride + piece.head * kDim + 32 * warp + 8 * half;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t o[4];
      load_shared(o, staging + static_cast<uint32_t>(m * 512 + ((token >> 3) * 2 + half) * 128 + (token & 7) * 16));
      *reinterpret_cast<uint4*>(to + 16 * m) = {o[0], o[1], o[2], o[3]};
    }
  }
}

template <bool kMaps>
__device__ __forceinline__ void consume(const K3KdaPrefill& a, const Piece& piece, PrefillShared& s, int warp) {
  State state;
  load_state<kMaps>(a, piece, state, warp);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lane_at = tile_lane(), across = tile_lane(true), buffers = shared_address(s.buffers), full = shared_address(s.full), empty = shared_address(s.empty);
  const uint32_t staging = shared_address(s.out[warp]);
  Walk walk{piece.begin};
  int slot = 0;
  uint32_t parity = 0;
  while (walk.at < piece.end) {
    const uint32_t buffer = buffers + static_cast<uint32_t>(slot * kBufferBytes);
    const int first = walk.at, cut = walk.cut, last = walk.end(s.cuts, piece.end);
    mbar_wait(full + static_cast<uint32_t>(slot * 8), parity);
    float out[2][2][4] = {}, scale[4];
    if (!(a.debug & 1)) advance<kMaps>(buffer, lane_at, across, state, out, warp, piece.part);
    if constexpr (!kMaps) load_shared(scale, buffer + kAtScale + static_cast<uint32_t>(lane & 3) * 16);
    __syncwarp();
    if (lane == 0) mbar_arrive(empty + static_cast<uint32_t>(slot * 8));
    if constexpr (!kMaps) store_out(a, piece, out, scale, first, last - first, staging, warp);
    walk.step(s.cuts, piece.end);
    for (int i = cut; i < walk.cut; ++i) store_slot(a, state, s.cuts.slots[i], piece.head, warp);
    if (++slot == kBuffers) slot = 0, parity ^= 1;
  }
  if constexpr (kMaps) {
    float* to = map_of(a, piece.index, piece.head, piece.part);
    for_pairs(warp, [&](int m, int n, int half, int value, int key) {
      *reinterpret_cast<float2*>(to + value * kDim + key) = {state[m][n][2 * half], state[m][n][2 * half + 1]};
    });
  } else if (piece.end == piece.length) {
    store_slot(a, state, a.to[piece.sequence], piece.head, warp);
  }
}

// Unsplit: longer sequences first, so that the last blocks to start are short ones.
__device__ int by_length(const K3KdaPrefill& a, int rank, PrefillShared& s) {
  const int count = static_cast<int>(a.sequences);
  if (count == 1) return 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kPrefillThreads) {
    const int length = a.offsets[i + 1] - a.offsets[i];
    int before = 0;
    for (int j = 0; j < count; ++j) {
      const int other = a.offsets[j + 1] - a.offsets[j];
      if (other > length || (other == length && j < i)) ++before;
    }
    if (before == rank) s.sequence = i;
  }
  __syncthreads();
  return s.sequence;
}

// false: nothing to do.
template <bool kMaps>
__device__ bool find_piece(const K3KdaPrefill& a, PrefillShared& s, Piece& piece) {
  int block = static_cast<int>(blockIdx.x), number = 0;
  const int heads = static_cast<int>(a.heads), segment = static_cast<int>(a.segment);
  piece.part = 0;
  if constexpr (kMaps) piece.part = block & 1, block >>= 1;
  piece.head = block % heads, block /= heads;
  if (segment == 0) {
    piece.sequence = by_length(a, block, s);
  } else {
    const int pieces = (static_cast<int>(a.longest) + segment - 1) / segment - (kMaps ? 1 : 0);
    number = block % pieces, piece.sequence = block / pieces;
  }
  piece.first = a.offsets[piece.sequence];
  piece.length = a.offsets[piece.sequence + 1] - static_cast<int>(piece.first);
  piece.begin = number * segment;
  piece.end = segment == 0 ? piece.length : min(piece.begin + segment, piece.length);
  piece.index = segment == 0 ? 0 : static_cast<int>(piece.first) / segment + piece.sequence + number;
  if constexpr (kMaps) return piece.end < piece.length && (piece.part == 0 || number > 0);
  return piece.begin < piece.length;
}

template <bool kMaps>
__global__ void __launch_bounds__(kPrefillThreads, 1) fused(const __grid_constant__ K3KdaPrefill a) {
  extern __shared__ __align__(128) unsigned char raw[];
  PrefillShared& s = *reinterpret_cast<PrefillShared*>(raw);
  Piece piece;
  if (!find_piece<kMaps>(a, s, piece)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (thread < kBuffers) mbar_init(shared_address(&s.full[thread]), 1), mbar_init(shared_address(&s.empty[thread]), kConsumers);
  if (thread < 64) {
    const float rate = -__expf(a.a_log[piece.head]) * 1.4426950408889634F;
    const float* bias = a.dt_bias + piece.head * kDim + thread / 8 * 16 + thread % 8;
    s.bias[thread / 8][thread % 8] = {rate * bias[0], rate * bias[8]};
  }
  mbar_init_fence();
  if constexpr (kMaps) {
    if (thread == 0) s.cuts.count = 0;
    __syncthreads();
  } else {
    kda_load_cuts(a, piece.sequence, piece.begin, piece.end, s.cuts, kPrefillThreads);
  }
  if (warp < kConsumers) {
    more_registers<kConsumerRegisters>();
    consume<kMaps>(a, piece, s, warp);
  } else {
    fewer_registers<kProducerRegisters>();
    produce<kMaps>(a, piece, s, warp - kConsumers);
  }
}

template <bool kMaps>
int launch_fused(const K3KdaPrefill& a, int64_t blocks, cudaStream_t stream) {
  if (blocks == 0) return 0;
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(blocks));
  o.block = dim3(kPrefillThreads);
  o.shared_bytes = static_cast<int>(sizeof(PrefillShared));
  return launch(fused<kMaps>, o, stream, a);
}

}  // namespace

int kda_prefill_fused_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  K3KdaPrefill whole = a;
  whole.segment = 0;
  return launch_fused<false>(whole, a.sequences * a.heads, stream);
}

int kda_prefill_scan_launch(const K3KdaPrefill& a, CUstream_st* stream);  // kda_prefill_scan_sm90.cu

int kda_prefill_segments_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  const int64_t pieces = (a.longest + a.segment - 1) / a.segment;
  int code = launch_fused<true>(a, a.sequences * (pieces - 1) * a.heads * 2, stream);
  if (code == 0 && pieces > 2) code = kda_prefill_scan_launch(a, stream);
  return code != 0 ? code : launch_fused<false>(a, a.sequences * pieces * a.heads, stream);
}

}  // namespace k3::ops::cuda
