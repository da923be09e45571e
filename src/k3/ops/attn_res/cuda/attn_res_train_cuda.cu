// A site in training: forward, and the vjp that computes weights and mix again from the rows.
#include "k3/ops/cuda/row_team.cuh"
#include "k3/ops/cuda/train_rows.h"

namespace k3::ops::cuda {
namespace {

template <class T>
__device__ __forceinline__ const __nv_bfloat16* token_row(const void* p, int64_t t, int width) {
  return static_cast<const __nv_bfloat16*>(p) + t * width;
}

template <class T>
__global__ void __launch_bounds__(kTeamBlock) site_train(const __grid_constant__ SiteTrain a) {
  const int width = static_cast<int>(a.width), last = a.sources - 1;
  float2 q[T::kPairs], v[T::kPairs], mix[T::kPairs];
  if (last > 0) T::load_f32(a.query, width, q);
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * T::kPerBlock + T::index(); t < a.tokens; t += static_cast<int64_t>(gridDim.x) * T::kPerBlock) {
    // The prefix first: it may have to be made.
    T::load(token_row<T>(a.rows[last], t, width), width, v);
    if (a.delta != nullptr) {
      T::load(token_row<T>(a.delta, t, width), width, mix);
#pragma unroll
      for (int i = 0; i < T::kPairs; ++i) {
        const uint32_t two = pack_bf16(v[i].x + mix[i].x, v[i].y + mix[i].y);  // the sum as it is stored
        v[i] = {low_bf16(two), high_bf16(two)};
      }
      T::store(static_cast<__nv_bfloat16*>(a.prefix) + t * width, width, v);
    }
    if (a.kept != nullptr) T::store(static_cast<__nv_bfloat16*>(a.kept) + t * width, width, v);
    float squares = T::dot(v, v);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) mix[i] = v[i];
    if (last > 0) {
      // Running softmax over the sources.
      float top = T::dot(v, q) * rsqrtf(squares / static_cast<float>(width) + a.eps), sum = 1;
      for (int j = 0; j < last; ++j) {
        T::load(token_row<T>(a.rows[j], t, width), width, v);
        const float score = T::dot(v, q) * rsqrtf(T::dot(v, v) / static_cast<float>(width) + a.eps);
        const float next = fmaxf(top, score), old = expf(top - next), own = expf(score - next);
#pragma unroll
        for (int i = 0; i < T::kPairs; ++i) mix[i].x = mix[i].x * old + v[i].x * own, mix[i].y = mix[i].y * old + v[i].y * own;
        sum = sum * old + own;
        top = next;
      }
      const float factor = 1 / sum;
#pragma unroll
      for (int i = 0; i < T::kPairs; ++i) mix[i].x *= factor, mix[i].y *= factor;
      squares = T::dot(mix, mix);
    }
    const float scale = rsqrtf(squares / static_cast<float>(width) + a.eps);
    T::load_f32(a.norm, width, v);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) mix[i].x *= scale * v[i].x, mix[i].y *= scale * v[i].y;
    T::store(static_cast<__nv_bfloat16*>(a.out) + t * width, width, mix);
  }
}

struct Score {
  float weight, product, inverse, along;
};

template <class T>
__device__ __forceinline__ void put_grad(const SiteTrain& a, int j, int64_t t, int width, float2 (&g)[T::kPairs]) {
  float2 old[T::kPairs];
  __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(a.grads[j]) + t * width;
  const auto plus = [&](const void* row) {
    T::load(row, width, old);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) g[i].x += old[i].x, g[i].y += old[i].y;
  };
  if (!a.fresh[j]) plus(to);
  if (j < a.sources - 1) return T::store(to, width, g);
  if (a.banked != nullptr) plus(token_row<T>(a.banked, t, width));
  T::store(to, width, g);
  if (a.ddelta == nullptr) return;
  __nv_bfloat16* const delta = static_cast<__nv_bfloat16*>(a.ddelta) + t * width;
  if (!a.ddelta_fresh) plus(delta);
  T::store(delta, width, g);
}

