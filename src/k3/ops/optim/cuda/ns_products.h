// Purpose:  the three products of a Newton-Schulz step on a GPU, over many units of one shape: A = X X^T, B = c2 A + c3 A A,
//           Y = c1 X + B X.
// Shapes:   X, Y [units, r, c], A, B [units, r, r], bf16, row-major and dense; r and c multiples of 8.
// Units:    none.
// Memory:   A, B and Y are overwritten; `workspace` (kNsWorkspace bytes) is scratch of cuBLASLt.
// Threads:  asynchronous on the stream. Algorithms are the library's first choice for a shape, looked up once and kept for the life of
//           the process behind a lock.
// Errors:   CudaStatus of a launch. Without cuBLASLt, or where it has no algorithm, a plain kernel computes (slower, the same sums
//           but for their order).
// Source:   training.md 2.1. Inputs and results BF16, sums FP32, one rounding a product: 2^-8 relative to the largest terms.
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"

namespace k3::ops::cuda {

inline constexpr int64_t kNsWorkspace = int64_t{32} << 20;

struct NsStep {
  int64_t units = 0, r = 0, c = 0;
  const void* x = nullptr;
  void* a = nullptr;
  void* b = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;
  float c1 = 0, c2 = 0, c3 = 0;
  bool plain = false;  // without the library, for tests
};

CudaStatus ns_step_cuda(const NsStep& step, Stream stream);

}  // namespace k3::ops::cuda
