// Purpose:  cuBLASLt, found at run time: the program links no CUDA library but cudart.
// Shapes:   none.
// Units:    none.
// Memory:   the library stays loaded for the life of the process. Descriptors, layouts and products are owned by what holds them.
// Threads:  cublas_lt() may be called from any thread.
// Errors:   not_found with what was tried when the library is missing. What the library refuses is null, false, or no
//           algorithm: callers have another kernel.
// Source:   architecture 9; cuBLASLt reference.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "k3/base/result.h"

namespace k3::ops::cuda {

// The entry points in use, by the names of the library without their prefix.
struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  cublasLtHandle_t handle = nullptr;  // of the device current at the first call
};

Result<const CublasLt*> cublas_lt();

// ---- owners ----

template <class T>
struct LtFree {
  cublasStatus_t (*destroy)(T*) = nullptr;
  void operator()(T* p) const { destroy(p); }
};
using LtDesc = std::unique_ptr<cublasLtMatmulDescOpaque_t, LtFree<cublasLtMatmulDescOpaque_t>>;
using LtLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LtFree<cublasLtMatrixLayoutOpaque_t>>;

// A product with FP32 sums, op(A) op(B).
LtDesc lt_desc(const CublasLt& lt, cublasOperation_t op_a, cublasOperation_t op_b);
// Column-major, `stride` from column to column. units > 1: so many matrices, one behind the other.
LtLayout lt_layout(const CublasLt& lt, cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride, int64_t units = 1);

struct LtWanted {
  size_t workspace_bytes = 0;
  std::optional<std::array<uint32_t, 4>> alignments = {};  // of A, B, C, D in bytes; without: the library's 256
  int count = 1;
};
// The library's algorithms for D = alpha op(A) op(B) + beta C with C and D alike, best guess first. Partial sums, where there
// are any, are FP32 in the workspace and added in one order: repeatable.
std::vector<cublasLtMatmulHeuristicResult_t> lt_algorithms(const CublasLt& lt, const LtDesc& desc, const LtLayout& a, const LtLayout& b,
                                                           const LtLayout& d, const LtWanted& wanted);

// One product whose algorithm the library guesses.
struct LtProduct {
  const CublasLt* lt = nullptr;
  LtDesc desc;
  LtLayout a, b, d;
  size_t workspace_bytes = 0;
  cublasLtMatmulAlgo_t algo{};

  bool choose(const LtWanted& wanted);  // false also where a part is null
  cublasStatus_t run(float alpha, const void* left, const void* right, float beta, const void* old, void* out, void* workspace,
                     cudaStream_t stream) const;
};

}  // namespace k3::ops::cuda
