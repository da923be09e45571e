#include "k3/ops/mla/cuda/mla_train_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kQueries = 64;  // of a block: 16 a warp
constexpr int kKeys = 64;     // of a step of the forward
constexpr int kStep = 32;     // keys (queries) of a step of the vjp

constexpr int kKeyTile = kKeys * kMlaKeyStride * 2, kValueTile = kKeys * kMlaValueStride * 2;
constexpr int kForwardBytes = kQueries * kMlaKeyStride * 2 + 2 * (kKeyTile + kValueTile);
constexpr int kStepKey = kStep * kMlaKeyStride * 2, kStepValue = kStep * kMlaValueStride * 2;
constexpr int kVjpBytes = kQueries * (kMlaKeyStride + kMlaValueStride) * 2 + 2 * (kStepKey + kStepValue);

// Block (tile, head, sequence); later tiles, which are longer in forward and dq, first.
struct Place {
  int begin, length, head, first;
};
__device__ __forceinline__ Place place_of(const MlaTrain& p, bool reversed) {
  const int s = static_cast<int>(blockIdx.z), tile = static_cast<int>(reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const int begin = p.offsets[s];
  return {begin, p.offsets[s + 1] - begin, static_cast<int>(blockIdx.y), tile * kQueries};
}

// Largest and sum of a row's numbers: four lanes hold a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}

// top and sum per half: logits in base 2; `raw` is the largest logit times log2 e.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

__device__ __forceinline__ void softmax_step(Rows& rows, float (&s)[kKeys / 8][4], float (&o)[kMlaValue / 8][4], float factor, int row0, int key0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + lane / 4 + 8 * half;
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[j][2 * half + e];
        x = key0 + j * 8 + lane % 4 * 2 + e <= row ? x * factor : -INFINITY;
        most = fmaxf(most, x);
      }
    }
    const float next = fmaxf(rows.top[half], quad_max(most));  // finite: a row sees its own key, and key 0 comes first
    const float old = exp2f(rows.top[half] - next);
    rows.top[half] = next;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[j][2 * half + e];
        x = exp2f(x - next);
        sum += x;
      }
    }
    rows.sum[half] = rows.sum[half] * old + quad_sum(sum);
#pragma unroll
    for (int j = 0; j < kMlaValue / 8; ++j) o[j][2 * half] *= old, o[j][2 * half + 1] *= old;
  }
}

__global__ void __launch_bounds__(kMlaThreads, 2) mla_forward(const __grid_constant__ MlaTrain p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Place at = place_of(p, true);
  if (at.first >= at.length) return;
  const uint32_t queries = shared_address(memory), tiles = queries + kQueries * kMlaKeyStride * 2;
  const MlaRows q = mla_queries(p, at.begin, at.head), k = mla_keys(p, at.begin, at.head), v = mla_values(p, at.begin, at.head);
  const int last = min(at.length, at.first + kQueries), steps = (last + kKeys - 1) / kKeys, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto issue = [&](int i) {
    if (i < steps) {
      const uint32_t to = tiles + (i & 1) * (kKeyTile + kValueTile);
      mla_load<kKeys, kMlaKey>(to, k, i * kKeys, at.length);
      mla_load<kKeys, kMlaValue>(to + kKeyTile, v, i * kKeys, at.length);
    }
    cp_async_commit();
  };
  mla_load<kQueries, kMlaKey>(queries, q, at.first, at.length);
  issue(0);
  Rows rows;
  float o[kMlaValue / 8][4] = {};
  const float factor = p.scale * kMlaLog2E;
  for (int i = 0; i < steps; ++i) {
    issue(i + 1);
    cp_async_wait<1>();
    __syncthreads();
    const uint32_t tile = tiles + (i & 1) * (kKeyTile + kValueTile);
    float s[kKeys / 8][4] = {};
    mla_dots<kMlaKey>(queries, warp_row, tile, s);
    softmax_step(rows, s, o, factor, at.first + warp_row, i * kKeys);
    mla_mix<kMlaValue>(s, tile + kKeyTile, o);
    __syncthreads();
  }
  cp_async_wait<0>();
  const int lane = threadIdx.x & 31;
  float most = 0;
  for (int half = 0; half < 2; ++half) {
    const int row = at.first + warp_row + lane / 4 + 8 * half;
    if (row >= at.length) continue;
    most = fmaxf(most, rows.top[half] / kMlaLog2E);
    const int64_t t = at.begin + row;
    if (lane % 4 == 0) p.logsum[t * p.heads + at.head] = (rows.top[half] + log2f(rows.sum[half])) / kMlaLog2E;
    const float inverse = 1 / rows.sum[half];
    float* const to = p.out + (t * p.heads + at.head) * p.value;
#pragma unroll
    for (int j = 0; j < kMlaValue / 8; ++j) {
      const int col = j * 8 + lane % 4 * 2;
      if (col < p.value) to[col] = o[j][2 * half] * inverse;
      if (col + 1 < p.value) to[col + 1] = o[j][2 * half + 1] * inverse;
    }
  }
  if (p.largest == nullptr) return;
  most = warp_max(most);
  // Numbers above zero are ordered as their bits are; none is under what the array begins with.
  if (lane == 0 && most > 0) atomicMax(reinterpret_cast<int*>(p.largest + at.head), __float_as_int(most));
}

