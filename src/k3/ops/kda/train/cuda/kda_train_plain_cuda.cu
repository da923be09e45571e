// kda_train for sizes, gates and GPUs that the fast kernels do not have: token after token in FP32, to be right rather than fast.
// A thread block takes (sequence, head) pairs in turn; thread i is channel i of the convolutions, key i and value i of the state. The vjp
// walks through blocks of 64 tokens from the last: forward once more from the kept state, every state to scratch, then in reverse.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/train/cuda/kda_train_plain.h"

namespace k3::ops::cuda {
namespace {

constexpr int kMost = kTrainPlainDim, kWarps = kMost / 32;

__device__ __forceinline__ float bf16_at(const void* x, int64_t i) { return __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i]); }
__device__ __forceinline__ void put_bf16(void* x, int64_t i, float value) { static_cast<__nv_bfloat16*>(x)[i] = __float2bfloat16(value); }
__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }

struct Shared {
  float q[kMost], k[kMost], decay[kMost], d_o[kMost], du[kMost], delta[kMost];
  float sums[kWarps];
};

struct Token {  // this thread's channel of one token
  float pre[3], act[3];  // before SiLU and after it
  float q_factor, k_factor, x, decay, beta;
};

struct Plain {
  const KdaTrainCudaArgs& a;
  const KdaTrainPlainSizes& n;
  Shared& s;
  float* state;  // [dim, dim + 1] shared: rows are values
  int i, sequence, head, begin, length;
  bool mine;
  int64_t place;  // of the state in [sequences, heads, D, D]

  __device__ void choose(int task) {
    sequence = task / a.heads, head = task % a.heads;
    begin = a.offsets[sequence], length = a.offsets[sequence + 1] - begin;
    place = (static_cast<int64_t>(sequence) * a.heads + head) * n.dim * n.dim;
  }
  __device__ int64_t at(int t) const { return ((static_cast<int64_t>(begin) + t) * a.heads + head) * n.dim + i; }
  __device__ float* kept(int block) const {
    const int64_t row = begin / kTrainRows + sequence + block;
    return static_cast<float*>(a.kept) + (row * a.heads + head) * n.dim * n.dim;
  }
  __device__ float& cell(int v, int k) const { return state[v * (n.dim + 1) + k]; }

