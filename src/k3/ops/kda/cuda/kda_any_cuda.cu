// KDA of any head size: a block a (sequence, head) holds the state in shared memory and walks over the tokens; thread i is channel i
// of the convolutions and row i of the state.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/cuda/kda_any_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = kKdaAnyDim, kWarps = kThreads / 32;
constexpr float kNormEps = 1e-6F;  // added to the sum of squares

__device__ __forceinline__ float load(const void* p, int64_t i, bool f32) {
  return f32 ? static_cast<const float*>(p)[i] : __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}
__device__ __forceinline__ void store(void* p, int64_t i, bool f32, float x) {
  if (f32) {
    static_cast<float*>(p)[i] = x;
  } else {
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(x);
  }
}

// Of all threads, in a fixed order; every thread gets it.
__device__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  __syncthreads();  // the sum before was read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

struct Shared {
  float kn[kKdaAnyDim], qn[kKdaAnyDim], decay[kKdaAnyDim];
  float window[3][kKdaAnyTaps - 1][kKdaAnyDim];  // oldest first; column i belongs to thread i
  float scratch[kWarps];
};

__device__ void write_slot(const KdaAnyArgs& a, const Shared& s, const float* state, int head, int slot) {
  const int dim = a.dim, i = static_cast<int>(threadIdx.x), heads = a.weights.heads;
  if (i >= dim || slot < 0) return;
  const int64_t state_at = slot * a.slots.state_stride + (static_cast<int64_t>(head) * dim + i) * dim;
  for (int k = 0; k < dim; ++k) store(a.slots.state, state_at + k, a.slots.state_bf16 == 0, state[i * (dim + 1) + k]);
  for (int part = 0; part < 3; ++part) {
    for (int j = 0; j + 1 < a.taps; ++j) {
      const int64_t at = slot * a.slots.conv_stride + (static_cast<int64_t>(part * (a.taps - 1) + j) * heads + head) * dim + i;
      store(a.slots.conv, at, a.slots.conv_bf16 == 0, s.window[part][j][i]);
    }
  }
}

__device__ void store_out(const KdaAnyArgs& a, int t, int channel, float y) {
  const int64_t at = t * a.rows.out_stride + channel;
  store(a.rows.out, at, false, y);
  if (a.out_rest != nullptr) store(a.out_rest, at, false, y - __bfloat162float(__float2bfloat16(y)));
}

__global__ void __launch_bounds__(kThreads) kda_any(const __grid_constant__ KdaAnyArgs a) {
  extern __shared__ float state[];  // [dim, dim + 1]: threads walk along rows without bank conflicts
  __shared__ Shared s;
  const int dim = a.dim, heads = a.weights.heads, taps = a.taps, i = static_cast<int>(threadIdx.x);
  const int sequence = static_cast<int>(blockIdx.x) / heads, head = static_cast<int>(blockIdx.x) % heads;
  const int begin = a.offsets[sequence], end = a.offsets[sequence + 1], slot = a.slots.slots[sequence];
  if (begin >= end) return;
  const bool mine = i < dim;
  const int channel = head * dim + i;
  if (slot < 0) {
    for (int t = begin; t < end && mine; ++t) store_out(a, t, channel, 0);
    return;
  }
  if (mine) {
    const int64_t at = slot * a.slots.state_stride + static_cast<int64_t>(channel) * dim;
    for (int k = 0; k < dim; ++k) state[i * (dim + 1) + k] = load(a.slots.state, at + k, a.slots.state_bf16 == 0);
    for (int part = 0; part < 3; ++part) {
      for (int j = 0; j + 1 < taps; ++j) {
        s.window[part][j][i] =
            load(a.slots.conv, slot * a.slots.conv_stride + static_cast<int64_t>(part * (taps - 1) + j) * heads * dim + channel, a.slots.conv_bf16 == 0);
      }
    }
  }
  const float rate = expf(a.weights.a_log[head]);
  for (int t = begin; t < end; ++t) {
    float x[3] = {0, 0, 0}, gate = 0;
    if (mine) {
      for (int part = 0; part < 3; ++part) {
        const float now = load(a.rows.x[part], t * a.rows.x_stride[part] + channel, false);
        const float* tap = a.weights.taps[part] + static_cast<int64_t>(channel) * taps;
        float y = 0;
        for (int j = 0; j + 1 < taps; ++j) y = fmaf(tap[j], s.window[part][j][i], y);
        y = fmaf(tap[taps - 1], now, y);
        x[part] = y * sigmoid(y);
        for (int j = 0; j + 2 < taps; ++j) s.window[part][j][i] = s.window[part][j + 1][i];
        s.window[part][taps - 2][i] = now;
      }
      const float z = load(a.rows.z, t * a.rows.z_stride + channel, false) + a.weights.dt_bias[channel];
      const float g = a.weights.lower_bound != 0 ? a.weights.lower_bound * sigmoid(rate * z)
                                                 : -rate * (fmaxf(z, 0.0F) + log1pf(expf(-fabsf(z))));
      s.decay[i] = expf(g);
      gate = load(a.rows.gate, t * a.rows.gate_stride + channel, false);
    }
    const float beta = sigmoid(load(a.rows.beta, t * a.rows.beta_stride + head, a.beta_f32));
    const float q_scale = rsqrtf(block_sum(x[0] * x[0], s.scratch) + kNormEps) * rsqrtf(static_cast<float>(dim));
    const float k_scale = rsqrtf(block_sum(x[1] * x[1], s.scratch) + kNormEps);
    s.qn[i] = x[0] * q_scale;
    s.kn[i] = x[1] * k_scale;
    __syncthreads();
    float o = 0;
    if (mine) {
      float* row = state + i * (dim + 1);
      float seen = 0;
      for (int k = 0; k < dim; ++k) {
        row[k] *= s.decay[k];
        seen = fmaf(s.kn[k], row[k], seen);
      }
      const float u = beta * (x[2] - seen);
      for (int k = 0; k < dim; ++k) {
        row[k] = fmaf(u, s.kn[k], row[k]);
        o = fmaf(s.qn[k], row[k], o);
      }
    }
    const float mean = block_sum(o * o, s.scratch) / static_cast<float>(dim);
    if (mine) {
      store_out(a, t, channel, o * rsqrtf(mean + a.weights.norm_eps) * a.weights.norm[i] * sigmoid(gate));
    }
    for (int e = 0; e < a.exports; ++e) {
      if (a.export_sequences[e] == sequence && a.export_tokens[e] == t + 1 - begin) write_slot(a, s, state, head, a.export_slots[e]);
    }
  }
  write_slot(a, s, state, head, slot);
}

}  // namespace

int kda_any_launch(const KdaAnyArgs& args, CUstream_st* stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(args.sequences * args.weights.heads)),
                              .block = dim3(kThreads),
                              .shared_bytes = args.dim * (args.dim + 1) * 4};
  return launch(kda_any, options, stream, args);
}

}  // namespace k3::ops::cuda
