// One AttnRes site. `small`: several blocks (a cluster) a token, every row in registers, two exchanges through distributed
// shared memory. `large`: persistent blocks, one warp fills a ring of rows by bulk copies while the others hold the token
// before in registers. `any`: any number of rows, read twice.
#include <cmath>
#include <utility>

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"

namespace k3::ops::cuda {
namespace {

constexpr float kLog2E = 1.44269504F;
constexpr int kMostRows = 9;
constexpr int kMostPartials = 72;
constexpr int kLargeThreads = 480, kLargeWarps = 14, kFewThreads = 256;

__device__ __forceinline__ const char* bytes(const void* p) { return static_cast<const char*>(p); }
__device__ __forceinline__ const void* row_of(const void* p, int64_t stride, int64_t row, int64_t at = 0) {
  return bytes(p) + 2 * (stride * row + at);
}
__device__ __forceinline__ void store_row(void* p, int64_t stride, int64_t row, int64_t at, const uint4& x) {
  *reinterpret_cast<uint4*>(static_cast<char*>(p) + 2 * (stride * row + at)) = x;
}
__device__ __forceinline__ bool has_prefix(const AttnResSite& s) { return s.prefix != nullptr || s.delta != nullptr; }

__device__ __forceinline__ void load_floats(const float* p, float (&out)[8]) {
  const float4 a = __ldg(reinterpret_cast<const float4*>(p)), b = __ldg(reinterpret_cast<const float4*>(p) + 1);
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
__device__ __forceinline__ void load_norm(const AttnResSite& s, int64_t at, float (&out)[8]) {
  if (s.norm_bf16) {
    unpack8(__ldg(reinterpret_cast<const uint4*>(row_of(s.norm, 0, 0, at))), out);
  } else {
    load_floats(static_cast<const float*>(s.norm) + at, out);
  }
}

// (dot with the query, sum of squares) of eight values, added; `low`: of a sum in two rows.
__device__ __forceinline__ void score8(const float (&x)[8], const float (&query)[8], float& dot, float& squares) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    dot = fmaf(x[i], query[i], dot);
    squares = fmaf(x[i], x[i], squares);
  }
}
__device__ __forceinline__ void score8(const uint4& row, const float (&query)[8], float& dot, float& squares) {
  float x[8];
  unpack8(row, x);
  score8(x, query, dot, squares);
}
__device__ __forceinline__ void score8(const uint4& row, const uint4& low, const float (&query)[8], float& dot, float& squares) {
  float x[8];
  unpack_split8(row, low, x);
  score8(x, query, dot, squares);
}
__device__ __forceinline__ void mix8(const float (&x)[8], float weight, float (&h)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) h[i] = fmaf(weight, x[i], h[i]);
}
__device__ __forceinline__ void mix8(const uint4& row, float weight, float (&h)[8]) {
  float x[8];
  unpack8(row, x);
  mix8(x, weight, h);
}
__device__ __forceinline__ void mix8(const uint4& row, const uint4& low, float weight, float (&h)[8]) {
  float x[8];
  unpack_split8(row, low, x);
  mix8(x, weight, h);
}
// P, once it is there, to where it is wanted.
__device__ __forceinline__ void store_sum(const AttnResSite& s, int64_t token, int64_t at, const uint4& high, const uint4& low) {
  if (s.prefix_out != nullptr) store_row(s.prefix_out, s.prefix_out_stride, token, at, high);
  if (s.rest_out != nullptr) store_row(s.rest_out, s.rest_stride, token, at, low);
  if (s.bank_out != nullptr) store_row(s.bank_out, s.bank_out_stride, token, at, high);
}
__device__ __forceinline__ float sum_squares8(const float (&h)[8], float sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(h[i], h[i], sum);
  return sum;
}
// What comes of the mix, and what rounding cuts off that.
__device__ __forceinline__ void store_out(const AttnResSite& s, int64_t token, int64_t at, float (&y)[8]) {
  const uint4 out = pack8(y);
  store_row(s.out, s.out_stride, token, at, out);
  if (s.out_rest == nullptr) return;
  float rounded[8];
  unpack8(out, rounded);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] -= rounded[i];
  store_row(s.out_rest, s.out_stride, token, at, pack8(y));
}
__device__ __forceinline__ void store_normed(const AttnResSite& s, int64_t token, int64_t at, const float (&h)[8], float factor,
                                             const float (&weight)[8]) {
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = h[i] * factor * weight[i];
  store_out(s, token, at, y);
}

