// Purpose:  embedding rows of token ids on the GPU.
// Shapes:   table [V, hidden] bf16, rows strided; ids [T] i32 in device memory; out [T, hidden] bf16. hidden is a
//           multiple of 8.
// Units:    strides in elements; no scaling factor.
// Memory:   out is overwritten.
// Threads:  asynchronous on the stream; no workspace.
// Errors:   K3_CHECK on shapes and alignment; an id outside [0, V) gives a row of zeros.
// Source:   model.md 3.1. Exact.
#pragma once

#include "k3/ops/elementwise/cuda/elementwise_cuda.h"

namespace k3::ops::cuda {

struct Embedding {
  int64_t tokens = 0, hidden = 0, vocab = 0;
  const void* table = nullptr;
  int64_t table_stride = 0;
  const int32_t* ids = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  bool dependent = false;
};
inline CudaStatus embedding_cuda(const Embedding& a, Stream stream) {
  return gather_rows_cuda({.rows = a.tokens,
                           .width = a.hidden,
                           .x = a.table,
                           .x_stride = a.table_stride,
                           .x_rows = a.vocab,
                           .index = a.ids,
                           .out = a.out,
                           .out_stride = a.out_stride,
                           .dependent = a.dependent},
                          stream);
}

}  // namespace k3::ops::cuda
