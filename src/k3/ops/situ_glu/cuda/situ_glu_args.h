// Internal to ops/situ_glu. What the CUDA kernel takes; situ_glu_cuda.h explains it. No CUDA header, no Result.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct GluRows {
  int64_t rows = 0, width = 0;  // of out
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const void* up = nullptr;
  int64_t up_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool situ = false;      // else SwiGLU
  float beta = 1.0F;      // situ
  float linear_beta = 0;  // situ; 0: up passes through
  bool dependent = false;
};

int glu_launch(const GluRows& a, void* stream);

}  // namespace k3::ops::cuda
