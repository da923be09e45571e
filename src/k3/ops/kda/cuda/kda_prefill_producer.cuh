// Internal to ops/kda. One producer warp: the factors of a chunk (kernels.md 2.1) from its raw rows, in place.
//
// With raw rows q, k and r = 1 / |k|, s = 128^-0.5 / |q| of each token, the consumer gets, for a state S [keys, values]:
//   W  = -Diag(r) T Diag(beta r) (k e^G)     T V = Diag(r) T Diag(beta) V       T = (I + L)^-1
//   Q  = q e^G     K = k e^(G_C - G)     P = tril(q e^G . k e^-G)     E = e^(G_C)     scale s
// so that U = T V + W S is r u, S <- E S + K^T U, out = s (Q S + P U): norms act on 16 x 16 matrices, never on rows.
#pragma once

#include "k3/ops/kda/cuda/kda_prefill_gates.cuh"

namespace k3::ops::cuda {

// 16 rows of the batch from `first` to a buffer (one lane). Rows of the next sequence come along.
template <bool kMaps>
__device__ __forceinline__ void load_rows(const PrefillMaps& maps, int head, bool values, int first, uint32_t buffer,
                                          uint32_t bar) {
  fence_async_proxy();  // factors were written here
  mbar_expect(bar, (kMaps ? (values ? 6 : 4) : 8) * kHalfTile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = head * kDim + 64 * half;
    const uint32_t zq = buffer + static_cast<uint32_t>(half * kStepZQ), kv = buffer + static_cast<uint32_t>(half * kStepKV);
    tma_load_2d(zq + kAtZ, &maps.z, column, first, bar);
    tma_load_2d(kv + kAtK, &maps.k, column, first, bar);
    if constexpr (!kMaps) tma_load_2d(zq + kAtQ, &maps.q, column, first, bar);
    if (values) tma_load_2d(kv + kAtV, &maps.v, column, first, bar);
  }
}

// The logit of one token as it is stored: it is made a number when it is used, not where its load is waited for.
__device__ __forceinline__ uint32_t load_logit(const K3KdaPrefill& a, int64_t row, int head, bool take) {
  if (!take) return 0;
  const int64_t at = row * a.b_stride + head;
  return a.b_f32 != 0 ? static_cast<const uint32_t*>(a.b)[at] : static_cast<const uint16_t*>(a.b)[at];
}
__device__ __forceinline__ float beta_of(const K3KdaPrefill& a, uint32_t logit) {
  return 1.0F / (1.0F + __expf(-__uint_as_float(a.b_f32 != 0 ? logit : logit << 16)));
}

// Rows [count, 16) of a chunk belong to another sequence: keys and values of zero, and a decay input whose gate is zero.
__device__ __forceinline__ void blank_rows(uint32_t buffer, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / 8 % 2;
  const uint32_t zeros[4] = {}, lowest[4] = {0xFF7FFF7F, 0xFF7FFF7F, 0xFF7FFF7F, 0xFF7FFF7F};
#pragma unroll 1
  for (int row = count + lane / 16; row < kChunk; row += 2) {
    const uint32_t at = buffer + static_cast<uint32_t>(row * 128 + lane % 8 * 16);
    store_shared(at + static_cast<uint32_t>(kAtZ + half * kStepZQ), lowest);
    store_shared(at + static_cast<uint32_t>(kAtK + half * kStepKV), zeros);
    store_shared(at + static_cast<uint32_t>(kAtV + half * kStepKV), zeros);
  }
  __syncwarp();
}

template <bool kMaps, bool kBounded>
__device__ __forceinline__ void open_square(uint32_t lane_row, int j, const GateConstants<kBounded>& c, float2 bias,
                                            Square& s) {
  const uint32_t zq = square_at(lane_row, j, kStepZQ);
  uint32_t z[4];
  ldmatrix_x4_trans(z, zq + kAtZ);
  ldmatrix_x4(s.k, square_at(lane_row, j, kStepKV) + kAtK);
  if constexpr (!kMaps) ldmatrix_x4(s.q, zq + kAtQ);
  s.gate[0] = gates(z[0], bias.x, c), s.gate[1] = gates(z[1], bias.x, c);
  s.gate[2] = gates(z[2], bias.y, c), s.gate[3] = gates(z[3], bias.y, c);
}

// false: these channels' decays are too large for factors, nothing was done (the same answer in all lanes).
template <bool kMaps, bool kBounded>
[[nodiscard]] __device__ __forceinline__ bool close_square(uint32_t lane_row, uint32_t buffer, int j,
                                                           const GateConstants<kBounded>& c, const Square& s,
                                                           Products& sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t zq = square_at(lane_row, j, kStepZQ);
  float g[2][4] = {}, grow[2][4], shrink[2][4], whole[4];  // g: decay since the chunk's begin, log2
  mma16_half(g[0], c.sum, s.gate[0], s.gate[1]);
  mma16_half(g[1], c.sum, s.gate[2], s.gate[3]);
  if constexpr (!kBounded) {  // decays only add up: the last token's is the largest
    if (__any_sync(0xFFFFFFFFU, fminf(fminf(g[0][2], g[0][3]), fminf(g[1][2], g[1][3])) < kFactorReach)) return false;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    shrink[i / 4][i % 4] = exp2_approx(g[i / 4][i % 4]), grow[i / 4][i % 4] = exp2_approx(-g[i / 4][i % 4]);
#pragma unroll
  for (int i = 0; i < 4; ++i) whole[i] = __shfl_sync(0xFFFFFFFFU, shrink[i / 2][2 + i % 2], 28 + (lane & 3));  // token 15
  uint32_t kp[4], km[4], ke[4], qp[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // i: half of the tokens + 2 * half of the channels
    const float(&down)[4] = shrink[i / 2];
    const float(&up)[4] = grow[i / 2];
    const int at2 = 2 * (i % 2);
    const float k0 = low_bf16(s.k[i]), k1 = high_bf16(s.k[i]), m0 = k0 * up[at2], m1 = k1 * up[at2 + 1];
    kp[i] = pack_bf16(k0 * down[at2], k1 * down[at2 + 1]);
    km[i] = pack_bf16(m0, m1);
    ke[i] = pack_bf16(m0 * whole[2 * (i / 2)], m1 * whole[2 * (i / 2) + 1]);
    sum.kk[i % 2] = fmaf(k0, k0, fmaf(k1, k1, sum.kk[i % 2]));
    if constexpr (!kMaps) {
      const float q0 = low_bf16(s.q[i]), q1 = high_bf16(s.q[i]);
      qp[i] = pack_bf16(q0 * down[at2], q1 * down[at2 + 1]);
      sum.qq[i % 2] = fmaf(q0, q0, fmaf(q1, q1, sum.qq[i % 2]));
    }
  }
  mma16(sum.l[0], kp[0], kp[1], kp[2], kp[3], km[0], km[2]);
  mma16(sum.l[1], kp[0], kp[1], kp[2], kp[3], km[1], km[3]);
  if constexpr (!kMaps) {
    mma16(sum.p[0], qp[0], qp[1], qp[2], qp[3], km[0], km[2]);
    mma16(sum.p[1], qp[0], qp[1], qp[2], qp[3], km[1], km[3]);
    stmatrix_x4(zq + kAtQ, qp);
  }
  stmatrix_x4(zq + kAtZ, kp);
  stmatrix_x4(square_at(lane_row, j, kStepKV) + kAtK, ke);
  if (lane < 4) store_shared(buffer + kAtE + static_cast<uint32_t>(lane * kERow + j * 16), whole);
  return true;
}

__device__ __forceinline__ float inverse_norm(float part) {
  part += __shfl_xor_sync(0xFFFFFFFFU, part, 1);
  part += __shfl_xor_sync(0xFFFFFFFFU, part, 2);
  return rsqrtf(part + 1e-6F);
}

// (I + L)^-1 of two strictly lower 8 x 8 blocks, row lane / 4, columns 2 (lane % 4) + c: forward substitution in FP32.
__device__ __forceinline__ void invert_blocks(const float (&a)[2], const float (&b)[2], float (&ta)[2], float (&tb)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane >> 2, column = 2 * (lane & 3);
#pragma unroll
  for (int c = 0; c < 2; ++c) ta[c] = tb[c] = column + c == row ? 1.0F : 0.0F;
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    const int factor = (lane & 28) | (i >> 1), done = 4 * i + (lane & 3);
    const float fa = __shfl_sync(0xFFFFFFFFU, a[i & 1], factor), fb = __shfl_sync(0xFFFFFFFFU, b[i & 1], factor);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      ta[c] -= fa * __shfl_sync(0xFFFFFFFFU, ta[c], done);
      tb[c] -= fb * __shfl_sync(0xFFFFFFFFU, tb[c], done);
    }
  }
}

