// Purpose:  cuBLASLt, found at run time: the program links no CUDA library but cudart.
// Shapes:   none.
// Units:    none.
// Memory:   the library stays loaded for the life of the process.
// Threads:  cublas_lt() may be called from any thread.
// Errors:   not_found with what was tried when the library is missing.
// Source:   architecture 9; cuBLASLt reference.
#pragma once

#include <cublasLt.h>

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

}  // namespace k3::ops::cuda
