// The router on GPUs that are not Hopper: a warp a token, one pass over the experts for each that is chosen.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/router/cuda/router_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kMostExperts = 1024, kMostChosen = 16;

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

__global__ void __launch_bounds__(32) route_plain(const RouterCuda r) {
  __shared__ float biased[kMostExperts];
  const int token = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const float* logits = r.logits + static_cast<int64_t>(token) * r.experts;
  for (int e = lane; e < r.experts; e += 32) {
    const float score = sigmoid(logits[e]) + (r.bias != nullptr ? r.bias[e] : 0);
    biased[e] = score == score ? score : -INFINITY;  // NaN ranks last
  }
  __syncwarp();
  int chosen[kMostChosen];
  float sum = 0;
  for (int j = 0; j < r.topk; ++j) {
    float best = -INFINITY;
    int at = kMostExperts;
    for (int e = lane; e < r.experts; e += 32) {
      bool taken = false;
      for (int i = 0; i < j; ++i) taken = taken || chosen[i] == e;
      if (!taken && (at == kMostExperts || biased[e] > best)) best = biased[e], at = e;
    }
    for (int step = 16; step > 0; step /= 2) {  // the lowest index on ties
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, step);
      const int other_at = __shfl_xor_sync(0xFFFFFFFFU, at, step);
      if (other_at != kMostExperts && (at == kMostExperts || other > best || (other == best && other_at < at))) best = other, at = other_at;
    }
    chosen[j] = at;
    sum += sigmoid(logits[at]);
  }
  for (int j = 0; j < r.topk && lane == 0; ++j) {
    const int e = chosen[j];
    const bool local = r.local_count <= 0 || (e >= r.local_first && e < r.local_first + r.local_count);
    const float p = sigmoid(logits[e]) / (r.renormalise ? sum + 1e-20F : 1.0F);
    r.ids[token * r.topk + j] = local ? e : -1;
    r.weights[token * r.topk + j] = p * r.scale;
  }
}

}  // namespace

int router_plain_launch(const RouterCuda& args, CUstream_st* stream) {
  return launch(route_plain, {.grid = dim3(static_cast<unsigned>(args.tokens)), .block = dim3(32)}, stream, args);
}

}  // namespace k3::ops::cuda