// The score of source r in lane r (mine: r < kRows) becomes the weights of the mix, in all lanes.
template <int kRows>
__device__ __forceinline__ void weights_of(const AttnResSite& s, int64_t token, float score, float (&weight)[kRows]) {
  const int lane = threadIdx.x & 31;
  const bool mine = lane < kRows;
  float mass = 1;
  if (s.inter_max != nullptr && lane == 0) {
    score = s.inter_max[token];
    mass = s.inter_sum[token];
  }
  const float top = warp_max(mine ? score : -INFINITY);
  const float e = mine ? exp2_approx((score - top) * kLog2E) : 0;
  const float a = e / warp_sum(e * mass);
#pragma unroll
  for (int r = 0; r < kRows; ++r) weight[r] = __shfl_sync(0xFFFFFFFFU, a, r);
}
__device__ __forceinline__ float score_of(const AttnResSite& s, float dot, float squares) {
  return dot * rsqrtf(squares / static_cast<float>(s.hidden) + s.eps);
}

// Sums over a cluster: every warp sends its partial sums to every block, whose barrier counts the bytes; nobody waits longer
// than for what it needs. Three exchanges: the bank's rows (before the delta is there), P, the norm; where nothing comes
// late, bank and P are one. A block alone uses its own barrier.
struct SmallShared {
  float bank[kMostPartials][2 * kMostRows];  // (dot, squares) of the first exchange's rows
  float2 prefix[kMostPartials];
  float norm[kMostPartials];
  uint64_t bars[3];
};

