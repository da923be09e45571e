// Internal to ops/kda/train. What the kernels of kda_train share: tiles in shared memory as operands of products, and what is done
// element by element in front of the recurrence.
//
// A tile has 16 tokens. Its keys and queries are taken relative to the decay at its eighth token (`middle`): KP = kn e^{G - Gm},
// QP = scale qn e^{G - Gm}, KM = kn e^{Gm - G}. With a bound of -5 every exponent is within 40, so operands are normal BF16 numbers and
// KP KM^T has the decays between two tokens of the tile. The state is kept relative to the middle while a tile is done.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/train/cuda/kda_train_params.h"

namespace k3::ops::cuda {

constexpr float kLog2Of = 1.4426950408889634F;

template <int D>
constexpr int kTrainStride = D + 8;  // of rows in shared memory: ldmatrix without bank conflicts

// sigmoid(x) and sigmoid(-x), both with relative accuracy down to e^-85.
struct Sigmoids {
  float plus, minus;
};
__device__ __forceinline__ Sigmoids sigmoids(float x) {
  const float e = exp2_approx(-kLog2Of * fmaxf(x, -85.0F)), plus = __fdividef(1.0F, 1.0F + e);
  return {plus, e * plus};
}

// ---- operands ----

// B operand of two octets of columns n from rows of shared memory, element [n][k]: columns n0 .. n0 + 15, k0 .. k0 + 15.
__device__ __forceinline__ void load_rows(uint32_t (&b)[4], uint32_t base, int stride, int n0, int k0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_x4(b, base + static_cast<uint32_t>(2 * ((n0 + lane % 8 + 8 * (lane / 16)) * stride + k0 + 8 * (lane / 8 % 2))));
}
// The same from element [k][n].
__device__ __forceinline__ void load_columns(uint32_t (&b)[4], uint32_t base, int stride, int n0, int k0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_x4_trans(b, base + static_cast<uint32_t>(2 * ((k0 + lane % 8 + 8 * (lane / 8 % 2)) * stride + n0 + 8 * (lane / 16))));
}
// A operand 16 x 16 from element [m][k], and from element [k][m].
__device__ __forceinline__ void load_left(uint32_t (&a)[4], uint32_t base, int stride, int m0, int k0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_x4(a, base + static_cast<uint32_t>(2 * ((m0 + lane % 16) * stride + k0 + 8 * (lane / 16))));
}
__device__ __forceinline__ void load_left_turned(uint32_t (&a)[4], uint32_t base, int stride, int m0, int k0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ldmatrix_x4_trans(a, base + static_cast<uint32_t>(2 * ((k0 + lane % 8 + 8 * (lane / 16)) * stride + m0 + 8 * (lane / 8 % 2))));
}

// d[0], d[1] += a b for the two octets of columns of b.
__device__ __forceinline__ void mma_pair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
  mma_bf16(d0, a, b0);
  mma_bf16(d1, a, b1);
}
// Two accumulators (16 x 16) as A operand.
__device__ __forceinline__ void pack_left(uint32_t (&a)[4], const float (&d0)[4], const float (&d1)[4]) {
  a[0] = pack_bf16(d0[0], d0[1]), a[1] = pack_bf16(d0[2], d0[3]);
  a[2] = pack_bf16(d1[0], d1[1]), a[3] = pack_bf16(d1[2], d1[3]);
}

// An A operand [16 values, 16 tokens] to rows of tokens in global memory: row t at to + t * stride.
__device__ __forceinline__ void store_turned(__nv_bfloat16* to, int64_t stride, const uint32_t (&a)[4], int tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32, token = lane / 4, value = 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // i % 2: values 8 and on; i / 2: tokens 8 and on
    const uint32_t x = movmatrix_trans(a[i]);
    const int row = token + 8 * (i / 2);
    if (row < tokens) *reinterpret_cast<uint32_t*>(to + row * stride + value + 8 * (i % 2)) = x;
  }
}

// ---- a state in the accumulators of D / 16 warps: warp w has value rows 16 w .. 16 w + 15 ----

template <int D>
__device__ __forceinline__ void scale_columns(float (&state)[D / 8][4], const float* factor) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(factor + 8 * n + column);
    state[n][0] *= f.x, state[n][1] *= f.y, state[n][2] *= f.x, state[n][3] *= f.y;
  }
}

// Calls f(offset of two neighbouring keys in [D, D], index n, index i of the first of the two).
template <int D, class F>
__device__ __forceinline__ void for_state(F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) f((row + 4 * i) * D + 8 * n + 2 * (lane % 4), n, i);
  }
}

