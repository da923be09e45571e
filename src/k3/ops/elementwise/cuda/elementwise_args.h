// Internal to ops/elementwise. What the CUDA kernels take; elementwise_cuda.h explains it. No CUDA header, no Result.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct RowPair {  // out = x (op) y, [rows, width] each
  int64_t rows = 0, width = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* y = nullptr;
  int64_t y_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool dependent = false;
};

struct RowCopy {
  int64_t rows = 0, width = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  bool x_f32 = false;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool out_f32 = false;
  bool dependent = false;
};

struct RowGather {
  int64_t rows = 0, width = 0;  // of out
  const void* x = nullptr;
  int64_t x_stride = 0, x_rows = 0;
  const int32_t* index = nullptr;  // [rows]
  void* out = nullptr;
  int64_t out_stride = 0;
  bool dependent = false;
};

int add_launch(const RowPair& a, void* stream);
int sigmoid_gate_launch(const RowPair& a, void* stream);
int convert_launch(const RowCopy& a, void* stream);
int gather_rows_launch(const RowGather& a, void* stream);

}  // namespace k3::ops::cuda