  __device__ float block_sum(float x) const {
    x = warp_sum(x);
    __syncthreads();
    if (i % 32 == 0) s.sums[i / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += s.sums[w];
    return sum;
  }
  __device__ void load(const float* from) const {  // null: zeros; a barrier behind it
    for (int v = 0; mine && v < n.dim; ++v) cell(v, i) = from == nullptr ? 0.0F : from[v * n.dim + i];
    __syncthreads();
  }
  __device__ void store(float* to) const {
    __syncthreads();
    for (int v = 0; mine && v < n.dim; ++v) to[v * n.dim + i] = cell(v, i);
  }

  // Everything in front of the recurrence; keys, queries and decays to shared memory, with a barrier behind them.
  __device__ Token inputs(int t) const {
    Token c{};
    for (int part = 0; part < 3; ++part) {
      float sum = 0;
      for (int tap = 0; mine && tap < n.taps; ++tap) {
        const int from = t - (n.taps - 1) + tap;
        if (from >= 0) sum += a.taps[part][(head * n.dim + i) * n.taps + tap] * bf16_at(a.in[part], at(from));
      }
      c.pre[part] = fmaxf(sum, -104.0F);
      c.act[part] = mine ? c.pre[part] * sigmoid(c.pre[part]) : 0.0F;
    }
    c.q_factor = rsqrtf(block_sum(c.act[0] * c.act[0]) + 1e-6F);
    c.k_factor = rsqrtf(block_sum(c.act[1] * c.act[1]) + 1e-6F);
    const float rate = expf(a.a_log[head]);
    c.x = mine ? bf16_at(a.z, at(t)) + a.dt_bias[head * n.dim + i] : 0.0F;
    c.decay = n.bounded != 0 ? a.lower_bound * sigmoid(rate * c.x) : -rate * softplus(c.x);
    const int64_t b = (static_cast<int64_t>(begin) + t) * a.heads + head;
    c.beta = sigmoid(a.b_f32 != 0 ? static_cast<const float*>(a.b)[b] : bf16_at(a.b, b));
    if (mine) {
      s.q[i] = c.act[0] * c.q_factor * rsqrtf(static_cast<float>(n.dim));
      s.k[i] = c.act[1] * c.k_factor;
      s.decay[i] = expf(c.decay);
    }
    __syncthreads();
    return c;
  }

  // The state after the token; this thread's o, and v - S^T k. A barrier behind it.
  __device__ float step(const Token& c, float& delta) const {
    float read = 0, o = 0;
    if (mine) {
      for (int k = 0; k < n.dim; ++k) cell(i, k) *= s.decay[k], read = fmaf(cell(i, k), s.k[k], read);
      delta = c.act[2] - read;
      for (int k = 0; k < n.dim; ++k) cell(i, k) = fmaf(c.beta * delta, s.k[k], cell(i, k)), o = fmaf(cell(i, k), s.q[k], o);
    }
    __syncthreads();
    return o;
  }
  __device__ float out_factor(float o) const { return rsqrtf(block_sum(mine ? o * o : 0.0F) / static_cast<float>(n.dim) + a.eps); }

  __device__ void forward() const {
    load(a.initial == nullptr ? nullptr : a.initial + place);
    for (int t = 0; t < length; ++t) {
      if (a.keep != 0 && t % kTrainRows == 0) store(kept(t / kTrainRows));
      const Token c = inputs(t);
      float delta = 0;
      const float o = step(c, delta), factor = out_factor(o);
      if (mine) put_bf16(a.y, at(t), o * factor * a.norm[i] * sigmoid(bf16_at(a.gate, at(t))));
    }
    if (a.final != nullptr) store(a.final + place);
  }

  // Sums over the tokens of a (sequence, head), this thread's channel.
  struct Sums {
    float taps[3][kTrainPlainTaps], bias, decay, norm;
  };
  struct Window {  // gradients of the convolutions of a token and the ones after it
    float d[3][kTrainPlainTaps];
  };

  // States before each token of a block and after the last; o and v - S^T k of each: [64, 2, dim].
  __device__ void recompute(int first, int count, float* states, float* rows) const {
    load(kept(first / kTrainRows));
    for (int r = 0; r < count; ++r) {
      store(states + static_cast<int64_t>(r) * n.dim * n.dim);
      const Token c = inputs(first + r);
      float delta = 0;
      const float o = step(c, delta);
      if (mine) rows[(2 * r) * n.dim + i] = o, rows[(2 * r + 1) * n.dim + i] = delta;
    }
    store(states + static_cast<int64_t>(count) * n.dim * n.dim);
    __syncthreads();
  }

  __device__ float output_back(int t, float o, Sums& sums) const {  // gradient of o
    const float factor = out_factor(o), n_o = o * factor;
    float d_n = 0;
    if (mine) {
      const float dy = bf16_at(a.dy, at(t)), x = bf16_at(a.gate, at(t)), g = sigmoid(x);
      d_n = dy * a.norm[i] * g;
      sums.norm += dy * n_o * g;
      put_bf16(a.dgate, at(t), n_o * d_n * sigmoid(-x));
    }
    const float mean = block_sum(n_o * d_n) / static_cast<float>(n.dim);
    return factor * (d_n - n_o * mean);
  }

  // One token in reverse. `before`, `after`: states; state (shared) is the gradient.
  __device__ void back(int t, const float* before, const float* after, const float* rows, Sums& sums, Window& w) const {
    const Token c = inputs(t);
    const float d_o = output_back(t, mine ? rows[i] : 0.0F, sums), delta = mine ? rows[n.dim + i] : 0.0F;
    if (mine) s.d_o[i] = d_o, s.delta[i] = delta;
    __syncthreads();
    float d_q = 0, d_k = 0, d_g = 0, du = 0;
    if (mine) {
      for (int v = 0; v < n.dim; ++v) {
        d_q = fmaf(s.d_o[v], after[v * n.dim + i], d_q);
        cell(v, i) = fmaf(s.d_o[v], s.q[i], cell(v, i));
      }
    }
    __syncthreads();
    if (mine) {
      for (int k = 0; k < n.dim; ++k) du = fmaf(cell(i, k), s.k[k], du);
      s.du[i] = du;
    }
    const float d_beta = block_sum(du * delta);
    if (mine) {
      for (int v = 0; v < n.dim; ++v) {
        const float decayed = before[v * n.dim + i] * s.decay[i], d_delta = c.beta * s.du[v];
        d_k += c.beta * s.delta[v] * cell(v, i) - d_delta * decayed;
        const float d = fmaf(-d_delta, s.k[i], cell(v, i));
        d_g = fmaf(d, decayed, d_g);
        cell(v, i) = d * s.decay[i];
      }
    }
    if (i == 0) {
      const int64_t b = (static_cast<int64_t>(begin) + t) * a.heads + head;
      const float x = a.b_f32 != 0 ? static_cast<const float*>(a.b)[b] : bf16_at(a.b, b), d = d_beta * c.beta * sigmoid(-x);
      if (a.b_f32 != 0) static_cast<float*>(a.db)[b] = d;
      else put_bf16(a.db, b, d);
    }
    gate_back(t, c, d_g, sums);
    const float scale = rsqrtf(static_cast<float>(n.dim));
    const float q_along = block_sum(mine ? c.act[0] * scale * d_q : 0.0F), k_along = block_sum(mine ? c.act[1] * d_k : 0.0F);
    const float d_act[3] = {c.q_factor * (scale * d_q - c.act[0] * c.q_factor * c.q_factor * q_along),
                            c.k_factor * (d_k - c.act[1] * c.k_factor * c.k_factor * k_along), c.beta * du};
    if (mine) convolution_back(t, c, d_act, sums, w);
  }

  __device__ void gate_back(int t, const Token& c, float d_g, Sums& sums) const {
    if (!mine) return;
    const float rate = expf(a.a_log[head]);
    const float slope = n.bounded != 0 ? a.lower_bound * rate * sigmoid(rate * c.x) * sigmoid(-rate * c.x) : -rate * sigmoid(c.x);
    put_bf16(a.dz, at(t), d_g * slope);
    sums.bias += d_g * slope;
    sums.decay += d_g * (n.bounded != 0 ? slope * c.x : c.decay);
  }

  __device__ void convolution_back(int t, const Token& c, const float (&d_act)[3], Sums& sums, Window& w) const {
    for (int part = 0; part < 3; ++part) {
      const float x = c.pre[part], g = sigmoid(x);
      for (int m = kTrainPlainTaps - 1; m > 0; --m) w.d[part][m] = w.d[part][m - 1];
      w.d[part][0] = d_act[part] * g * (1 + x * sigmoid(-x));
      float dx = 0;
      for (int m = 0; m < n.taps; ++m) {
        const int tap = n.taps - 1 - m, from = t - m;
        dx = fmaf(a.taps[part][(head * n.dim + i) * n.taps + tap], w.d[part][m], dx);
        if (from >= 0) sums.taps[part][tap] = fmaf(w.d[part][0], bf16_at(a.in[part], at(from)), sums.taps[part][tap]);
      }
      put_bf16(a.d_in[part], at(t), dx);
    }
  }
  __device__ void vjp(float* states, float* rows) const {
    Sums sums{};
    Window w{};
    load(a.d_final == nullptr ? nullptr : a.d_final + place);
    float* gradient = rows + 2 * kTrainRows * n.dim;  // [dim, dim]: waits while the block is computed once more
    for (int first = (length - 1) / kTrainRows * kTrainRows; first >= 0 && length > 0; first -= kTrainRows) {
      const int count = min(kTrainRows, length - first);
      store(gradient);
      __syncthreads();
      recompute(first, count, states, rows);
      load(gradient);
      for (int r = count - 1; r >= 0; --r) {
        const float* before = states + static_cast<int64_t>(r) * n.dim * n.dim;
        back(first + r, before, before + n.dim * n.dim, rows + 2 * r * n.dim, sums, w);
        __syncthreads();
      }
    }
    if (a.d_initial != nullptr) store(a.d_initial + place);
    if (!mine) return;
    float* to = a.sums + (static_cast<int64_t>(sequence) * a.heads + head) * (3 * n.taps + 3) * n.dim + i;
    for (int part = 0; part < 3; ++part) {
      for (int tap = 0; tap < n.taps; ++tap) to[(part * n.taps + tap) * n.dim] = sums.taps[part][tap];
    }
    to[3 * n.taps * n.dim] = sums.bias, to[(3 * n.taps + 1) * n.dim] = sums.decay, to[(3 * n.taps + 2) * n.dim] = sums.norm;
  }
};

__global__ void __launch_bounds__(kMost) plain(const __grid_constant__ KdaTrainCudaArgs a, const __grid_constant__ KdaTrainPlainSizes n) {
  extern __shared__ float4 shared[];
  auto* s = reinterpret_cast<Shared*>(shared);
  const int i = static_cast<int>(threadIdx.x);
  Plain p{a, n, *s, reinterpret_cast<float*>(s + 1), i, 0, 0, 0, 0, i < n.dim, 0};
  float* scratch = n.scratch + blockIdx.x * kda_train_plain_floats(n.dim);
  for (int task = static_cast<int>(blockIdx.x); task < a.sequences * a.heads; task += static_cast<int>(gridDim.x)) {
    p.choose(task);
    if (n.backward != 0) p.vjp(scratch, scratch + static_cast<int64_t>(kTrainRows + 1) * n.dim * n.dim);
    else p.forward();
    __syncthreads();
  }
}

// Sums over sequences (and heads, for the norm), one thread a number, from the first sequence to the last.
__global__ void add_plain(const __grid_constant__ KdaTrainCudaArgs a, const __grid_constant__ KdaTrainPlainSizes n) {
  const int kinds = 3 * n.taps + 3, all = a.heads * kinds * n.dim, id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (id >= all) return;
  const int head = id / (kinds * n.dim), kind = id / n.dim % kinds, c = id % n.dim;
  const auto total = [&](int of_head, int of_channel) {
    float sum = 0;
    for (int s = 0; s < a.sequences; ++s) {
      if (a.offsets[s] == a.offsets[s + 1]) continue;
      sum += a.sums[((static_cast<int64_t>(s) * a.heads + of_head) * kinds + kind) * n.dim + of_channel];
    }
    return sum;
  };
  const int column = head * n.dim + c;
  if (kind < 3 * n.taps) {
    a.d_taps[kind / n.taps][column * n.taps + kind % n.taps] += total(head, c);
  } else if (kind == 3 * n.taps) {
    a.d_dt_bias[column] += total(head, c);
  } else if (kind == 3 * n.taps + 1 && c == 0) {
    float sum = 0;
    for (int i = 0; i < n.dim; ++i) sum += total(head, i);
    a.d_a_log[head] += sum;
  } else if (kind == 3 * n.taps + 2 && head == 0) {
    float sum = 0;
    for (int h = 0; h < a.heads; ++h) sum += total(h, c);
    a.d_norm[c] += sum;
  }
}

}  // namespace

int kda_train_plain_launch(const KdaTrainCudaArgs& a, const KdaTrainPlainSizes& n, int blocks, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(blocks));
  o.block = dim3(static_cast<unsigned>((n.dim + 31) / 32 * 32));
  o.shared_bytes = static_cast<int>(sizeof(Shared) + sizeof(float) * static_cast<size_t>(n.dim * (n.dim + 1)));
  if (const int code = launch(plain, o, stream, a, n); code != 0 || n.backward == 0) return code;
  o.shared_bytes = 0;
  o.block = dim3(128);
  o.grid = dim3(static_cast<unsigned>((a.heads * (3 * n.taps + 3) * n.dim + 127) / 128));
  return launch(add_plain, o, stream, a, n);
}

}  // namespace k3::ops::cuda