template <int D>
__device__ __forceinline__ void load_state(float (&state)[D / 8][4], const float* from) {
  for_state<D>([&](int at, int n, int i) {
    const float2 x = from == nullptr ? float2{0, 0} : *reinterpret_cast<const float2*>(from + at);
    state[n][i] = x.x, state[n][i + 1] = x.y;
  });
}
template <int D>
__device__ __forceinline__ void load_state(float (&state)[D / 8][4], const __nv_bfloat16* from) {
  for_state<D>([&](int at, int n, int i) {
    const uint32_t x = *reinterpret_cast<const uint32_t*>(from + at);
    state[n][i] = low_bf16(x), state[n][i + 1] = high_bf16(x);
  });
}
template <int D>
__device__ __forceinline__ void store_state(const float (&state)[D / 8][4], float* to) {
  for_state<D>([&](int at, int n, int i) { *reinterpret_cast<float2*>(to + at) = float2{state[n][i], state[n][i + 1]}; });
}
template <int D>
__device__ __forceinline__ void store_state(const float (&state)[D / 8][4], __nv_bfloat16* to) {
  for_state<D>([&](int at, int n, int i) { *reinterpret_cast<uint32_t*>(to + at) = pack_bf16(state[n][i], state[n][i + 1]); });
}

// d += state rows^T over the D keys: rows [16 tokens, D] in shared memory; d [16 values, 16 tokens].
template <int D>
__device__ __forceinline__ void read_state(float (&d)[2][4], const float (&state)[D / 8][4], uint32_t rows) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[4], b[4];
    pack_left(a, state[2 * k], state[2 * k + 1]);
    load_rows(b, rows, kTrainStride<D>, 0, 16 * k);
    mma_pair(d[0], d[1], a, b);
  }
}
// The same for two sets of rows.
template <int D>
__device__ __forceinline__ void read_state(float (&d)[2][4], float (&e)[2][4], const float (&state)[D / 8][4], uint32_t d_rows, uint32_t e_rows) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[4], b[4];
    pack_left(a, state[2 * k], state[2 * k + 1]);
    load_rows(b, d_rows, kTrainStride<D>, 0, 16 * k);
    mma_pair(d[0], d[1], a, b);
    load_rows(b, e_rows, kTrainStride<D>, 0, 16 * k);
    mma_pair(e[0], e[1], a, b);
  }
}
// state += x rows: x [16 values, 16 tokens] as A operand.
template <int D>
__device__ __forceinline__ void write_state(float (&state)[D / 8][4], const uint32_t (&x)[4], uint32_t rows) {
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    uint32_t b[4];
    load_columns(b, rows, kTrainStride<D>, 16 * n, 0);
    mma_pair(state[2 * n], state[2 * n + 1], x, b);
  }
}

// ---- element by element: a thread has two neighbouring channels of eight tokens ----

constexpr int kTrainHalf = 8;

struct Taps {  // of two channels
  float2 x[kTrainTaps];
  __device__ __forceinline__ Taps(const float* taps, int channel) {
    const float4 a = *reinterpret_cast<const float4*>(taps + channel * kTrainTaps);
    const float4 b = *reinterpret_cast<const float4*>(taps + (channel + 1) * kTrainTaps);
    x[0] = {a.x, b.x}, x[1] = {a.y, b.y}, x[2] = {a.z, b.z}, x[3] = {a.w, b.w};
  }
};

// Rows first - 3 .. first + 7 of a sequence's inputs, zeros before its start and from `end` on. `from`: two channels of row 0.
__device__ __forceinline__ void load_window(uint32_t (&x)[kTrainHalf + kTrainHalo], const __nv_bfloat16* from, int64_t stride, int first,
                                            int end) {
  const __nv_bfloat16* at = from + (first - kTrainHalo) * stride;
  if (first >= kTrainHalo && first + kTrainHalf <= end) {
#pragma unroll
    for (int i = 0; i < kTrainHalf + kTrainHalo; ++i, at += stride) x[i] = *reinterpret_cast<const uint32_t*>(at);
    return;
  }
#pragma unroll
  for (int i = 0; i < kTrainHalf + kTrainHalo; ++i, at += stride) {
    const int row = first + i - kTrainHalo;
    x[i] = row >= 0 && row < end ? *reinterpret_cast<const uint32_t*>(at) : 0U;
  }
}

