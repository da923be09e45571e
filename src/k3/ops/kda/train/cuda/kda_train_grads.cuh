// Internal to ops/kda/train. Third kernel of the vjp, a thread block a block of 64 tokens of a head: gradients of keys and queries from
// both states and from the pairs of tokens, then element by element back to the inputs of the convolution.
//
// Between tiles a > b the operands KP of a and KM of b lack the decay from the middle of b to the middle of a: a factor a channel
// (`link`), put on the accumulators. KP and QP lack the decay from the block's start (`head`), KM the one to its end (`tail`).
// The gradient of the sum of gates takes the BF16 operands that entered the products, else what must cancel does not (kernels.md 3).
#pragma once

#include "k3/ops/kda/train/cuda/kda_train_tile.cuh"

namespace k3::ops::cuda {

template <int D>
struct TrainGrads {
  static constexpr int kThreads = 4 * D, kWarps = D / 8, kStride = kTrainStride<D>, kPairs = D / 2, kHalves = 2 * kTrainTiles;
  static constexpr int kGroup = kPairs < 32 ? kPairs : 32, kParts = kPairs / kGroup;
  static constexpr int kSquare = kTrainRows + 8;  // stride of [64, 64]
  static constexpr int kColumns = D / 32;         // warps that share the rows of a tile, 32 columns each
  using Scratch = KdaTrainScratch<D>;

  struct Shared {
    union {
      struct {
        __nv_bfloat16 kp[kTrainRows][kStride], qp[kTrainRows][kStride], km[kTrainRows][kStride];
      };
      float sums[3 * kTrainTaps + 2][kHalves][D];  // of taps, dt_bias, a_log
    };
    __nv_bfloat16 d_r[kTrainRows][kStride];
    union {
      struct {
        __nv_bfloat16 u[kTrainRows][kStride], d_o[kTrainRows][kStride], state[D][kStride], d_state[D][kStride];
        __nv_bfloat16 d_l[kTrainRows][kSquare], d_p[kTrainRows][kSquare];  // beta dL, dP
      };
      float stage[3][kTrainRows][kStride];  // gradients of QP, KP, KM; of qn, kn, sums of dG; of the convolutions of q, k, v
    };
    float edge[kTrainTiles + 1][D];
    float head[kTrainTiles][D], tail[kTrainTiles][D], link[6][D];
    float written[kTrainTiles][D], decayed[kHalves][D];  // parts of what the block's whole decay gets
    float constant[D], half_sums[kHalves][D];
    float dots[kParts][kHalves][2 * kTrainHalf];
    float numbers[3][kTrainRows];  // beta, factors of q and k
  };

  const KdaTrainCudaArgs& a;
  Shared& s;
  int head, thread, warp, lane;
  int64_t stride, slot;
  KdaTrainBlock block{};

  __device__ TrainGrads(const KdaTrainCudaArgs& args, Shared& shared, int row, int pass_head)
      : a(args), s(shared), head(args.first_head + pass_head), thread(static_cast<int>(threadIdx.x)), warp(thread / 32), lane(thread % 32),
        stride(static_cast<int64_t>(args.heads) * D), slot(static_cast<int64_t>(row) * args.pass_heads + pass_head), block(args.blocks[row]) {}

  __device__ void fetch(const void* from, __nv_bfloat16 (*to)[kStride], int rows, int real) const {  // contiguous; zeros from `real` on
    const auto* x = static_cast<const __nv_bfloat16*>(from);
    for (int i = thread; i < rows * D / 8; i += kThreads) {
      const int row = i / (D / 8);
      cp_async<16>(shared_address(&to[row][i % (D / 8) * 8]), x + (row < real ? 8 * i : 0), row < real);
    }
  }
  __device__ void fetch(const float* from, float* to, int count) const {
    for (int i = thread; i < count / 4; i += kThreads) cp_async<16>(shared_address(to + 4 * i), from + 4 * i);
  }
  __device__ const __nv_bfloat16* scratch(const void* x) const { return static_cast<const __nv_bfloat16*>(x) + slot * Scratch::kTile; }

  __device__ void load(int row) const {
    fetch(scratch(a.u), s.u, kTrainRows, kTrainRows), fetch(scratch(a.d_o), s.d_o, kTrainRows, kTrainRows);
    fetch(scratch(a.d_r), s.d_r, kTrainRows, block.count);  // the scan leaves out tiles without a token
    fetch(a.edges + slot * Scratch::kEdges, &s.edge[0][0], Scratch::kEdges);
    fetch(a.row_numbers + slot * Scratch::kRowNumbers, &s.numbers[0][0], Scratch::kRowNumbers);
    cp_async_commit();
    fetch(scratch(a.kp), s.kp, kTrainRows, kTrainRows), fetch(scratch(a.qp), s.qp, kTrainRows, kTrainRows);
    fetch(scratch(a.km), s.km, kTrainRows, kTrainRows);
    fetch(static_cast<const __nv_bfloat16*>(a.kept) + (static_cast<int64_t>(row) * a.heads + head) * D * D, s.state, D, D);
    fetch(static_cast<const __nv_bfloat16*>(a.d_state) + slot * D * D, s.d_state, D, D);
    cp_async_commit();
  }