// dq of 64 queries: over the keys before them, 32 at a time.
__global__ void __launch_bounds__(kMlaThreads, 2) mla_dq(const __grid_constant__ MlaTrain p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Place at = place_of(p, true);
  if (at.first >= at.length) return;
  const uint32_t queries = shared_address(memory), d_rows = queries + kQueries * kMlaKeyStride * 2, tiles = d_rows + kQueries * kMlaValueStride * 2;
  const MlaRows q = mla_queries(p, at.begin, at.head), d = mla_dout(p, at.begin, at.head);
  const MlaRows k = mla_keys(p, at.begin, at.head), v = mla_values(p, at.begin, at.head);
  const int last = min(at.length, at.first + kQueries), steps = (last + kStep - 1) / kStep, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto issue = [&](int i) {
    if (i < steps) {
      const uint32_t to = tiles + (i & 1) * (kStepKey + kStepValue);
      mla_load<kStep, kMlaKey>(to, k, i * kStep, at.length);
      mla_load<kStep, kMlaValue>(to + kStepKey, v, i * kStep, at.length);
    }
    cp_async_commit();
  };
  mla_load<kQueries, kMlaKey>(queries, q, at.first, at.length);
  mla_load<kQueries, kMlaValue>(d_rows, d, at.first, at.length);
  issue(0);
  const int lane = threadIdx.x & 31, row0 = at.first + warp_row + lane / 4;
  float logsum[2], delta[2];
  for (int half = 0; half < 2; ++half) {
    const int64_t t = at.begin + min(row0 + 8 * half, at.length - 1);
    logsum[half] = p.logsum[t * p.heads + at.head] * kMlaLog2E;
    delta[half] = p.delta[t * p.heads + at.head];
  }
  float dq[kMlaKey / 8][4] = {};
  const float factor = p.scale * kMlaLog2E;
  for (int i = 0; i < steps; ++i) {
    issue(i + 1);
    cp_async_wait<1>();
    __syncthreads();
    const uint32_t tile = tiles + (i & 1) * (kStepKey + kStepValue);
    float s[kStep / 8][4] = {}, dp[kStep / 8][4] = {};
    mla_dots<kMlaKey>(queries, warp_row, tile, s);
    mla_dots<kMlaValue>(d_rows, warp_row, tile + kStepKey, dp);
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, key = i * kStep + j * 8 + lane % 4 * 2 + e % 2;
        const bool seen = key <= row0 + 8 * half;
        const float prob = seen ? exp2f(s[j][e] * factor - logsum[half]) : 0.0F;
        s[j][e] = prob * (dp[j][e] - delta[half]) * p.scale;
      }
    }
    mla_mix<kMlaKey>(s, tile, dq);
    __syncthreads();
  }
  cp_async_wait<0>();
  const int width = p.nope + p.rope;
  mla_put(dq, at.first + warp_row, at.length, 0, width, static_cast<__nv_bfloat16*>(p.dq) + (static_cast<int64_t>(at.begin) * p.heads + at.head) * width,
          static_cast<int64_t>(p.heads) * width);
}

