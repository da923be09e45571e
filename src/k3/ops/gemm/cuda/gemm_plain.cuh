// Internal to ops/gemm. One product of gemm_plain_cuda.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace k3::ops::cuda {

enum class PlainCodec { bf16, i8, mxfp4 };

struct PlainProduct {  // y [tokens, rows] = x [tokens, in] w^T
  const void *x = nullptr, *w = nullptr;
  const uint8_t* scales = nullptr;
  void* y = nullptr;
  int64_t tokens = 0, rows = 0, x_stride = 0, y_stride = 0;
  int in = 0;
  PlainCodec codec = PlainCodec::bf16;
  bool y_f32 = false, accumulate = false;
};

int gemm_plain_launch(const PlainProduct& product, cudaStream_t stream);

}  // namespace k3::ops::cuda
