// Forward of kda_train: a thread block takes a (sequence, head) and goes through its blocks of 64 tokens; the state stays in registers.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/train/cuda/kda_train_inner.cuh"

namespace k3::ops::cuda {
namespace {

template <int D>
__global__ void __launch_bounds__(2 * D, 2) forward(const __grid_constant__ KdaTrainCudaArgs a) {
  K3_SHARED_ARRAY(float4, shared);
  using Inner = TrainInner<D, false>;
  Inner inner(a, *reinterpret_cast<typename Inner::Shared*>(shared), static_cast<int>(blockIdx.x) % a.pass_heads);
  const int sequence = static_cast<int>(blockIdx.x) / a.pass_heads;
  const int begin = a.offsets[sequence], length = a.offsets[sequence + 1] - begin;
  const int64_t place = (static_cast<int64_t>(sequence) * a.heads + inner.head) * D * D;
  float state[D / 8][4];
  load_state<D>(state, a.initial == nullptr ? nullptr : a.initial + place);
  inner.start = begin;
  const float weight[2] = {inner.norm_weight(0), inner.norm_weight(1)};
  for (int first = 0; first < length; first += kTrainRows) {
    inner.block = {begin + first, min(kTrainRows, length - first), sequence, 0};
    inner.fetch(a.gate, inner.s.gate);
    inner.inputs();
    inner.inverses();
    if (a.keep != 0) {
      const int64_t row = begin / kTrainRows + sequence + first / kTrainRows;
      store_state<D>(state, static_cast<__nv_bfloat16*>(a.kept) + (row * a.heads + inner.head) * D * D);
    }
    cp_async_wait<0>();
    __syncthreads();
    scale_columns<D>(state, inner.s.edge[0]);
#pragma unroll 1
    for (int tile = 0; tile < kTrainTiles; ++tile) {
      uint32_t u[4];
      float o[2][4];
      inner.recur(state, tile, u, o);
      inner.outputs(tile, o, weight);
    }
    __syncthreads();
  }
  if (a.final != nullptr) store_state<D>(state, a.final + place);
}

template <int D>
int start(const KdaTrainCudaArgs& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.sequences * a.pass_heads));
  o.block = dim3(2 * D);
  o.shared_bytes = static_cast<int>(sizeof(typename TrainInner<D, false>::Shared));
  return launch(forward<D>, o, stream, a);
}

}  // namespace

int kda_train_forward_launch(const KdaTrainCudaArgs& a, int dim, CUstream_st* stream) {
  return dim == 128 ? start<128>(a, stream) : dim == 64 ? start<64>(a, stream) : start<32>(a, stream);
}

}  // namespace k3::ops::cuda