// dk and dv of 64 keys: over the queries from them on, 32 at a time. Rows of the products are keys.
__global__ void __launch_bounds__(kMlaThreads, 1) mla_dkv(const __grid_constant__ MlaTrain p) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float numbers[2][2][kStep];  // of the step's queries: log-sum-exp in base 2, delta
  const Place at = place_of(p, false);
  if (at.first >= at.length) return;
  const uint32_t keys = shared_address(memory), values = keys + kQueries * kMlaKeyStride * 2, tiles = values + kQueries * kMlaValueStride * 2;
  const MlaRows q = mla_queries(p, at.begin, at.head), d = mla_dout(p, at.begin, at.head);
  const MlaRows k = mla_keys(p, at.begin, at.head), v = mla_values(p, at.begin, at.head);
  const int steps = (at.length - at.first + kStep - 1) / kStep, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto issue = [&](int i) {
    if (i < steps) {
      const uint32_t to = tiles + (i & 1) * (kStepKey + kStepValue);
      const int first = at.first + i * kStep;
      mla_load<kStep, kMlaKey>(to, q, first, at.length);
      mla_load<kStep, kMlaValue>(to + kStepKey, d, first, at.length);
      if (threadIdx.x < kStep) {
        const int64_t t = at.begin + min(first + static_cast<int>(threadIdx.x), at.length - 1);
        numbers[i & 1][0][threadIdx.x] = p.logsum[t * p.heads + at.head] * kMlaLog2E;
        numbers[i & 1][1][threadIdx.x] = p.delta[t * p.heads + at.head];
      }
    }
    cp_async_commit();
  };
  mla_load<kQueries, kMlaKey>(keys, k, at.first, at.length);
  mla_load<kQueries, kMlaValue>(values, v, at.first, at.length);
  issue(0);
  const int lane = threadIdx.x & 31, key0 = at.first + warp_row + lane / 4;
  float dk[kMlaKey / 8][4] = {}, dv[kMlaValue / 8][4] = {};
  const float factor = p.scale * kMlaLog2E;
  for (int i = 0; i < steps; ++i) {
    issue(i + 1);
    cp_async_wait<1>();
    __syncthreads();
    const uint32_t tile = tiles + (i & 1) * (kStepKey + kStepValue);
    float s[kStep / 8][4] = {}, dp[kStep / 8][4] = {};
    mla_dots<kMlaKey>(keys, warp_row, tile, s);
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = j * 8 + lane % 4 * 2 + e % 2, query = at.first + i * kStep + column;
        const bool seen = key0 + 8 * (e / 2) <= query && query < at.length;
        s[j][e] = seen ? exp2f(s[j][e] * factor - numbers[i & 1][0][column]) : 0.0F;
      }
    }
    mla_mix<kMlaValue>(s, tile + kStepKey, dv);
    mla_dots<kMlaValue>(values, warp_row, tile + kStepKey, dp);
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] *= (dp[j][e] - numbers[i & 1][1][j * 8 + lane % 4 * 2 + e % 2]) * p.scale;
    }
    mla_mix<kMlaKey>(s, tile, dk);
    __syncthreads();
  }
  cp_async_wait<0>();
  const int expanded = p.nope + p.value, row0 = at.first + warp_row;
  const int64_t stride = static_cast<int64_t>(p.heads) * expanded;
  auto* const to = static_cast<__nv_bfloat16*>(p.dkeys) + (static_cast<int64_t>(at.begin) * p.heads + at.head) * expanded;
  mla_put(dk, row0, at.length, 0, p.nope, to, stride);
  mla_put(dv, row0, at.length, 0, p.value, to + p.nope, stride);
  if (p.rope > 0) {
    mla_put(dk, row0, at.length, p.nope, p.nope + p.rope,
            static_cast<__nv_bfloat16*>(p.dshared) + (static_cast<int64_t>(at.begin) * p.heads + at.head) * p.rope,
            static_cast<int64_t>(p.heads) * p.rope);
  }
}

