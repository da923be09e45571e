// Internal to ops/rms_norm. What the CUDA kernel takes; rms_norm_cuda.h explains it. No CUDA header, no Result.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct RmsNorm {
  int64_t tokens = 0, width = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* delta = nullptr;  // null: nothing is added
  int64_t delta_stride = 0;
  void* sum_out = nullptr;  // x + delta; may be x; null: not stored
  int64_t sum_out_stride = 0;
  const void* weight = nullptr;
  bool weight_bf16 = false;
  float eps = 1e-5F;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool dependent = false;
};

struct RmsNormPlan {
  int vectors = 1;             // of 8 numbers, a thread: 1, 2, 4, 8
  int threads = 32, rows = 1;  // threads a row, rows a block
  int64_t grid = 0;
};

int rms_norm_launch(const RmsNorm& args, const RmsNormPlan& plan, void* stream);

}  // namespace k3::ops::cuda