// kEarly: the kernel right before may still run, and only it makes delta.
template <int kRows, int kThreads, bool kEarly>
__global__ void __launch_bounds__(kThreads, 1) site_small(const __grid_constant__ AttnResSite s, int cluster) {
  __shared__ SmallShared shared;
  const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
  const int rank = cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int slot = rank * warps + threadIdx.x / 32, slots = cluster * warps;
  const int64_t token = blockIdx.x / cluster;
  const int64_t at = 8 * (static_cast<int64_t>(rank) * blockDim.x + threadIdx.x);
  const bool active = at < s.hidden, with_prefix = has_prefix(s);
  constexpr int kLast = kRows - 1, kFirst = kEarly ? kLast : kRows;  // rows of the first exchange
  uint4 x[kRows] = {};
  uint4 delta = {}, low = {};  // low: of the last row
  float query[8] = {}, norm[8] = {};
  pdl_release();  // what follows reads weights, and waits before it reads more
  if (active) {  // none of this was written by the kernel right before
#pragma unroll
    for (int r = 0; r < kLast; ++r) x[r] = load_once(row_of(s.bank, s.bank_block_stride, r, s.bank_stride * token + at));
    if (!with_prefix) {
      x[kLast] = load_once(row_of(s.bank, s.bank_block_stride, kLast, s.bank_stride * token + at));
    } else if (s.prefix != nullptr) {
      x[kLast] = *static_cast<const uint4*>(row_of(s.prefix, s.prefix_stride, token, at));
      if (s.rest != nullptr) low = *static_cast<const uint4*>(row_of(s.rest, s.rest_stride, token, at));
    }
    if (!kEarly && s.delta != nullptr) delta = *static_cast<const uint4*>(row_of(s.delta, s.delta_stride, token, at));
    load_floats(s.query + at, query);
    if (s.norm != nullptr) load_norm(s, at, norm);
  }
  const uint32_t bars = shared_address(shared.bars);
  if (threadIdx.x == 0) {
    const uint32_t sent[3] = {static_cast<uint32_t>(slots) * 8 * kFirst, static_cast<uint32_t>(slots) * 8,
                              static_cast<uint32_t>(slots) * 4};
    for (int i = 0; i < 3; ++i) mbar_init(bars + 8 * i, 1);
    mbar_init_fence();
    for (int i = 0; i < 3; ++i) mbar_expect(bars + 8 * i, sent[i]);
  }
  __syncthreads();
  if (cluster > 1) cluster_arrive();  // nobody sends to a block that has not begun
  const auto take_delta = [&] {
    pdl_wait();
    if (!with_prefix || !active) return;
    if (s.delta != nullptr) {
      if (kEarly) delta = *static_cast<const uint4*>(row_of(s.delta, s.delta_stride, token, at));
      add_split8(x[kLast], low, delta, s.rest_out != nullptr);  // without a prefix: zeros
    }
    store_sum(s, token, at, x[kLast], low);
  };
  if constexpr (!kEarly) take_delta();
  // The mix over the first rows, with weights e^(score - top): kEarly, all of it but the last source is known before delta.
  float top = -INFINITY, mass = 0, h[8] = {};
  if constexpr (kFirst > 0) {
    float v[2 * kFirst] = {};
#pragma unroll
    for (int r = 0; r < kFirst; ++r) {
      if (r == kLast) {
        score8(x[r], low, query, v[r], v[kFirst + r]);
      } else {
        score8(x[r], query, v[r], v[kFirst + r]);
      }
    }
    const float sum = warp_sums(v);
    if (cluster > 1) cluster_wait();
    if (cluster == 1) {
      if (lane < 2 * kFirst) shared.bank[slot][lane] = sum;
      __syncthreads();
    } else {
      if (lane < 2 * kFirst) {
        const uint32_t to = shared_address(&shared.bank[slot][lane]);
        for (int c = 0; c < cluster; ++c) cluster_send(cluster_map(to, c), cluster_map(bars, c), sum);
      }
      mbar_wait(bars, 0);
    }
    float dot = 0, squares = 0, score = -INFINITY, of_lane = 1;  // of source `lane`
    if (lane < kFirst) {
#pragma unroll 8
      for (int i = 0; i < slots; ++i) dot += shared.bank[i][lane], squares += shared.bank[i][kFirst + lane];
      score = score_of(s, dot, squares);
    }
    if (s.inter_max != nullptr && lane == 0) score = s.inter_max[token], of_lane = s.inter_sum[token];
    top = warp_max(score);
    const float e = exp2_approx((score - top) * kLog2E);
    mass = warp_sum(e * of_lane);
    const float scale = kEarly ? e : e / mass;
#pragma unroll
    for (int r = 0; r < kFirst; ++r) {
      const float weight = __shfl_sync(0xFFFFFFFFU, scale, r);
      if (r == kLast) {
        mix8(x[r], low, weight, h);
      } else {
        mix8(x[r], weight, h);
      }
    }
  } else if (cluster > 1) {
    cluster_wait();
  }

  if constexpr (kEarly) {
    take_delta();
    float last_dot = 0, last_squares = 0;
    score8(x[kLast], low, query, last_dot, last_squares);
    last_dot = warp_sum(last_dot), last_squares = warp_sum(last_squares);
    if (cluster == 1) {
      if (lane == 0) shared.prefix[slot] = {last_dot, last_squares};
      __syncthreads();
    } else {
      if (lane < cluster) {
        cluster_send(cluster_map(shared_address(&shared.prefix[slot]), lane), cluster_map(bars + 8, lane), last_dot,
                     last_squares);
      }
      mbar_wait(bars + 8, 0);
    }
    last_dot = 0, last_squares = 0;
    for (int i = lane; i < slots; i += 32) last_dot += shared.prefix[i].x, last_squares += shared.prefix[i].y;
    last_dot = warp_sum(last_dot), last_squares = warp_sum(last_squares);
    float last_score = score_of(s, last_dot, last_squares), last_mass = 1;
    if (kLast == 0 && s.inter_max != nullptr) last_score = s.inter_max[token], last_mass = s.inter_sum[token];
    const float most = fmaxf(top, last_score);
    const float bank_e = exp2_approx((top - most) * kLog2E), last_e = exp2_approx((last_score - most) * kLog2E);
    const float inverse = 1 / (bank_e * mass + last_e * last_mass);
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] *= bank_e * inverse;
    mix8(x[kLast], low, last_e * inverse, h);
  }
  if (s.norm == nullptr) {
    if (active) store_out(s, token, at, h);
    return;
  }
  const float partial = warp_sum(sum_squares8(h, 0));
  if (cluster == 1) {
    if (lane == 0) shared.norm[slot] = partial;
    __syncthreads();
  } else {
    if (lane < cluster)
      cluster_send(cluster_map(shared_address(&shared.norm[slot]), lane), cluster_map(bars + 16, lane), partial);
    mbar_wait(bars + 16, 0);
  }
  float sum = 0;
  for (int i = lane; i < slots; i += 32) sum += shared.norm[i];
  sum = warp_sum(sum);
  const float factor = rsqrtf(sum / static_cast<float>(s.hidden) + s.norm_eps);
  if (active) store_normed(s, token, at, h, factor, norm);
}