// A warp a token and head.
__global__ void __launch_bounds__(256) gate_vjp(const MlaGateVjp a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (row >= a.tokens * a.heads) return;
  float delta = 0;
  for (int i = threadIdx.x & 31; i < a.value; i += 32) {
    const int64_t at = row * a.value + i;
    __nv_bfloat16* const dy = static_cast<__nv_bfloat16*>(a.dy) + at;
    const float o = a.out[at];
    float d = __bfloat162float(*dy);
    if (a.gate != nullptr) {
      const float s = 1 / (1 + expf(-__bfloat162float(static_cast<const __nv_bfloat16*>(a.gate)[at])));
      static_cast<__nv_bfloat16*>(a.dgate)[at] = __float2bfloat16(d * o * s * (1 - s));
      *dy = __float2bfloat16(d * s);
      d = __bfloat162float(*dy);  // as the products see it
    }
    delta += d * o;
  }
  delta = warp_sum(delta);
  if ((threadIdx.x & 31) == 0) a.delta[row] = delta;
}

__global__ void shared_vjp(const __nv_bfloat16* dshared, int64_t tokens, int heads, int rope, __nv_bfloat16* to, int64_t stride, bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tokens * rope) return;
  const int64_t t = i / rope, column = i % rope;
  __nv_bfloat16* const at = to + t * stride + column;
  float sum = accumulate ? __bfloat162float(*at) : 0.0F;
  for (int h = 0; h < heads; ++h) sum += __bfloat162float(dshared[(t * heads + h) * rope + column]);
  *at = __float2bfloat16(sum);
}

dim3 grid_of(const MlaTrain& a) {
  return dim3(static_cast<unsigned>((a.longest + kQueries - 1) / kQueries), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences));
}

}  // namespace

bool mla_train_takes(int64_t nope, int64_t rope, int64_t value) { return nope + rope <= kMlaKey && value <= kMlaValue; }

int mla_train_forward_launch(const MlaTrain& a, void* stream) {
  if (!mla_train_takes(a.nope, a.rope, a.value)) return static_cast<int>(cudaErrorInvalidValue);
  if (a.longest == 0) return 0;
  return launch(mla_forward, {.grid = grid_of(a), .block = dim3(kMlaThreads), .shared_bytes = kForwardBytes}, static_cast<cudaStream_t>(stream), a);
}

int mla_train_vjp_launch(const MlaTrain& a, void* stream) {
  if (!mla_train_takes(a.nope, a.rope, a.value)) return static_cast<int>(cudaErrorInvalidValue);
  if (a.longest == 0) return 0;
  const LaunchOptions options{.grid = grid_of(a), .block = dim3(kMlaThreads), .shared_bytes = kVjpBytes};
  if (const int code = launch(mla_dkv, options, static_cast<cudaStream_t>(stream), a); code != 0) return code;
  return launch(mla_dq, options, static_cast<cudaStream_t>(stream), a);
}

int mla_gate_vjp_launch(const MlaGateVjp& a, void* stream) {
  if (a.tokens == 0) return 0;
  return launch(gate_vjp, {.grid = dim3(static_cast<unsigned>((a.tokens * a.heads + 7) / 8)), .block = dim3(256)}, static_cast<cudaStream_t>(stream), a);
}

int mla_shared_vjp_launch(const void* dshared, int64_t tokens, int32_t heads, int32_t rope, void* to, int64_t stride, bool accumulate, void* stream) {
  if (tokens * rope == 0) return 0;
  return launch(shared_vjp, {.grid = dim3(static_cast<unsigned>((tokens * rope + 255) / 256)), .block = dim3(256)}, static_cast<cudaStream_t>(stream),
                static_cast<const __nv_bfloat16*>(dshared), tokens, static_cast<int>(heads), static_cast<int>(rope), static_cast<__nv_bfloat16*>(to),
                stride, accumulate);
}

}  // namespace k3::ops::cuda
