#include "k3/ops/moe/cuda/moe_grouped_kernel.cuh"

namespace k3::ops::cuda {

int moe_grouped_bf16_launch(const MoeGroupedGemm& gemm, bool down, int blocks, cudaStream_t stream) {
  return grouped::launch_product<false>(gemm, down, blocks, stream);
}

}  // namespace k3::ops::cuda