template <class T>
__global__ void __launch_bounds__(kTeamBlock) site_vjp(const __grid_constant__ SiteTrain a) {
  __shared__ Score scores[T::kPerBlock][kMostSites];
  Score* const s = scores[T::index()];
  const int width = static_cast<int>(a.width), count = a.sources;
  const bool mixed = count > 1;
  float2 v[T::kPairs], m[T::kPairs], d[T::kPairs], q[T::kPairs], dq[T::kPairs] = {}, dw[T::kPairs] = {};
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * T::kPerBlock + T::index(); t < a.tokens; t += static_cast<int64_t>(gridDim.x) * T::kPerBlock) {
    if (mixed) {
      T::load_f32(a.query, width, q);
      float top = -INFINITY, sum = 0;
      for (int j = 0; j < count; ++j) {
        T::load(token_row<T>(a.rows[j], t, width), width, v);
        const float product = T::dot(v, q), inverse = rsqrtf(T::dot(v, v) / static_cast<float>(width) + a.eps), score = product * inverse;
        if (T::lane() == 0) s[j] = {score, product, inverse, 0};
        top = fmaxf(top, score);
      }
      T::sync();
      for (int j = 0; j < count; ++j) sum += expf(s[j].weight - top);
      T::sync();
      for (int j = T::lane(); j < count; j += T::kSize) s[j].weight = expf(s[j].weight - top) / sum;
      T::sync();
    }
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) m[i] = {0, 0};
    for (int j = 0; j < count; ++j) {
      T::load(token_row<T>(a.rows[j], t, width), width, v);
      const float p = mixed ? s[j].weight : 1.0F;
#pragma unroll
      for (int i = 0; i < T::kPairs; ++i) m[i].x += p * v[i].x, m[i].y += p * v[i].y;
    }
    // Through the norm: d becomes the gradient of the mix.
    T::load(token_row<T>(a.dout, t, width), width, d);
    T::load_f32(a.norm, width, v);
    const float scale = rsqrtf(T::dot(m, m) / static_cast<float>(width) + a.eps);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) {
      dw[i].x += m[i].x * scale * d[i].x, dw[i].y += m[i].y * scale * d[i].y;
      d[i].x *= v[i].x, d[i].y *= v[i].y;
    }
    const float shared = T::dot(m, d) * scale * scale / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) d[i].x = scale * (d[i].x - m[i].x * shared), d[i].y = scale * (d[i].y - m[i].y * shared);
    if (!mixed) {
      put_grad<T>(a, 0, t, width, d);
      continue;
    }
    float mean = 0;
    for (int j = 0; j < count; ++j) {
      T::load(token_row<T>(a.rows[j], t, width), width, v);
      const float along = T::dot(v, d);
      if (T::lane() == 0) s[j].along = along;
      mean += s[j].weight * along;
    }
    T::sync();
    for (int j = 0; j < count; ++j) {
      T::load(token_row<T>(a.rows[j], t, width), width, v);
      const Score& one = s[j];
      const float ds = one.weight * (one.along - mean) * one.inverse;
      const float back = ds * one.product * one.inverse * one.inverse / static_cast<float>(width);
#pragma unroll
      for (int i = 0; i < T::kPairs; ++i) {
        dq[i].x += ds * v[i].x, dq[i].y += ds * v[i].y;
        m[i] = {one.weight * d[i].x + ds * q[i].x - back * v[i].x, one.weight * d[i].y + ds * q[i].y - back * v[i].y};
      }
      put_grad<T>(a, j, t, width, m);
    }
    T::sync();
  }
  if (a.norm_partial != nullptr) T::put_partial(dw, width, a.norm_partial);
  if (mixed && a.query_partial != nullptr) T::put_partial(dq, width, a.query_partial);
}

}  // namespace

int site_train_launch(const SiteTrain& a, void* stream) {
  if (a.tokens == 0) return 0;
  return with_team(a.width, [&](auto team) {
    using T = decltype(team);
    const auto blocks = static_cast<unsigned>((a.tokens + T::kPerBlock - 1) / T::kPerBlock);
    return launch(site_train<T>, {.grid = dim3(blocks < 1056 ? blocks : 1056), .block = dim3(kTeamBlock)}, static_cast<cudaStream_t>(stream), a);
  });
}

int site_vjp_launch(const SiteTrain& a, void* stream) {
  return with_team(a.width, [&](auto team) {
    using T = decltype(team);
    return launch(site_vjp<T>, {.grid = dim3(kTeamGrid), .block = dim3(kTeamBlock)}, static_cast<cudaStream_t>(stream), a);
  });
}

}  // namespace k3::ops::cuda