template <int kRows>
__global__ void __launch_bounds__(kLargeThreads, 1) site_large(const __grid_constant__ AttnResSite s, int slots) {
  K3_SHARED_BYTES(shared, 128);
  __shared__ float part[2][kLargeWarps][2 * kMostRows], norms[2][16];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid / 32, consumers = blockDim.x - 32, warps = consumers / 32;
  const int row_bytes = static_cast<int>(s.hidden) * 2, vectors = static_cast<int>(s.hidden) / 8;
  const uint32_t row_base = shared_address(shared), full = row_base + slots * row_bytes, empty = full + 8 * slots;
  const bool with_prefix = has_prefix(s), two = s.prefix != nullptr && s.delta != nullptr;  // rows of P beside `rest`
  if (tid == 0) {
    for (int i = 0; i < slots; ++i) {
      mbar_init(full + 8 * i, 1);
      mbar_init(empty + 8 * i, warps);
    }
    mbar_init_fence();
  }
  __syncthreads();
  int slot = 0;
  uint32_t phase = 0;
  const auto next = [&] {
    if (++slot == slots) slot = 0, phase ^= 1;
  };

  if (warp == warps) {
    if (lane != 0) return;
    const auto load = [&](const void* row) {
      mbar_wait(empty + 8 * slot, phase ^ 1);
      mbar_expect(full + 8 * slot, row_bytes);
      bulk_load(row_base + slot * row_bytes, row, row_bytes, full + 8 * slot);
      next();
    };
    for (int64_t token = blockIdx.x; token < s.tokens; token += gridDim.x) {
      for (int r = 0; r < s.blocks; ++r) load(row_of(s.bank, s.bank_block_stride, r, s.bank_stride * token));
      pdl_wait();  // the bank was not written by the kernel right before
      pdl_release();
      if (s.prefix != nullptr) load(row_of(s.prefix, s.prefix_stride, token));
      if (s.rest != nullptr) load(row_of(s.rest, s.rest_stride, token));
      if (s.delta != nullptr) load(row_of(s.delta, s.delta_stride, token));
    }
    return;
  }

  const int vector[2] = {tid, tid + consumers};
  float query[2][8] = {}, norm[2][8] = {};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (vector[c] >= vectors) continue;
    load_floats(s.query + 8 * vector[c], query[c]);
    if (s.norm != nullptr) load_norm(s, 8 * vector[c], norm[c]);
  }
  const auto read = [&](int from, uint4(&x)[2]) {
    const uint4* row = reinterpret_cast<const uint4*>(shared + from * row_bytes);
#pragma unroll
    for (int c = 0; c < 2; ++c) x[c] = vector[c] < vectors ? row[vector[c]] : uint4{};
  };
  const auto release = [&](int which) {
    __syncwarp();
    if (lane == 0) mbar_arrive(empty + 8 * which);
  };
  const auto read_next = [&](uint4(&x)[2]) {
    mbar_wait(full + 8 * slot, phase);
    read(slot, x);
    release(slot);
    next();
  };
  pdl_release();  // in effect when the loading thread, too, has come so far
  constexpr int kLast = kRows - 1;
  int parity = 0;
  for (int64_t token = blockIdx.x; token < s.tokens; token += gridDim.x, parity ^= 1) {
    // Bank rows stay in the ring until they are mixed; the last source (P, or the last bank row) moves to registers.
    const int first = slot;
    float v[2 * kRows] = {};
    uint4 last[2], low[2] = {};
#pragma unroll
    for (int r = 0; r < kLast; ++r) {
      uint4 x[2];
      mbar_wait(full + 8 * slot, phase);
      read(slot, x);
      next();
#pragma unroll
      for (int c = 0; c < 2; ++c) score8(x[c], query[c], v[r], v[kRows + r]);
    }
    read_next(last);
    pdl_wait();
    if (with_prefix) {
      if (s.rest != nullptr) read_next(low);
      if (two) {
        uint4 delta[2];
        read_next(delta);
#pragma unroll
        for (int c = 0; c < 2; ++c) add_split8(last[c], low[c], delta[c], s.rest_out != nullptr);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (vector[c] < vectors) store_sum(s, token, 8 * vector[c], last[c], low[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) score8(last[c], low[c], query[c], v[kLast], v[kRows + kLast]);
    const float sum_of_warp = warp_sums(v);
    if (lane < 2 * kRows) part[parity][warp][lane] = sum_of_warp;
    named_barrier(1, consumers);
    float total = 0;
#pragma unroll
    for (int w = 0; w < kLargeWarps; ++w) total += w < warps && lane < 2 * kRows ? part[parity][w][lane] : 0;
    float weight[kRows];
    const float total_squares = __shfl_down_sync(0xFFFFFFFFU, total, kRows);
    weights_of<kRows>(s, token, score_of(s, total, total_squares), weight);
    float h[2][8] = {};
    int from = first;
#pragma unroll
    for (int r = 0; r < kLast; ++r) {
      uint4 x[2];
      read(from, x);
      release(from);
      if (++from == slots) from = 0;
      mix8(x[0], weight[r], h[0]);
      mix8(x[1], weight[r], h[1]);
    }
    mix8(last[0], low[0], weight[kLast], h[0]);
    mix8(last[1], low[1], weight[kLast], h[1]);
    if (s.norm != nullptr) {
      const float squares = warp_sum(sum_squares8(h[1], sum_squares8(h[0], 0)));
      if (lane == 0) norms[parity][warp] = squares;
      named_barrier(1, consumers);
      const float sum = warp_sum(lane < warps ? norms[parity][lane] : 0);
      const float factor = rsqrtf(sum / static_cast<float>(s.hidden) + s.norm_eps);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (vector[c] < vectors) store_normed(s, token, 8 * vector[c], h[c], factor, norm[c]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (vector[c] < vectors) store_out(s, token, 8 * vector[c], h[c]);
      }
    }
  }
}

// One or two sources and many tokens: a block a token, several blocks a multiprocessor, rows in registers as BF16.
template <int kRows>
__global__ void __launch_bounds__(kFewThreads, kRows == 1 ? 4 : 3) site_few(const __grid_constant__ AttnResSite s) {
  constexpr int kVectors = 4, kWarps = kFewThreads / 32;
  __shared__ float part[kWarps][2 * kRows], norms[kWarps];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid / 32, warps = blockDim.x / 32;
  const int vectors = static_cast<int>(s.hidden) / 8;
  const int64_t token = blockIdx.x;
  const bool with_prefix = has_prefix(s);
  uint4 x[kRows][kVectors] = {}, delta[kVectors] = {}, low[kVectors] = {};  // low: of the last row
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int c = 0; c < kVectors; ++c) {
      const int64_t at = tid + c * static_cast<int>(blockDim.x);
      if (at < vectors) take(c, 8 * at);
    }
  };
  dependent_begin();
  each([&](int c, int64_t at) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r == kRows - 1 && with_prefix) continue;
      x[r][c] = load_once(row_of(s.bank, s.bank_block_stride, r, s.bank_stride * token + at));
    }
    if (s.prefix != nullptr) x[kRows - 1][c] = *static_cast<const uint4*>(row_of(s.prefix, s.prefix_stride, token, at));
    if (s.rest != nullptr) low[c] = *static_cast<const uint4*>(row_of(s.rest, s.rest_stride, token, at));
    if (s.delta != nullptr) delta[c] = *static_cast<const uint4*>(row_of(s.delta, s.delta_stride, token, at));
  });
  const auto row_values = [&](int r, int c, float(&out)[8]) {
    if (r == kRows - 1) {
      unpack_split8(x[r][c], low[c], out);
    } else {
      unpack8(x[r][c], out);
    }
  };
  float v[2 * kRows] = {};
  each([&](int c, int64_t at) {
    if (with_prefix) {
      if (s.delta != nullptr) add_split8(x[kRows - 1][c], low[c], delta[c], s.rest_out != nullptr);  // without a prefix: zeros
      store_sum(s, token, at, x[kRows - 1][c], low[c]);
    }
    float query[8];
    load_floats(s.query + at, query);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float y[8];
      row_values(r, c, y);
      score8(y, query, v[r], v[kRows + r]);
    }
  });
  const float sum_of_warp = warp_sums(v);
  if (lane < 2 * kRows) part[warp][lane] = sum_of_warp;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < warps; ++w) total += lane < 2 * kRows ? part[w][lane] : 0;
  const float total_squares = __shfl_down_sync(0xFFFFFFFFU, total, kRows);
  float weight[kRows];
  weights_of<kRows>(s, token, score_of(s, total, total_squares), weight);
  const auto mixed = [&](int c, float(&h)[8]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float y[8];
      row_values(r, c, y);
      mix8(y, weight[r], h);
    }
  };
  float squares = 0, factor = 1;
  if (s.norm != nullptr) {
    each([&](int c, int64_t) {
      float h[8] = {};
      mixed(c, h);
      squares = sum_squares8(h, squares);
    });
    squares = warp_sum(squares);
    if (lane == 0) norms[warp] = squares;
    __syncthreads();
    const float sum = warp_sum(lane < warps ? norms[lane] : 0);
    factor = rsqrtf(sum / static_cast<float>(s.hidden) + s.norm_eps);
  }
  each([&](int c, int64_t at) {
    float h[8] = {}, norm[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    mixed(c, h);
    if (s.norm != nullptr) load_norm(s, at, norm);
    store_normed(s, token, at, h, factor, norm);
  });
}

