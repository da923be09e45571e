// Internal to ops/kda/train. One block of 64 tokens of one head, up to the end of the recurrence's forward: operands of its four tiles
// in shared memory, then tile after tile with the state in registers. The forward goes on to y, the vjp back through gate and norm.
#pragma once

#include "k3/ops/kda/train/cuda/kda_train_tile.cuh"

namespace k3::ops::cuda {

template <int D, bool kVjp>
struct TrainInner {
  static constexpr int kThreads = 2 * D, kWarps = D / 16, kStride = kTrainStride<D>, kPairs = D / 2;
  static constexpr int kGroup = kPairs < 32 ? kPairs : 32, kParts = kPairs / kGroup;  // lanes, warps that share a row
  static constexpr int kKinds = kVjp ? 2 : 1;
  // Rows that four lanes read without bank conflicts; heads of 32 need the shared memory more.
  static constexpr int kStats = kWarps * kKinds + (D == 32 ? 0 : 4);
  struct Shared {
    __nv_bfloat16 kp[kTrainRows][kStride], qp[kTrainRows][kStride], km[kTrainRows][kStride], v[kTrainRows][kStride];
    __nv_bfloat16 gate[kTrainRows][kStride];
    union {
      __nv_bfloat16 dy[kVjp ? kTrainRows : 1][kStride];
      float l[kTrainTiles][kTrainTile][kTrainTile];
    };
    __nv_bfloat16 p[kTrainTiles][kTrainTile][kTrainTile], t[kTrainTiles][kTrainTile][kTrainTile];
    union {
      float factor[kTrainTiles][2][D];  // decay to the middle of the tile, decay after it
      float edge[kTrainTiles + 1][D];   // KdaTrainScratch::kEdges
    };
    float beta[kTrainRows];
    union {
      float squares[kTrainRows][2][kParts];  // of queries and keys
      float stats[2][kTrainTile][kStats];    // of outputs, by warp: sum o^2, sum o dn; two sets in turn
    };
  };

  const KdaTrainCudaArgs& a;
  Shared& s;
  int head, pass_head;  // of all, of the pass
  int thread, warp, lane;
  int64_t stride;  // of rows of activations
  KdaTrainBlock block{};
  int64_t start = 0, slot = 0;  // first token of the sequence, place in the scratch

  __device__ TrainInner(const KdaTrainCudaArgs& args, Shared& shared, int h)
      : a(args), s(shared), head(args.first_head + h), pass_head(h), thread(static_cast<int>(threadIdx.x)), warp(thread / 32),
        lane(thread % 32), stride(static_cast<int64_t>(args.heads) * D) {}

  __device__ const __nv_bfloat16* rows_of(const void* x, int64_t token) const {
    return static_cast<const __nv_bfloat16*>(x) + token * stride + head * D;
  }

  // Rows of 64 tokens to shared memory, zeros from the block's end on.
  __device__ void fetch(const void* x, __nv_bfloat16 (*to)[kStride]) const {
    const __nv_bfloat16* from = rows_of(x, block.first);
    for (int i = thread; i < kTrainRows * D / 8; i += kThreads) {
      const int row = i / (D / 8), column = i % (D / 8) * 8;
      const bool real = row < block.count;
      cp_async<16>(shared_address(&to[row][column]), from + (real ? row : 0) * stride + column, real);
    }
    cp_async_commit();
  }

