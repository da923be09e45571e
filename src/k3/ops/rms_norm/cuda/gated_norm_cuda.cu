#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/rms_norm/cuda/gated_norm_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 8;

// One warp a (token, head): four neighbours a lane.
__global__ void __launch_bounds__(32 * kWarps) gated_norm(GatedNorm a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  dependent_begin();
  if (row >= a.tokens * a.heads) return;
  const int64_t token = row / a.heads, column = row % a.heads * 128 + threadIdx.x % 32 * 4;
  const uint2 x = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(a.x) + token * a.x_stride + column);
  const uint2 g = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(a.gate) + token * a.gate_stride + column);
  const float4 w = *reinterpret_cast<const float4*>(a.weight + threadIdx.x % 32 * 4);
  const float v[4] = {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
  const float r = rsqrtf(warp_sum(v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]) / 128 + a.eps);
  const auto gated = [&](float value, float weight, float gate) { return value * r * weight / (1 + __expf(-gate)); };
  const float y[4] = {gated(v[0], w.x, low_bf16(g.x)), gated(v[1], w.y, high_bf16(g.x)), gated(v[2], w.z, low_bf16(g.y)),
                      gated(v[3], w.w, high_bf16(g.y))};
  const uint2 out = {pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3])};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + token * a.out_stride + column) = out;
  if (a.out_rest == nullptr) return;
  const uint2 rest = {pack_bf16(y[0] - low_bf16(out.x), y[1] - high_bf16(out.x)), pack_bf16(y[2] - low_bf16(out.y), y[3] - high_bf16(out.y))};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out_rest) + token * a.out_stride + column) = rest;
}

}  // namespace

int gated_norm_launch(const GatedNorm& args, void* stream) {
  const int64_t rows = args.tokens * args.heads;
  if (rows == 0) return 0;
  const LaunchOptions options{
      .grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), .block = dim3(32 * kWarps), .dependent = true};
  return launch(gated_norm, options, static_cast<cudaStream_t>(stream), args);
}

}  // namespace k3::ops::cuda
