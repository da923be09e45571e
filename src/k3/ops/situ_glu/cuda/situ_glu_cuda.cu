#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

#include "k3/ops/cuda/rows.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_args.h"

namespace k3::ops::cuda {
namespace {

template <bool kSitu>
struct GluOp {
  GluRows a;
  float inverse, linear_inverse;
  struct In {
    uint4 gate, up;
  };
  __device__ In load(uint32_t row, uint32_t v) const { return {load_bf16(a.gate, a.gate_stride, row, v), load_bf16(a.up, a.up_stride, row, v)}; }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    float g[8], u[8];
    unpack8(in.gate, g);
    unpack8(in.up, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = kSitu ? situ_glu(g[i], u[i], a.beta, inverse, a.linear_beta, linear_inverse) : silu_glu(g[i], u[i]);
    store_bf16(a.out, a.out_stride, row, v, pack8(g));
  }
};

}  // namespace

int glu_launch(const GluRows& a, void* stream) {
  if (!a.situ) return launch_rows(GluOp<false>{a, 1, 1}, a.rows, a.width, a.dependent, stream);
  return launch_rows(GluOp<true>{a, 1 / a.beta, a.linear_beta > 0 ? 1 / a.linear_beta : 0}, a.rows, a.width, a.dependent, stream);
}

}  // namespace k3::ops::cuda
