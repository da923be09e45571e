// The weighted sum as a kernel of its own. A cluster of blocks has a token; each block some columns.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/moe/cuda/moe_combine_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ MoeCombineCuda p, int parts) {
  K3_SHARED_BYTES(memory, 16);
  auto* const held = reinterpret_cast<float4*>(memory);
  const int token = static_cast<int>(blockIdx.x) / parts;
  pdl_wait();
  pdl_release();
  if (p.token_count != nullptr && token >= *p.token_count) return;  // the whole cluster
  combine_token<kThreads>(p, p.ids, p.weights, token, static_cast<int>(blockIdx.x) % parts, parts, held, [] {});
}

}  // namespace

int moe_combine_launch(const MoeCombineCuda& p, CUstream_st* stream) {
  const int parts = p.tokens <= 32 ? 4 : p.tokens <= 64 ? 2 : 1;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>(p.tokens * parts)),
                  .block = dim3(kThreads),
                  .shared_bytes = (p.width / 4 + parts - 1) / parts * 16,
                  .cluster = parts,
                  .dependent = true};
  return launch(combine, o, stream, p, parts);
}

}  // namespace k3::ops::cuda