  __device__ void links() const {
    if (thread >= D) return;
    const int k = thread;
    float before = 1, after = 1;
    for (int tile = 0; tile < kTrainTiles; ++tile) s.head[tile][k] = before *= s.edge[tile][k];
    for (int tile = kTrainTiles - 1; tile >= 0; --tile) s.tail[tile][k] = after *= s.edge[tile + 1][k];
    for (int to = 1; to < kTrainTiles; ++to) {
      float between = 1;
      for (int from = to - 1; from >= 0; --from) s.link[to * (to - 1) / 2 + from][k] = between *= s.edge[from + 1][k];
    }
  }

  // dP and beta dL, a tile pair and kind a warp at a time; the diagonal of dR U^T is the gradient of beta.
  __device__ void pairs() const {
    for (int unit = warp; unit < 20; unit += kWarps) {
      const int index = unit / 2, to = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3, from = index - to * (to + 1) / 2;
      const bool queries = unit % 2 == 0;
      const uint32_t left = shared_address(queries ? &s.d_o[0][0] : &s.d_r[0][0]), right = shared_address(&s.u[0][0]);
      float d[2][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t x[4], b[4];
        load_left(x, left, kStride, kTrainTile * to, 16 * k);
        load_rows(b, right, kStride, kTrainTile * from, 16 * k);
        mma_pair(d[0], d[1], x, b);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const int r = lane / 4 + 4 * i, c = 8 * j + 2 * (lane % 4), row = kTrainTile * to + r;
          const int most = to > from ? kTrainTile : queries ? r : r - 1;
          const float scale = queries ? 1.0F : -s.numbers[0][row];
          const float low = c <= most ? scale * d[j][i] : 0.0F, high = c + 1 <= most ? scale * d[j][i + 1] : 0.0F;
          auto& out = queries ? s.d_p : s.d_l;
          *reinterpret_cast<uint32_t*>(&out[row][kTrainTile * from + c]) = pack_bf16(low, high);
          if (!queries && to == from && (c == r || c + 1 == r)) store_beta(row, c == r ? d[j][i] : d[j][i + 1]);
        }
      }
    }
  }
  __device__ void store_beta(int row, float along) const {  // u = beta e: dbeta beta (1 - beta) = dR . u (1 - beta)
    if (row >= block.count) return;
    const int64_t token = block.first + row, at = token * a.heads + head;
    const float d = along * sigmoids(beta_logit(a, token, head)).minus;
    if (a.b_f32 != 0) static_cast<float*>(a.db)[at] = d;
    else static_cast<__nv_bfloat16*>(a.db)[at] = __float2bfloat16(d);
  }

  // sum over values of state * d_state, by key.
  __device__ void decays() const {
    const int pair = thread % kPairs, group = thread / kPairs;
    float2 sum{0, 0};
#pragma unroll
    for (int i = 0; i < D / kHalves; ++i) {
      const int v = group * (D / kHalves) + i;
      const uint32_t x = *reinterpret_cast<const uint32_t*>(&s.state[v][2 * pair]), d = *reinterpret_cast<const uint32_t*>(&s.d_state[v][2 * pair]);
      sum.x = fmaf(low_bf16(x), low_bf16(d), sum.x), sum.y = fmaf(high_bf16(x), high_bf16(d), sum.y);
    }
    *reinterpret_cast<float2*>(&s.decayed[group][2 * pair]) = sum;
  }

  struct Tiles {  // 16 tokens, 32 keys
    float q[4][4] = {}, k[4][4] = {}, m[4][4] = {};
  };

  __device__ float2 column(const float* row, int n) const {
    return *reinterpret_cast<const float2*>(row + 32 * (warp % kColumns) + 8 * n + 2 * (lane % 4));
  }