__global__ void __launch_bounds__(512) site_any(const __grid_constant__ AttnResSite s) {
  K3_SHARED_BYTES(shared, 128);
  __shared__ float norms[16];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid / 32, warps = blockDim.x / 32;
  const int vectors = static_cast<int>(s.hidden) / 8, sources = s.blocks + (has_prefix(s) ? 1 : 0);
  const int64_t token = blockIdx.x;
  uint4 *prefix = reinterpret_cast<uint4*>(shared), *rest = prefix + vectors;
  float2* part = reinterpret_cast<float2*>(shared + 4 * s.hidden);  // [warps + 1][sources]; the last row: weights
  float2* weights = part + warps * sources;
  pdl_wait();
  pdl_release();
  if (has_prefix(s)) {
    for (int i = tid; i < vectors; i += blockDim.x) {
      uint4 p = {}, low = {};
      if (s.prefix != nullptr) p = *static_cast<const uint4*>(row_of(s.prefix, s.prefix_stride, token, 8 * i));
      if (s.rest != nullptr) low = *static_cast<const uint4*>(row_of(s.rest, s.rest_stride, token, 8 * i));
      if (s.delta != nullptr) {
        add_split8(p, low, *static_cast<const uint4*>(row_of(s.delta, s.delta_stride, token, 8 * i)), s.rest_out != nullptr);
      }
      prefix[i] = p, rest[i] = low;
      store_sum(s, token, 8 * i, p, low);
    }
  }
  const auto value = [&](int r, int i) {  // a thread reads the part of the prefix that it wrote
    return r == s.blocks
               ? prefix[i]
               : __ldg(static_cast<const uint4*>(row_of(s.bank, s.bank_block_stride, r, s.bank_stride * token + 8 * i)));
  };
  const auto low_of = [&](int r, int i) { return r == s.blocks ? rest[i] : uint4{}; };
  for (int r = 0; r < sources; ++r) {
    float v[2] = {};
    for (int i = tid; i < vectors; i += blockDim.x) {
      float query[8];
      load_floats(s.query + 8 * i, query);
      score8(value(r, i), low_of(r, i), query, v[0], v[1]);
    }
    const float dot = warp_sum(v[0]), squares = warp_sum(v[1]);
    if (lane == 0) part[warp * sources + r] = {dot, squares};
  }
  __syncthreads();
  if (warp == 0) {
    float top = -INFINITY, mass = 0;
    for (int r = lane; r < sources; r += 32) {
      float dot = 0, squares = 0;
      for (int w = 0; w < warps; ++w) dot += part[w * sources + r].x, squares += part[w * sources + r].y;
      const float score = dot * rsqrtf(squares / static_cast<float>(s.hidden) + s.eps);
      weights[r].x = score;
      top = fmaxf(top, score);
    }
    top = warp_max(top);
    for (int r = lane; r < sources; r += 32) {
      const float e = exp2_approx((weights[r].x - top) * kLog2E);
      weights[r].x = e;
      mass += e;
    }
    mass = warp_sum(mass);
    for (int r = lane; r < sources; r += 32) weights[r].x /= mass;
  }
  __syncthreads();
  float squares = 0;
  const auto mixed = [&](int i, float(&h)[8]) {
    for (int r = 0; r < sources; ++r) mix8(value(r, i), low_of(r, i), weights[r].x, h);
  };
  for (int i = tid; i < vectors; i += blockDim.x) {
    float h[8] = {};
    mixed(i, h);
    squares = sum_squares8(h, squares);
    if (s.norm == nullptr) store_out(s, token, 8 * i, h);
  }
  if (s.norm == nullptr) return;
  squares = warp_sum(squares);
  if (lane == 0) norms[warp] = squares;
  __syncthreads();
  const float factor = rsqrtf(warp_sum(lane < warps ? norms[lane] : 0) / static_cast<float>(s.hidden) + s.norm_eps);
  for (int i = tid; i < vectors; i += blockDim.x) {
    float h[8] = {}, norm[8];
    mixed(i, h);
    load_norm(s, 8 * i, norm);
    store_normed(s, token, 8 * i, h, factor, norm);
  }
}

