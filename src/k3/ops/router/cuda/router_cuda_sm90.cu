// A warp has a token.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/router/cuda/router_cuda.cuh"
#include "k3/ops/router/cuda/router_token.cuh"

namespace k3::ops::cuda {
namespace {

template <int kHeld, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) route(const __grid_constant__ RouterCuda p) {
  __shared__ uint2 candidates[kWarps][kRouterCandidates];  // key, expert
  __shared__ int chosen[kWarps][kRouterTopk];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            token = static_cast<int>(blockIdx.x) * kWarps + warp;
  float bias[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) bias[i] = p.bias != nullptr && i * 32 + lane < p.experts ? p.bias[i * 32 + lane] : 0;
  pdl_wait();
  pdl_release();
  if (token >= p.tokens) return;
  const float* logits = p.logits + static_cast<int64_t>(token) * p.experts;
  float x[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) x[i] = i * 32 + lane < p.experts ? logits[i * 32 + lane] : 0;
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keys[i] = i * 32 + lane < p.experts ? route_key(x[i], bias[i]) : 0;
  const RouteChoice choice =
      route_token({p.experts, p.topk, p.renormalise, p.scale}, logits, keys, candidates[warp], chosen[warp]);
  if (lane < p.topk) {
    const int64_t at = static_cast<int64_t>(token) * p.topk + lane;
    const int local = choice.expert - p.local_first;
    p.ids[at] = p.local_count > 0 && (local < 0 || local >= p.local_count) ? -1 : choice.expert;
    p.weights[at] = choice.weight;
  }
}

template <int kHeld>
int launch_held(const RouterCuda& a, cudaStream_t stream) {
  // Few tokens: a multiprocessor each.
  const int warps = a.tokens <= 132 ? 1 : 4;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>((a.tokens + warps - 1) / warps)),
                  .block = dim3(static_cast<unsigned>(32 * warps)),
                  .dependent = true};
  return warps == 1 ? launch(route<kHeld, 1>, o, stream, a) : launch(route<kHeld, 4>, o, stream, a);
}

}  // namespace

int router_launch(const RouterCuda& a, CUstream_st* stream) {
  if (a.experts <= 256) return launch_held<8>(a, stream);
  if (a.experts <= 896) return launch_held<28>(a, stream);
  return launch_held<32>(a, stream);
}

}  // namespace k3::ops::cuda
