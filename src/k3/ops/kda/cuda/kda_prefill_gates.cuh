// Internal to ops/kda. Gates of the fused prefill kernel, and the products of keys and queries where decays are too large
// for factors.
//
// Bounded (sigmoid): a chunk's decay stays above 2^-116, so e^G and e^-G are BF16 operands. Unbounded (softplus): 16
// channels whose decay stays above 2^-96 are done in the same way. Others halve the chunk again and again (kernels.md 2.6):
// pairs of one token of the later and one of the earlier half of 16, 8, 4 or 2 tokens meet at the earlier half's last token,
// where both factors are at most 1. Their exponents are sums of the gates in between, never differences, so any gate has the
// accuracy of small ones. A decay of one token below 2^-255 is taken for that: both are zero in FP32.
#pragma once

#include "k3/ops/kda/cuda/kda_prefill_tile.cuh"

namespace k3::ops::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kFactorReach =
    -96;  // log2 of a chunk's decay: 2^96 |k| and 2^-96 |k| are normal BF16 for |k| of 2^-30 to 2^31

// Of FP16 decays, in log2. Bounded: FP16 keeps 11 bits of them down to 2^-24. Unbounded: down to 2^-22, 2^-33 below.
template <bool kBounded>
constexpr float kGateUnit = kBounded ? 1024 : 256;

// Factor of z + dt_bias that makes it a base-2 exponent.
template <bool kBounded>
__device__ __forceinline__ float gate_rate(const K3KdaPrefill& a, int head) {
  return kBounded ? -__expf(a.a_log[head]) * kLog2E : kLog2E;
}

template <bool kBounded>
struct GateConstants {
  float rate;       // gate_rate
  float unit;       // bounded: 1 / (lower_bound * log2(e) * kGateUnit); else -exp(A_log) * kGateUnit
  uint32_t sum[4];  // A fragment of the lower triangle of ones, / kGateUnit

  __device__ __forceinline__ GateConstants(const K3KdaPrefill& a, int head) : rate(gate_rate<kBounded>(a, head)) {
    unit = kBounded ? 1.0F / (a.lower_bound * kLog2E * kGateUnit<kBounded>) : -__expf(a.a_log[head]) * kGateUnit<kBounded>;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane >> 2;
    sum[0] = sum[3] = ones(-1, row), sum[1] = ones(-1, 7), sum[2] = 0;
  }
  // 1 / kGateUnit at columns first + 1 .. last of an 8 x 8 block: those of this lane.
  static __device__ __forceinline__ uint32_t ones(int first, int last,
                                                  int column = 2 * (static_cast<int>(threadIdx.x) & 3)) {
    const uint32_t one = kBounded ? 0x1400 : 0x1C00;
    return (column > first && column <= last ? one : 0U) | (column + 1 > first && column + 1 <= last ? one << 16 : 0U);
  }
};

__device__ __forceinline__ uint32_t gates(uint32_t z, float bias, const GateConstants<true>& c) {  // of two tokens
  const float e0 = exp2_approx(fmaf(low_bf16(z), c.rate, bias)), e1 = exp2_approx(fmaf(high_bf16(z), c.rate, bias));
  return pack_half(rcp_approx(fmaf(e0, c.unit, c.unit)), rcp_approx(fmaf(e1, c.unit, c.unit)));
}

// log2(1 + 2^y): max(y, 0) + e p(e) with e = 2^-|y|; p is within 6e-5 of log2(1 + e) / e, also where 1 + e would round.
__device__ __forceinline__ float softplus2(float y) {
  const float e = exp2_approx(-fabsf(y));
  float p = 0.0596515313F;
  p = fmaf(p, e, -0.227119416F);
  p = fmaf(p, e, 0.441898823F);
  p = fmaf(p, e, -0.716987431F);
  p = fmaf(p, e, 1.44261324F);
  return fmaf(e, p, fmaxf(y, 0.0F));
}

__device__ __forceinline__ uint32_t gates(uint32_t z, float bias, const GateConstants<false>& c) {
  const float g0 = softplus2(fmaf(low_bf16(z), c.rate, bias)), g1 = softplus2(fmaf(high_bf16(z), c.rate, bias));
  return larger_halves(pack_half(g0 * c.unit, g1 * c.unit), 0xFBFFFBFFU);  // -65504
}

// Channels 16 j .. 16 j + 15 in two steps, so that the first of one square runs beside the second of the one before.
struct Square {
  uint32_t gate[4];  // decays of 2 tokens: FP16 B fragments of two octets of channels
  uint32_t k[4], q[4];
};

// Sums over the channels: rows tokens, columns tokens.
struct Products {
  float l[2][4] = {}, p[2][4] = {};
  float kk[2] = {}, qq[2] = {};  // this lane's part of the squared norms of tokens lane / 4, + 8
};

