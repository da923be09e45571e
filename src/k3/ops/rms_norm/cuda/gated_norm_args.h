// Internal to ops/rms_norm. What the CUDA kernel of the gated norm per head takes; gated_norm_cuda.h explains it.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct GatedNorm {
  int64_t tokens = 0, heads = 0;
  const void* x = nullptr;  // [T, H, 128]
  int64_t x_stride = 0;     // of a token
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const float* weight = nullptr;  // [128]
  float eps = 1e-5F;
  void* out = nullptr;
  int64_t out_stride = 0;
  void* out_rest = nullptr;  // as out, its stride: what rounding cuts off out; null: nowhere
};

int gated_norm_launch(const GatedNorm& args, void* stream);

}  // namespace k3::ops::cuda
