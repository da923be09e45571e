// First kernel of the vjp: every block of 64 tokens of every head once more from its kept state, then back through gate and norm.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/train/cuda/kda_train_inner.cuh"

namespace k3::ops::cuda {
namespace {

template <int D>
__global__ void __launch_bounds__(2 * D, 2) inner_kernel(const __grid_constant__ KdaTrainCudaArgs a) {
  K3_SHARED_ARRAY(float4, shared);
  using Inner = TrainInner<D, true>;
  Inner inner(a, *reinterpret_cast<typename Inner::Shared*>(shared), static_cast<int>(blockIdx.x) % a.pass_heads);
  const int row = static_cast<int>(blockIdx.x) / a.pass_heads;
  inner.block = a.blocks[row];
  if (inner.block.count == 0) return;
  inner.start = a.offsets[inner.block.sequence];
  inner.slot = static_cast<int64_t>(row) * a.pass_heads + inner.pass_head;
  inner.fetch(a.gate, inner.s.gate);
  inner.inputs();
  inner.inverses();
  inner.fetch(a.dy, inner.s.dy);
  inner.keep_operands();
  float state[D / 8][4];
  load_state<D>(state, static_cast<const __nv_bfloat16*>(a.kept) + (static_cast<int64_t>(row) * a.heads + inner.head) * D * D);
  cp_async_wait<0>();
  __syncthreads();
  const float weight[2] = {inner.norm_weight(0), inner.norm_weight(1)};
  float d_norm[2] = {0, 0};
  scale_columns<D>(state, inner.s.edge[0]);
#pragma unroll 1
  for (int tile = 0; tile < kTrainTiles; ++tile) {
    uint32_t u[4];
    float o[2][4];
    inner.recur(state, tile, u, o);
    store_turned(inner.scratch(a.u) + kTrainTile * tile * D + 16 * inner.warp, D, u, kTrainTile);
    inner.back_outputs(tile, o, weight, d_norm);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = d_norm[i];
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    float* to = a.sums + inner.slot * KdaTrainScratch<D>::kSums + (3 * kTrainTaps + 2) * D;
    if (inner.lane % 4 == 0) to[16 * inner.warp + inner.lane / 4 + 8 * i] = sum;
  }
}

template <int D>
int start(const KdaTrainCudaArgs& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.rows * a.pass_heads));
  o.block = dim3(2 * D);
  o.shared_bytes = static_cast<int>(sizeof(typename TrainInner<D, true>::Shared));
  return launch(inner_kernel<D>, o, stream, a);
}

}  // namespace

int kda_train_inner_launch(const KdaTrainCudaArgs& a, int dim, CUstream_st* stream) {
  return dim == 128 ? start<128>(a, stream) : dim == 64 ? start<64>(a, stream) : start<32>(a, stream);
}

}  // namespace k3::ops::cuda