// 2^x of the sums of gates that `take` (an A fragment, tokens x tokens) picks: those of the rows' tokens.
__device__ __forceinline__ void decays(const uint32_t (&take)[4], const Square& s, float (&f)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x[4] = {};
    mma16_half(x, take, s.gate[2 * h], s.gate[2 * h + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) f[h][i] = exp2_approx(x[i]);
  }
}
__device__ __forceinline__ void scale_rows(const uint32_t (&x)[4], const float (&f)[2][4], uint32_t (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = 2 * (i % 2);
    out[i] = pack_bf16(low_bf16(x[i]) * f[i / 2][at], high_bf16(x[i]) * f[i / 2][at + 1]);
  }
}

// Adds these channels' part to what l and p have on and below the diagonal.
template <bool kMaps>
__device__ __forceinline__ void products_by_halves(const GateConstants<false>& c, const Square& s, Products& sum) {
  const int lane = lane_here(), row = lane >> 2, column = 2 * (lane & 3);
  uint32_t kf[4], qf[4] = {};
  const auto scale = [&](const uint32_t(&take)[4]) {
    float f[2][4];
    decays(take, s, f);
    scale_rows(s.k, f, kf);
    if constexpr (!kMaps) scale_rows(s.q, f, qf);
  };
  {  // tokens 8..15 after 0..7; keys above queries, so that one product serves L and P
    const uint32_t take[4] = {c.sum[1] - c.sum[0], 0, 0, c.sum[0]};
    scale(take);
    float d[4] = {sum.l[0][2], sum.l[0][3], sum.p[0][2], sum.p[0][3]};
    mma16(d, kf[1], qf[1], kf[3], qf[3], kf[0], kf[2]);
    sum.l[0][2] = d[0], sum.l[0][3] = d[1], sum.p[0][2] = d[2], sum.p[0][3] = d[3];
  }
#pragma unroll 1                             // registers
  for (int half = 4; half > 0; half /= 2) {  // inside tokens 0..7 and 8..15
    const int meet = (row & ~(2 * half - 1)) + half - 1;
    const uint32_t between = GateConstants<false>::ones(min(row, meet), max(row, meet), column),
                   take[4] = {between, 0, 0, between};
    scale(take);
    float low[4] = {}, high[4] = {};
    mma16(low, kf[0], qf[0], kf[2], qf[2], kf[0], kf[2]);
    mma16(high, kf[1], qf[1], kf[3], qf[3], kf[1], kf[3]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((row ^ (column + i)) >= 2 * half || (row & half) == 0 || ((column + i) & half) != 0) continue;
      sum.l[0][i] += low[i], sum.l[1][2 + i] += high[i];
      sum.p[0][i] += low[2 + i], sum.p[1][2 + i] += high[2 + i];
    }
  }
  if constexpr (!kMaps) {  // a token with itself
    float low[4] = {}, high[4] = {};
    mma16(low, s.q[0], s.q[1], s.q[2], s.q[3], s.k[0], s.k[2]);
    mma16(high, s.q[0], s.q[1], s.q[2], s.q[3], s.k[1], s.k[3]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (column + i == row) sum.p[0][i] += low[i], sum.p[1][2 + i] += high[2 + i];
    }
  }
}

// close_square with factors of at most 1.
template <bool kMaps>
__device__ __forceinline__ void close_deep_square(uint32_t lane_row, uint32_t buffer, int j, const GateConstants<false>& c,
                                                  const Square& s, Products& sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t zq = square_at(lane_row, j, kStepZQ), later = c.sum[1] - c.sum[0], after[4] = {later, 0, c.sum[1], later};
  float f[2][4], whole[4];
  uint32_t rows[4];
  decays(c.sum, s, f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    whole[i] = __shfl_sync(0xFFFFFFFFU, f[i / 2][2 + i % 2], 28 + (lane & 3));  // token 15
    const float k0 = low_bf16(s.k[i]), k1 = high_bf16(s.k[i]), q0 = low_bf16(s.q[i]), q1 = high_bf16(s.q[i]);
    sum.kk[i % 2] = fmaf(k0, k0, fmaf(k1, k1, sum.kk[i % 2]));
    if constexpr (!kMaps) sum.qq[i % 2] = fmaf(q0, q0, fmaf(q1, q1, sum.qq[i % 2]));
  }
  if (lane < 4) store_shared(buffer + kAtE + static_cast<uint32_t>(lane * kERow + j * 16), whole);
  scale_rows(s.k, f, rows);
  stmatrix_x4(zq + kAtZ, rows);
  if constexpr (!kMaps) {
    scale_rows(s.q, f, rows);
    stmatrix_x4(zq + kAtQ, rows);
  }
  decays(after, s, f);
  scale_rows(s.k, f, rows);
  stmatrix_x4(square_at(lane_row, j, kStepKV) + kAtK, rows);
  products_by_halves<kMaps>(c, s, sum);
}

}  // namespace k3::ops::cuda
