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
  __device__ In load(uint32_t row, uint32_t v) const {
    return {load_bf16(a.x, a.x_stride, row, v), load_bf16(a.y, a.y_stride, row, v)};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    store_bf16(a.out, a.out_stride, row, v, add8(in.x, in.y));
  }
};

struct SigmoidGate {
  RowPair a;
  using In = Two;
  __device__ In load(uint32_t row, uint32_t v) const {
    return {load_bf16(a.x, a.x_stride, row, v), load_bf16(a.y, a.y_stride, row, v)};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    float x[8], y[8];
    unpack8(in.x, x);
    unpack8(in.y, y);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      y[i] = __fdividef(y[i], 1 + exp2_approx(fminf(x[i] * -1.44269504F, 126.0F)));  // __fdividef: 0 beyond 2^126
    store_bf16(a.out, a.out_stride, row, v, pack8(y));
  }
};

// Of any width; the same arithmetic.
__global__ void sigmoid_gate_any(const RowPair a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.rows * a.width) return;
  const int64_t row = i / a.width, column = i % a.width;
  const float x = __bfloat162float(static_cast<const __nv_bfloat16*>(a.x)[row * a.x_stride + column]);
  const float y = __bfloat162float(static_cast<const __nv_bfloat16*>(a.y)[row * a.y_stride + column]);
  static_cast<__nv_bfloat16*>(a.out)[row * a.out_stride + column] =
      __float2bfloat16(__fdividef(y, 1 + exp2_approx(fminf(x * -1.44269504F, 126.0F))));
}

__device__ __forceinline__ uint2* quad_bf16(const void* p, int64_t stride, uint32_t row, uint32_t v) {
  return reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(const_cast<void*>(p)) + stride * row) + v;
}
__device__ __forceinline__ float4* quad_f32(const void* p, int64_t stride, uint32_t row, uint32_t v) {
  return reinterpret_cast<float4*>(static_cast<float*>(const_cast<void*>(p)) + stride * row) + v;
}

// Four numbers a vector: with eight a warp would touch every other 16 bytes of the FP32 side.
template <bool kFromF32, bool kToF32>
struct Convert {
  RowCopy a;
  using In = float4;
  __device__ In load(uint32_t row, uint32_t v) const {
    if constexpr (kFromF32) return *quad_f32(a.x, a.x_stride, row, v);
    const uint2 x = *quad_bf16(a.x, a.x_stride, row, v);
    return {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const {
    if constexpr (kToF32) {
      *quad_f32(a.out, a.out_stride, row, v) = in;
    } else {
      *quad_bf16(a.out, a.out_stride, row, v) = {pack_bf16(in.x, in.y), pack_bf16(in.z, in.w)};
    }
  }
};

struct Copy {  // BF16
  RowCopy a;
  using In = uint4;
  __device__ In load(uint32_t row, uint32_t v) const { return load_bf16(a.x, a.x_stride, row, v); }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const { store_bf16(a.out, a.out_stride, row, v, in); }
};

struct Gather {
  RowGather a;
  using In = uint4;
  __device__ In load(uint32_t row, uint32_t v) const {
    const int64_t from = __ldg(a.index + row);
    return from >= 0 && from < a.x_rows
               ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.x) + a.x_stride * from + 8 * v)
               : uint4{};
  }
  __device__ void store(uint32_t row, uint32_t v, const In& in) const { store_bf16(a.out, a.out_stride, row, v, in); }
};

}  // namespace

int add_launch(const RowPair& a, void* stream) { return launch_rows(Add{a}, a.rows, a.width, a.dependent, stream); }
int sigmoid_gate_launch(const RowPair& a, void* stream) {
  if (((a.width | a.x_stride | a.y_stride | a.out_stride) & 7) != 0) {
    constexpr int kThreads = 256;
    const auto blocks = static_cast<unsigned>((a.rows * a.width + kThreads - 1) / kThreads);
    return launch(sigmoid_gate_any, {.grid = dim3(blocks), .block = dim3(kThreads)}, static_cast<cudaStream_t>(stream), a);
  }
  return launch_rows(SigmoidGate{a}, a.rows, a.width, a.dependent, stream);
}
int convert_launch(const RowCopy& a, void* stream) {
  if (!a.x_f32 && !a.out_f32) return launch_rows(Copy{a}, a.rows, a.width, a.dependent, stream);
  if (a.x_f32 && a.out_f32) return launch_rows<4>(Convert<true, true>{a}, a.rows, a.width, a.dependent, stream);
  if (a.x_f32) return launch_rows<4>(Convert<true, false>{a}, a.rows, a.width, a.dependent, stream);
  return launch_rows<4>(Convert<false, true>{a}, a.rows, a.width, a.dependent, stream);
}
int gather_rows_launch(const RowGather& a, void* stream) {
  return launch_rows(Gather{a}, a.rows, a.width, a.dependent, stream);
}

}  // namespace k3::ops::cuda
