#include "k3/ops/cuda/rows.cuh"
#include "k3/ops/elementwise/cuda/elementwise_args.h"

namespace k3::ops::cuda {
namespace {

struct Two {
  uint4 x, y;
};

struct Add {
  RowPair a;
  using In = Two;
  __device__ In load(uint32_t row, uint32_t v) const { return {load_bf16(a.x, a.x_stride, row, v), load_bf16(a.y, a.y_stride, row, v)}; }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const { store_bf16(a.out, a.out_stride, row, v, add8(in.x, in.y)); }
};

struct SigmoidGate {
  RowPair a;
  using In = Two;
  __device__ In load(uint32_t row, uint32_t v) const { return {load_bf16(a.x, a.x_stride, row, v), load_bf16(a.y, a.y_stride, row, v)}; }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    float x[8], y[8];
    unpack8(in.x, x);
    unpack8(in.y, y);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = __fdividef(y[i], 1 + exp2_approx(fminf(x[i] * -1.44269504F, 126.0F)));  // __fdividef: 0 beyond 2^126
    store_bf16(a.out, a.out_stride, row, v, pack8(y));
  }
};

template <bool kFromF32, bool kToF32>
struct Convert {
  RowCopy a;
  struct In {
    float x[8];
  };
  __device__ In load(uint32_t row, uint32_t v) const {
    In in;
    if constexpr (kFromF32) {
      const float4* p = reinterpret_cast<const float4*>(element<float>(a.x, a.x_stride, row, v));
      const float4 low = p[0], high = p[1];
      in = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else {
      unpack8(load_bf16(a.x, a.x_stride, row, v), in.x);
    }
    return in;
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    if constexpr (kToF32) {
      float4* p = reinterpret_cast<float4*>(element<float>(a.out, a.out_stride, row, v));
      p[0] = {in.x[0], in.x[1], in.x[2], in.x[3]};
      p[1] = {in.x[4], in.x[5], in.x[6], in.x[7]};
    } else {
      store_bf16(a.out, a.out_stride, row, v, pack8(in.x));
    }
  }
};

struct Gather {
  RowGather a;
  using In = uint4;
  __device__ In load(uint32_t row, uint32_t v) const {
    const int64_t from = __ldg(a.index + row);
    return from >= 0 && from < a.x_rows ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.x) + a.x_stride * from + 8 * v) : uint4{};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const { store_bf16(a.out, a.out_stride, row, v, in); }
};

}  // namespace

int add_launch(const RowPair& a, void* stream) { return launch_rows(Add{a}, a.rows, a.width, a.dependent, stream); }
int sigmoid_gate_launch(const RowPair& a, void* stream) { return launch_rows(SigmoidGate{a}, a.rows, a.width, a.dependent, stream); }
int convert_launch(const RowCopy& a, void* stream) {
  if (a.x_f32 && a.out_f32) return launch_rows(Convert<true, true>{a}, a.rows, a.width, a.dependent, stream);
  if (a.x_f32) return launch_rows(Convert<true, false>{a}, a.rows, a.width, a.dependent, stream);
  if (a.out_f32) return launch_rows(Convert<false, true>{a}, a.rows, a.width, a.dependent, stream);
  return launch_rows(Convert<false, false>{a}, a.rows, a.width, a.dependent, stream);
}
int gather_rows_launch(const RowGather& a, void* stream) { return launch_rows(Gather{a}, a.rows, a.width, a.dependent, stream); }

}  // namespace k3::ops::cuda