// Everything after the sums: norms, the inverse, T V and P as fragments, W. beta: of token lane (lanes 0..15).
template <bool kMaps>
__device__ __forceinline__ void finish(uint32_t lane_row, uint32_t buffer, const Products& sum, float beta) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane >> 2, column = 2 * (lane & 3);
  const float r_low = inverse_norm(sum.kk[0]), r_high = inverse_norm(sum.kk[1]);
  const float b_low = __shfl_sync(0xFFFFFFFFU, beta, row) * r_low, b_high = __shfl_sync(0xFFFFFFFFU, beta, 8 + row) * r_high;
  float r_column[2][2], b_column[2][2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    r_column[0][c] = __shfl_sync(0xFFFFFFFFU, r_low, 4 * (column + c));
    r_column[1][c] = __shfl_sync(0xFFFFFFFFU, r_high, 4 * (column + c));
    b_column[0][c] = __shfl_sync(0xFFFFFFFFU, beta, column + c);
    b_column[1][c] = __shfl_sync(0xFFFFFFFFU, beta, 8 + column + c);
  }
  float l11[2], l21[2], l22[2], t11[2], t22[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {  // masked by choice: what is above the diagonal may be infinite
    l11[c] = column + c < row ? sum.l[0][c] * b_low * r_column[0][c] : 0.0F;
    l21[c] = sum.l[0][2 + c] * b_high * r_column[0][c];
    l22[c] = column + c < row ? sum.l[1][2 + c] * b_high * r_column[1][c] : 0.0F;
  }
  invert_blocks(l11, l22, t11, t22);
  float x[4] = {}, t21[4] = {};  // T21 = -T22 (L21 T11)
  mma16(x, pack_bf16(l21[0], l21[1]), 0, 0, 0, movmatrix_trans(pack_bf16(t11[0], t11[1])), 0);
  mma16(t21, pack_bf16(-t22[0], -t22[1]), 0, 0, 0, movmatrix_trans(pack_bf16(x[0], x[1])), 0);
  float tv[4][2];  // in the order of an A fragment; above the diagonal nothing
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    tv[0][c] = r_low * t11[c] * b_column[0][c];
    tv[1][c] = r_high * t21[c] * b_column[0][c];
    tv[2][c] = 0;
    tv[3][c] = r_high * t22[c] * b_column[1][c];
  }
  const uint32_t t[4] = {pack_bf16(tv[0][0], tv[0][1]), pack_bf16(tv[1][0], tv[1][1]), 0, pack_bf16(tv[3][0], tv[3][1])};
  const uint32_t core = buffer + core_lane();
  stmatrix_x4(core + kAtT, t);
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = pack_bf16(-tv[i][0] * r_column[i / 2][0], -tv[i][1] * r_column[i / 2][1]);
  if constexpr (!kMaps) {
    const auto lower = [&](float p, int c) { return column + c <= row ? p : 0.0F; };
    const uint32_t p[4] = {pack_bf16(lower(sum.p[0][0], 0), lower(sum.p[0][1], 1)), pack_bf16(sum.p[0][2], sum.p[0][3]), 0,
                           pack_bf16(lower(sum.p[1][2], 0), lower(sum.p[1][3], 1))};
    stmatrix_x4(core + kAtP + 256, p);
    const float q_low = kScale * inverse_norm(sum.qq[0]), q_high = kScale * inverse_norm(sum.qq[1]);
    if ((lane & 3) == 0) {
      const uint32_t at = buffer + kAtScale + static_cast<uint32_t>((row >> 1) * 16 + (row & 1) * 4);
      store_shared_two(at, q_low, q_high);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // loads before stores: nothing else may pass between them
    uint32_t kp[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) ldmatrix_x4_trans(kp[j], square_at(lane_row, 4 * half + j, kStepZQ) + kAtZ);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float d[2][4] = {};
      mma16(d[0], w[0], w[1], w[2], w[3], kp[j][0], kp[j][1]);
      mma16(d[1], w[0], w[1], w[2], w[3], kp[j][2], kp[j][3]);
      const uint32_t out[4] = {pack_bf16(d[0][0], d[0][1]), pack_bf16(d[0][2], d[0][3]), pack_bf16(d[1][0], d[1][1]),
                               pack_bf16(d[1][2], d[1][3])};
      stmatrix_x4(square_at(lane_row, 4 * half + j, kStepZQ) + kAtZ, out);
    }
  }
}