  __device__ void inputs() {
    const int pair = thread % kPairs, tile = thread / kPairs, channel = head * D + 2 * pair;
    const int begin = static_cast<int>(block.first - start), end = begin + block.count;
    const __nv_bfloat16* z_rows = rows_of(a.z, block.first) + 2 * pair;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int row = kTrainTile * tile + kTrainHalf * half;
      uint32_t x[3][kTrainHalf + kTrainHalo], z[kTrainHalf];
      float2 q[kTrainHalf], k[kTrainHalf];
      const auto load = [&](int part) { load_window(x[part], rows_of(a.in[part], start) + 2 * pair, stride, begin + row, end); };
      const auto load_z = [&] {
#pragma unroll
        for (int i = 0; i < kTrainHalf; ++i) {
          z[i] = row + i < block.count ? *reinterpret_cast<const uint32_t*>(z_rows + (row + i) * stride) : 0U;
        }
      };
      const auto act = [&](int part, auto put) {
        const Taps taps(a.taps[part], channel);
#pragma unroll
        for (int i = 0; i < kTrainHalf; ++i) {
          const float2 y = convolve(x[part], taps, i);
          put(i, float2{silu(y.x).y, silu(y.y).y});
        }
      };
      load(0), load(1);
      if constexpr (kVjp) load(2), load_z();  // all at once; the forward's registers hold a state
      act(0, [&](int i, float2 y) { q[i] = y; });
      act(1, [&](int i, float2 y) { k[i] = y; });
      if constexpr (!kVjp) load(2), load_z();
      float squares[2 * kTrainHalf];
#pragma unroll
      for (int i = 0; i < kTrainHalf; ++i) {
        squares[i] = q[i].x * q[i].x + q[i].y * q[i].y;
        squares[kTrainHalf + i] = k[i].x * k[i].x + k[i].y * k[i].y;
      }
      const float sum = group_sums<kGroup>(squares);
      if (lane % kGroup < 2 * kTrainHalf) s.squares[row + lane % kTrainHalf][lane / kTrainHalf % 2][pair / 32] = sum;
      act(2, [&](int i, float2 y) { *reinterpret_cast<uint32_t*>(&s.v[row + i][2 * pair]) = pack_bf16(y.x, y.y); });
      __syncthreads();
      operands(pair, tile, half, q, k, z);
    }
    if (thread < kTrainRows) numbers(thread);
    __syncthreads();
  }

  // Of a row's keys or queries; 0 behind the last token (whose beta is 0 too).
  __device__ float norm_factor(int kind, int row) const {
    float sum = 1e-6F;
#pragma unroll
    for (int part = 0; part < kParts; ++part) sum += s.squares[row][kind][part];
    return row < block.count ? rsqrtf(sum) : 0.0F;
  }

  __device__ void operands(int pair, int tile, int half, const float2 (&q)[kTrainHalf], const float2 (&k)[kTrainHalf],
                           const uint32_t (&z)[kTrainHalf]) {
    const Gate gate = gate_of(a, head, head * D + 2 * pair);
    const float scale = rsqrtf(static_cast<float>(D));
    const int row = kTrainTile * tile + kTrainHalf * half;
    float2 x[kTrainHalf], total;
    middle_sums(gate, z, block.count - row, half == 1, x, total);
#pragma unroll
    for (int i = 0; i < kTrainHalf; ++i) {
      const float q_factor = norm_factor(0, row + i) * scale, k_factor = norm_factor(1, row + i);
      const float2 down = {exp2_approx(x[i].x), exp2_approx(x[i].y)}, up = {exp2_approx(-x[i].x), exp2_approx(-x[i].y)};
      const float2 kn = {k[i].x * k_factor, k[i].y * k_factor};
      const auto put = [&](__nv_bfloat16(&to)[kStride], float low, float high) {
        *reinterpret_cast<uint32_t*>(&to[2 * pair]) = pack_bf16(low, high);
      };
      put(s.kp[row + i], kn.x * down.x, kn.y * down.y);
      put(s.qp[row + i], q[i].x * q_factor * down.x, q[i].y * q_factor * down.y);
      put(s.km[row + i], kn.x * up.x, kn.y * up.y);
    }
    *reinterpret_cast<float2*>(&s.factor[tile][half][2 * pair]) = float2{exp2_approx(total.x), exp2_approx(total.y)};
  }

  __device__ void edges() const {  // barriers before and behind it
    if (thread >= D) return;
    float f[kTrainTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTrainTiles; ++tile) f[tile][0] = s.factor[tile][0][thread], f[tile][1] = s.factor[tile][1][thread];
#pragma unroll
    for (int i = 0; i <= kTrainTiles; ++i) {
      const float edge = (i > 0 ? f[i - 1][1] : 1.0F) * (i < kTrainTiles ? f[i][0] : 1.0F);
      s.edge[i][thread] = edge;
      if constexpr (kVjp) a.edges[slot * KdaTrainScratch<D>::kEdges + i * D + thread] = edge;
    }
  }

  __device__ void numbers(int row) {
    s.beta[row] = row < block.count ? sigmoids(beta_logit(a, block.first + row, head)).plus : 0.0F;
    if constexpr (kVjp) {
      float* to = a.row_numbers + slot * KdaTrainScratch<D>::kRowNumbers + row;
      to[0] = s.beta[row], to[kTrainRows] = norm_factor(0, row), to[2 * kTrainRows] = norm_factor(1, row);
    }
  }