using SiteKernel = void (*)(AttnResSite, int);
template <int kRows>
SiteKernel pick_rows(const AttnResPlan& plan, bool dependent) {
  if (plan.kernel == AttnResKernel::large) return site_large<kRows>;
  if (dependent) return plan.threads > 448 ? site_small<kRows, 896, true> : site_small<kRows, 448, true>;  // registers
  return plan.threads > 448 ? site_small<kRows, 896, false> : site_small<kRows, 448, false>;
}
template <int... kRows>
SiteKernel pick(const AttnResPlan& plan, int rows, bool dependent, std::integer_sequence<int, kRows...>) {
  SiteKernel out = nullptr;
  ((kRows + 1 == rows ? out = pick_rows<kRows + 1>(plan, dependent) : out), ...);
  return out;
}

}  // namespace

int attn_res_site_launch(const AttnResSite& site, const AttnResPlan& plan, void* stream) {
  const int sources = site.blocks + (site.prefix != nullptr || site.delta != nullptr ? 1 : 0);
  LaunchOptions options{.grid = dim3(plan.grid), .block = dim3(plan.threads), .shared_bytes = plan.shared_bytes};
  options.cluster = plan.cluster;
  options.dependent = site.dependent;
  auto* s = static_cast<cudaStream_t>(stream);
  if (plan.kernel == AttnResKernel::any) return launch(site_any, options, s, site);
  if (plan.kernel == AttnResKernel::few) return launch(sources == 1 ? site_few<1> : site_few<2>, options, s, site);
  SiteKernel kernel = pick(plan, sources, site.dependent, std::make_integer_sequence<int, kMostRows>());
  return launch(kernel, options, s, site, plan.kernel == AttnResKernel::small ? plan.cluster : plan.slots);
}

}  // namespace k3::ops::cuda