// Of the chunks made in this block, index, index + kProducers, ...; rows are loaded for the kAhead-th after each (early:
// those of the first kAhead have been asked for).
template <class C>
__device__ __forceinline__ void produce(const K3KdaPrefill& a, const PrefillMaps& maps, const Piece& piece, PrefillShared& s,
                                        int index, bool early) {
  if (index >= C::kProducers) return;  // none in these shapes
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Walk walk{piece.begin}, ahead{piece.begin};
  walk.steps(s.cuts, piece.end, C::kEvery * index + (C::kPair ? piece.rank : 0));
  const uint32_t lane_at = tile_lane(), buffers = shared_address(s.buffers);
  const uint32_t arrived = shared_address(s.raw), full = shared_address(s.full), empty = shared_address(s.empty);
  const auto free = [&](int chunk) {  // every consumer is done with it
    mbar_sleep(empty + static_cast<uint32_t>(chunk % C::kOwn * 8), static_cast<uint32_t>(chunk / C::kOwn) & 1U);
  };
  const auto load = [&](int chunk) {
    if (lane != 0) return;
    if (chunk >= C::kOwn) free(chunk - C::kOwn);
    const uint32_t slot = static_cast<uint32_t>(chunk % C::kOwn);
    load_rows<C::kMaps>(maps, piece.head, !C::kMaps || piece.rank == 0, static_cast<int>(piece.first) + ahead.at,
                        buffers + slot * kBufferBytes, arrived + slot * 8);
  };
  if (!early && index < C::kAhead && walk.at < piece.end) {
    ahead = walk;
    load(index);
  }
  ahead = walk;
  ahead.steps(s.cuts, piece.end, C::kEvery * C::kAhead);
  const GateConstants<C::kBounded> c(a, piece.head);
  const int row = lane >> 2, column = 2 * (lane & 3);
  for (int chunk = index; walk.at < piece.end; chunk += C::kProducers) {
    const int count = walk.end(s.cuts, piece.end) - walk.at;
    const uint32_t logit = load_logit(a, piece.first + walk.at + lane, piece.head, lane < count);
    if (ahead.at < piece.end) {
      load(chunk + C::kAhead);
    } else if (lane == 0 && chunk >= C::kOwn) {
      free(chunk - C::kOwn);  // as load does: another warp may still wait for those rows, whose phase is not to be taken for this chunk's
    }
    __syncwarp();
    const uint32_t slot = static_cast<uint32_t>(chunk % C::kOwn), buffer = buffers + slot * kBufferBytes,
                   lane_row = buffer + lane_at;
    mbar_wait(arrived + slot * 8, static_cast<uint32_t>(chunk / C::kOwn) & 1U);
    if (count < kChunk) blank_rows(buffer, count);
    Products sum;
    Square square[2];
    uint32_t deep = 0;  // squares left by close_square
    open_square<C::kMaps>(lane_row, 0, c, s.bias[0][row], square[0]);
#pragma unroll 1
    for (int j = 0; j < 6; j += 2) {
      open_square<C::kMaps>(lane_row, j + 1, c, s.bias[j + 1][row], square[1]);
      if (!close_square<C::kMaps>(lane_row, buffer, j, c, square[0], sum)) deep |= 1U << j;
      open_square<C::kMaps>(lane_row, j + 2, c, s.bias[j + 2][row], square[0]);
      if (!close_square<C::kMaps>(lane_row, buffer, j + 1, c, square[1], sum)) deep |= 2U << j;
    }
    open_square<C::kMaps>(lane_row, 7, c, s.bias[7][row], square[1]);
    if (!close_square<C::kMaps>(lane_row, buffer, 6, c, square[0], sum)) deep |= 1U << 6;
    if (!close_square<C::kMaps>(lane_row, buffer, 7, c, square[1], sum)) deep |= 1U << 7;
    if constexpr (!C::kBounded) {
#pragma unroll 1
      for (; deep != 0; deep &= deep - 1) {  // their rows are as they came
        const int j = __ffs(static_cast<int>(deep)) - 1;
        open_square<C::kMaps>(lane_row, j, c, s.bias[j][row], square[0]);
        close_deep_square<C::kMaps>(lane_row, buffer, j, c, square[0], sum);
      }
    }
    __syncwarp();
    finish<C::kMaps>(lane_row, buffer, sum, lane < count ? beta_of(a, logit) : 0.0F);
    fence_async_proxy();  // wgmma reads next, or the copy
    warp_arrive(full + slot * 8, lane);
    if constexpr (C::kPair) {
      if (lane == 0) {
        if (chunk >= C::kReceived) free(chunk - C::kReceived);
        const uint32_t other = static_cast<uint32_t>(1 - piece.rank),
                       to = static_cast<uint32_t>(C::kOwn + chunk % C::kReceived);
        const uint32_t bar = cluster_map(full + to * 8, other);
        mbar_expect_there(bar, kSentBytes);
        bulk_send(cluster_map(buffers + to * kBufferBytes, other), buffer, kSentBytes, bar);
      }
    }
    walk.steps(s.cuts, piece.end, C::kEvery * C::kProducers);
    ahead.steps(s.cuts, piece.end, C::kEvery * C::kProducers);
  }
}

}  // namespace k3::ops::cuda
