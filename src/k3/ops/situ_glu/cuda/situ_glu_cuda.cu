#include "k3/ops/cuda/rows.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_args.h"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

namespace k3::ops::cuda {
namespace {

enum class Form { silu, situ, situ_linear, situ_four, situ_four_linear };

template <Form kForm>
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
    for (int i = 0; i < 8; ++i) {
      if constexpr (kForm == Form::silu) {
        g[i] = silu_glu(g[i], u[i]);
      } else {
        constexpr bool kFour = kForm == Form::situ_four || kForm == Form::situ_four_linear;
        g[i] = situ_glu < kFour, kForm == Form::situ_linear || kForm == Form::situ_four_linear > (g[i], u[i], betas);
      }
    }
    store_bf16(a.out, a.out_stride, row, v, pack8(g));
  }
};

}  // namespace

int glu_launch(const GluRows& a, void* stream) {
  const SituBetas betas = situ_betas(a.beta, a.linear_beta);
  const auto run = [&](const auto& op) { return launch_rows(op, a.rows, a.width, a.dependent, stream); };
  if (!a.situ) return run(GluOp<Form::silu>{a, betas});
  if (a.beta == 4)
    return a.linear_beta > 0 ? run(GluOp<Form::situ_four_linear>{a, betas}) : run(GluOp<Form::situ_four>{a, betas});
  return a.linear_beta > 0 ? run(GluOp<Form::situ_linear>{a, betas}) : run(GluOp<Form::situ>{a, betas});
}

}  // namespace k3::ops::cuda