// Convolution at row i of a window, before SiLU.
__device__ __forceinline__ float2 convolve(const uint32_t (&x)[kTrainHalf + kTrainHalo], const Taps& taps, int i) {
  float2 y{0, 0};
#pragma unroll
  for (int n = 0; n < kTrainTaps; ++n) {
    y.x = fmaf(taps.x[n].x, low_bf16(x[i + n]), y.x);
    y.y = fmaf(taps.x[n].y, high_bf16(x[i + n]), y.y);
  }
  return y;
}

struct Activated {
  float y, slope;
};
__device__ __forceinline__ Activated silu(float x) {
  x = fmaxf(x, -85.0F);
  const Sigmoids s = sigmoids(x);
  const float y = x * s.plus;
  return {y, fmaf(y, s.minus, s.plus)};
}

// Log2 of the decays of eight tokens of two channels, relative to the middle of the tile: upper half of a tile (tokens 0..7): minus the
// sum of the gates up to the middle; lower half: the sum since. `total`: the sum of the eight.
struct Gate {
  float rate;    // exp(A_log)
  float bound;   // lower_bound * log2 e
  float2 bias;
};
struct NoSlopes {
  __device__ __forceinline__ void operator()(int, float, float) const {}
};
// slopes(i, x, y): of the two sigmoids of token i.
template <class Slopes = NoSlopes>
__device__ __forceinline__ void middle_sums(const Gate& gate, const uint32_t (&z)[kTrainHalf], int tokens, bool lower, float2 (&x)[kTrainHalf],
                                            float2& total, Slopes slopes = {}) {
#pragma unroll
  for (int i = 0; i < kTrainHalf; ++i) {
    const bool real = i < tokens;
    const Sigmoids low = sigmoids(gate.rate * (low_bf16(z[i]) + gate.bias.x)), high = sigmoids(gate.rate * (high_bf16(z[i]) + gate.bias.y));
    slopes(i, low.plus * low.minus, high.plus * high.minus);
    x[i].x = real ? gate.bound * low.plus : 0.0F;
    x[i].y = real ? gate.bound * high.plus : 0.0F;
  }
  total = {0, 0};
  if (lower) {
#pragma unroll
    for (int i = 0; i < kTrainHalf; ++i) {
      total.x += x[i].x, total.y += x[i].y;
      x[i] = total;
    }
  } else {
#pragma unroll
    for (int i = kTrainHalf - 1; i >= 0; --i) {
      const float2 g = x[i];
      x[i] = {-total.x, -total.y};
      total.x += g.x, total.y += g.y;
    }
  }
}
__device__ __forceinline__ Gate gate_of(const KdaTrainCudaArgs& a, int head, int channel) {
  const float2 bias = *reinterpret_cast<const float2*>(a.dt_bias + channel);
  return {__expf(a.a_log[head]), a.lower_bound * kLog2Of, bias};
}

// A step of sums of several values over lanes: lanes that differ in `mask` share 2 * Half values, the one with the bit keeps the upper ones.
template <int Half, int N>
__device__ __forceinline__ void share_sums(float (&x)[N], int mask) {
  const bool upper = (static_cast<int>(threadIdx.x) & mask) != 0;
#pragma unroll
  for (int i = 0; i < Half; ++i) {
    const float low = x[i], high = x[i + Half];
    x[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFFU, upper ? low : high, mask);
  }
}

// Sums of 16 values over groups of L lanes (16 or 32): lane l gets the sum of value l % 16.
template <int L>
__device__ __forceinline__ float group_sums(float (&x)[16]) {
  share_sums<8>(x, 8), share_sums<4>(x, 4), share_sums<2>(x, 2), share_sums<1>(x, 1);
  if constexpr (L == 32) x[0] += __shfl_xor_sync(0xFFFFFFFFU, x[0], 16);
  return x[0];
}

// Sums over the rows of an accumulator (lanes that differ in bits 2 to 4) of N values, 4 or 8; the lane's is number `index`.
template <int N>
__device__ __forceinline__ float row_sums(float (&x)[N], int& index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (N == 8) {
    share_sums<4>(x, 16), share_sums<2>(x, 8), share_sums<1>(x, 4);
    index = lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
  } else {
    share_sums<2>(x, 16), share_sums<1>(x, 8);
    x[0] += __shfl_xor_sync(0xFFFFFFFFU, x[0], 4);
    index = lane / 16 * 2 + lane / 8 % 2;
  }
  return x[0];
}

__device__ __forceinline__ float beta_logit(const KdaTrainCudaArgs& a, int64_t token, int head) {
  const int64_t at = token * a.heads + head;
  return a.b_f32 != 0 ? static_cast<const float*>(a.b)[at] : __bfloat162float(static_cast<const __nv_bfloat16*>(a.b)[at]);
}

}  // namespace k3::ops::cuda