  // L and P of every tile, then T = (I + L)^-1 by forward substitution in FP32, a thread a column.
  __device__ void inverses() {
    edges();
    for (int unit = warp; unit < 2 * kTrainTiles; unit += kWarps) {
      const int tile = unit % kTrainTiles;
      const bool keys = unit < kTrainTiles;
      const uint32_t left = shared_address(keys ? &s.kp[kTrainTile * tile][0] : &s.qp[kTrainTile * tile][0]);
      const uint32_t right = shared_address(&s.km[kTrainTile * tile][0]);
      float d[2][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t x[4], b[4];
        load_left(x, left, kStride, 0, 16 * k);
        load_rows(b, right, kStride, 0, 16 * k);
        mma_pair(d[0], d[1], x, b);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const int row = lane / 4 + 4 * i, column = 8 * j + 2 * (lane % 4);
          if (keys) {
            const float beta = s.beta[kTrainTile * tile + row];
            s.l[tile][row][column] = column < row ? beta * d[j][i] : 0.0F;
            s.l[tile][row][column + 1] = column + 1 < row ? beta * d[j][i + 1] : 0.0F;
          } else {
            const float low = column <= row ? d[j][i] : 0.0F, high = column + 1 <= row ? d[j][i + 1] : 0.0F;
            *reinterpret_cast<uint32_t*>(&s.p[tile][row][column]) = pack_bf16(low, high);
          }
        }
      }
    }
    __syncthreads();
    if (thread < kTrainTiles * kTrainTile) {
      const int tile = thread / kTrainTile, column = thread % kTrainTile;
      float x[kTrainTile];
#pragma unroll
      for (int r = 0; r < kTrainTile; ++r) {
        x[r] = r == column ? 1.0F : 0.0F;
#pragma unroll
        for (int i = 0; i < r; ++i) x[r] = fmaf(-s.l[tile][r][i], x[i], x[r]);
        s.t[tile][r][column] = __float2bfloat16(x[r]);
      }
    }
    __syncthreads();
  }

  // 16 values of 16 tokens of the tile, as an A operand's registers: low and high are neighbouring tokens.
  __device__ void tile_values(uint32_t (&x)[4], const __nv_bfloat16 (*rows)[kStride], int tile) const {
    load_left_turned(x, shared_address(&rows[kTrainTile * tile][0]), kStride, 16 * warp, 0);
  }
  static __device__ float value_of(const uint32_t (&x)[4], int j, int i) {
    return i % 2 == 0 ? low_bf16(x[2 * j + i / 2]) : high_bf16(x[2 * j + i / 2]);
  }
  __device__ int token_of(int j, int i) const { return 8 * j + 2 * (lane % 4) + i % 2; }

  // One tile: u (as A operand) and o. state: relative to the middle of this tile before, of the next one after it.
  __device__ void recur(float (&state)[D / 8][4], int tile, uint32_t (&u)[4], float (&o)[2][4]) const {
    const int row = kTrainTile * tile;
    float x[2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0;
    }
    read_state<D>(x, o, state, shared_address(&s.kp[row][0]), shared_address(&s.qp[row][0]));
    uint32_t v[4], b[4];
    tile_values(v, s.v, tile);
    float r[2][4], solved[2][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r[j][i] = s.beta[row + token_of(j, i)] * (value_of(v, j, i) - x[j][i]);
    }
    pack_left(u, r[0], r[1]);
    load_rows(b, shared_address(&s.t[tile][0][0]), kTrainTile, 0, 0);
    mma_pair(solved[0], solved[1], u, b);
    pack_left(u, solved[0], solved[1]);
    load_rows(b, shared_address(&s.p[tile][0][0]), kTrainTile, 0, 0);
    mma_pair(o[0], o[1], u, b);
    write_state<D>(state, u, shared_address(&s.km[row][0]));
    scale_columns<D>(state, s.edge[tile + 1]);
  }

  // Sums over all values of each token of the tile; one barrier. x: kind, then token_of.
  __device__ void totals(float (&x)[4 * kKinds], int tile, float2 (&sum)[2][2]) const {
    int index;
    const float mine = row_sums(x, index);
    auto& stats = s.stats[tile % 2];
    stats[token_of(index / 2 % 2, index % 2)][kKinds * warp + index / 4] = mine;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[j][i] = {0, 0};
        const float* from = stats[token_of(j, i)];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          sum[j][i].x += from[kKinds * w];
          if constexpr (kVjp) sum[j][i].y += from[kKinds * w + 1];
        }
      }
    }
  }

  __device__ float norm_weight(int i) const { return a.norm[16 * warp + lane / 4 + 8 * i]; }  // of the lane's values

  __device__ void outputs(int tile, const float (&o)[2][4], const float (&weight)[2]) const {
    uint32_t gate[4];
    tile_values(gate, s.gate, tile);
    float x[4 * kKinds] = {}, y[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[2 * j + i % 2] += o[j][i] * o[j][i];
    }
    float2 sum[2][2];
    totals(x, tile, sum);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = rsqrtf(sum[j][i % 2].x / D + a.eps);
        y[j][i] = o[j][i] * factor * weight[i / 2] * sigmoids(value_of(gate, j, i)).plus;
      }
    }
    uint32_t packed[4];
    pack_left(packed, y[0], y[1]);
    store_turned(const_cast<__nv_bfloat16*>(rows_of(a.y, block.first + kTrainTile * tile)) + 16 * warp, stride, packed,
                 block.count - kTrainTile * tile);
  }

  // Back through gate and norm: gradients of the gate and of o; d_norm is added to.
  __device__ void back_outputs(int tile, const float (&o)[2][4], const float (&weight)[2], float (&d_norm)[2]) const {
    uint32_t gates[4], dys[4];
    tile_values(gates, s.gate, tile);
    tile_values(dys, s.dy, tile);
    float x[4 * kKinds] = {}, d_n[2][4], d_gate[2][4], d_o[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d_n[j][i] = value_of(dys, j, i) * weight[i / 2] * sigmoids(value_of(gates, j, i)).plus;
        x[2 * j + i % 2] += o[j][i] * o[j][i];
        x[4 + 2 * j + i % 2] += o[j][i] * d_n[j][i];
      }
    }
    float2 sum[2][2];
    totals(x, tile, sum);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = rsqrtf(sum[j][i % 2].x / D + a.eps), n = o[j][i] * factor;
        const Sigmoids gate = sigmoids(value_of(gates, j, i));
        d_gate[j][i] = n * d_n[j][i] * gate.minus;
        d_norm[i / 2] += value_of(dys, j, i) * n * gate.plus;
        d_o[j][i] = factor * (d_n[j][i] - n * factor * sum[j][i % 2].y / D);
      }
    }
    uint32_t packed[4];
    pack_left(packed, d_gate[0], d_gate[1]);
    store_turned(static_cast<__nv_bfloat16*>(a.dgate) + (block.first + kTrainTile * tile) * stride + head * D + 16 * warp, stride, packed,
                 block.count - kTrainTile * tile);
    pack_left(packed, d_o[0], d_o[1]);
    store_turned(scratch(a.d_o) + kTrainTile * tile * D + 16 * warp, D, packed, kTrainTile);
  }

  __device__ __nv_bfloat16* scratch(void* x) const { return static_cast<__nv_bfloat16*>(x) + slot * KdaTrainScratch<D>::kTile; }

  // What the next kernels read of this one.
  __device__ void keep_operands() const {
    for (int i = thread; i < kTrainRows * D / 8; i += kThreads) {
      const int row = i / (D / 8), column = i % (D / 8) * 8;
      *reinterpret_cast<uint4*>(scratch(a.kp) + 8 * i) = *reinterpret_cast<const uint4*>(&s.kp[row][column]);
      *reinterpret_cast<uint4*>(scratch(a.qp) + 8 * i) = *reinterpret_cast<const uint4*>(&s.qp[row][column]);
      *reinterpret_cast<uint4*>(scratch(a.km) + 8 * i) = *reinterpret_cast<const uint4*>(&s.km[row][column]);
    }
    constexpr int kSmall = KdaTrainScratch<D>::kSmall;
    for (int i = thread; i < kSmall / 8; i += kThreads) {
      reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.p) + slot * kSmall)[i] = reinterpret_cast<const uint4*>(&s.p[0][0][0])[i];
      reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.t) + slot * kSmall)[i] = reinterpret_cast<const uint4*>(&s.t[0][0][0])[i];
    }
  }
};

}  // namespace k3::ops::cuda
