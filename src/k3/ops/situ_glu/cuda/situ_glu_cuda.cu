#include "k3/ops/cuda/rows.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_args.h"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

namespace k3::ops::cuda {
namespace {

template <bool kSitu>
struct GluOp {
  GluRows a;
  SituBetas betas;
  struct In {
    uint4 gate, up;
  };
  __device__ In load(uint32_t row, uint32_t v) const {
    return {load_bf16(a.gate, a.gate_stride, row, v), load_bf16(a.up, a.up_stride, row, v)};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    float g[8], u[8];
    unpack8(in.gate, g);
    unpack8(in.up, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = kSitu ? situ_glu(g[i], u[i], betas) : silu_glu(g[i], u[i]);
    store_bf16(a.out, a.out_stride, row, v, pack8(g));
  }
};

}  // namespace

int glu_launch(const GluRows& a, void* stream) {
  if (!a.situ) return launch_rows(GluOp<false>{a, {}}, a.rows, a.width, a.dependent, stream);
  return launch_rows(GluOp<true>{a, situ_betas(a.beta, a.linear_beta)}, a.rows, a.width, a.dependent, stream);
}

}  // namespace k3::ops::cuda