  // What the two states give; the sums over the block's writes go to `written`.
  __device__ void from_states(Tiles& d) const {
    const int tile = warp / kColumns, first = 32 * (warp % kColumns), row = kTrainTile * tile;
#pragma unroll
    for (int v = 0; v < D / 16; ++v) {
      uint32_t d_o[4], d_r[4], u[4];
      load_left(d_o, shared_address(&s.d_o[0][0]), kStride, row, 16 * v);
      load_left(d_r, shared_address(&s.d_r[0][0]), kStride, row, 16 * v);
      load_left(u, shared_address(&s.u[0][0]), kStride, row, 16 * v);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t b[4];
        load_columns(b, shared_address(&s.state[0][0]), kStride, first + 16 * h, 16 * v);
        mma_pair(d.q[2 * h], d.q[2 * h + 1], d_o, b);
        mma_pair(d.k[2 * h], d.k[2 * h + 1], d_r, b);
        load_columns(b, shared_address(&s.d_state[0][0]), kStride, first + 16 * h, 16 * v);
        mma_pair(d.m[2 * h], d.m[2 * h + 1], u, b);
      }
    }
    const float beta[2] = {s.numbers[0][row + lane / 4], s.numbers[0][row + lane / 4 + 8]};
    float sums[8] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 head_f = column(s.head[tile], n), tail_f = column(s.tail[tile], n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float h = i % 2 == 0 ? head_f.x : head_f.y, t = i % 2 == 0 ? tail_f.x : tail_f.y;
        d.q[n][i] *= h, d.k[n][i] *= -beta[i / 2] * h, d.m[n][i] *= t;
        const __nv_bfloat16 key = s.km[row + lane / 4 + 8 * (i / 2)][first + 8 * n + 2 * (lane % 4) + i % 2];
        sums[2 * n + i % 2] = fmaf(d.m[n][i], __bfloat162float(key), sums[2 * n + i % 2]);
      }
    }
    int index;
    const float sum = row_sums(sums, index);
    s.written[tile][first + 8 * (index / 2) + 2 * (lane % 4) + index % 2] = sum;
  }

  static __device__ __forceinline__ void add_scaled(float (&to)[4], const float (&x)[4], float2 f) {
    to[0] = fmaf(x[0], f.x, to[0]), to[1] = fmaf(x[1], f.y, to[1]), to[2] = fmaf(x[2], f.x, to[2]), to[3] = fmaf(x[3], f.y, to[3]);
  }

  // What the pairs of tokens give.
  __device__ void from_pairs(Tiles& d) const {
    const int tile = warp / kColumns, first = 32 * (warp % kColumns), row = kTrainTile * tile;
#pragma unroll 1
    for (int from = 0; from <= tile; ++from) {
      uint32_t p[4], l[4];
      load_left(p, shared_address(&s.d_p[0][0]), kSquare, row, kTrainTile * from);
      load_left(l, shared_address(&s.d_l[0][0]), kSquare, row, kTrainTile * from);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t b[4];
        load_columns(b, shared_address(&s.km[0][0]), kStride, first + 16 * h, kTrainTile * from);
        float q[2][4] = {}, k[2][4] = {};
        mma_pair(q[0], q[1], p, b);
        mma_pair(k[0], k[1], l, b);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 f = from == tile ? float2{1, 1} : column(s.link[tile * (tile - 1) / 2 + from], 2 * h + n);
          add_scaled(d.q[2 * h + n], q[n], f);
          add_scaled(d.k[2 * h + n], k[n], f);
        }
      }
    }
#pragma unroll 1
    for (int to = tile; to < kTrainTiles; ++to) {
      uint32_t p[4], l[4];
      load_left_turned(p, shared_address(&s.d_p[0][0]), kSquare, row, kTrainTile * to);
      load_left_turned(l, shared_address(&s.d_l[0][0]), kSquare, row, kTrainTile * to);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t b[4];
        float m[2][4] = {};
        load_columns(b, shared_address(&s.qp[0][0]), kStride, first + 16 * h, kTrainTile * to);
        mma_pair(m[0], m[1], p, b);
        load_columns(b, shared_address(&s.kp[0][0]), kStride, first + 16 * h, kTrainTile * to);
        mma_pair(m[0], m[1], l, b);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          add_scaled(d.m[2 * h + n], m[n], to == tile ? float2{1, 1} : column(s.link[to * (to - 1) / 2 + tile], 2 * h + n));
        }
      }
    }
  }

  __device__ void stage(const Tiles& d) const {
    const int tile = warp / kColumns, first = 32 * (warp % kColumns), row = kTrainTile * tile + lane / 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int c = first + 8 * n + 2 * (lane % 4), r = row + 4 * i;
        *reinterpret_cast<float2*>(&s.stage[0][r][c]) = float2{d.q[n][i], d.q[n][i + 1]};
        *reinterpret_cast<float2*>(&s.stage[1][r][c]) = float2{d.k[n][i], d.k[n][i + 1]};
        *reinterpret_cast<float2*>(&s.stage[2][r][c]) = float2{d.m[n][i], d.m[n][i + 1]};
      }
    }
  }
  // After the barrier behind from_states and decays.
  __device__ void constants() const {
    if (thread >= D) return;
    float sum = 0, decay = 0;
    for (int i = 0; i < kHalves; ++i) decay += s.decayed[i][thread];
    for (int tile = 0; tile < kTrainTiles; ++tile) sum += s.written[tile][thread];
    s.constant[thread] = fmaf(decay, s.head[kTrainTiles - 1][thread] * s.edge[kTrainTiles][thread], sum);
  }
};

}  // namespace k3::ops::cuda
