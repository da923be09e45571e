#include "k3/ops/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

namespace k3::ops::cuda {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so.13"};

Result<CublasLt> open_library() {
  void* library = nullptr;
  std::string tried;
  for (const char* name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    tried += tried.empty() ? name : fmt::format(", {}", name);
  }
  if (library == nullptr) {
    return fail(Code::not_found, "cuBLASLt is not installed or not on the library path (tried {}); it comes with CUDA 13 "
                "(set LD_LIBRARY_PATH to the folder that holds libcublasLt.so.13)", tried);
  }
  CublasLt lt;
  std::string missing;
  const auto find = [&](auto& entry, const char* name) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
    if (entry == nullptr) missing = name;
  };
  find(lt.create, "cublasLtCreate");
  find(lt.destroy, "cublasLtDestroy");
  find(lt.desc_create, "cublasLtMatmulDescCreate");
  find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.matmul, "cublasLtMatmul");
  find(lt.version, "cublasLtGetVersion");
  if (!missing.empty()) return fail(Code::unsupported, "the cuBLASLt that was found has no {}", missing);
  const cublasStatus_t status = lt.create(&lt.handle);
  if (status != CUBLAS_STATUS_SUCCESS) return fail(Code::device_lost, "cublasLtCreate: status {}", static_cast<int>(status));
  return lt;
}

}  // namespace

Result<const CublasLt*> cublas_lt() {
  static const Result<CublasLt> library = open_library();
  if (!library.ok()) return library.error();
  return &library.value();
}

LtDesc lt_desc(const CublasLt& lt, cublasOperation_t op_a, cublasOperation_t op_b) {
  cublasLtMatmulDesc_t made = nullptr;
  if (lt.desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return {};
  LtDesc desc(made, {lt.desc_destroy});
  if (lt.desc_set(made, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a) != CUBLAS_STATUS_SUCCESS ||
      lt.desc_set(made, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  return desc;
}

LtLayout lt_layout(const CublasLt& lt, cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride, int64_t units) {
  cublasLtMatrixLayout_t made = nullptr;
  if (lt.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride) != CUBLAS_STATUS_SUCCESS) return {};
  LtLayout layout(made, {lt.layout_destroy});
  if (units == 1) return layout;
  const auto batch = static_cast<int32_t>(units);
  const int64_t offset = stride * cols;
  if (lt.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) != CUBLAS_STATUS_SUCCESS ||
      lt.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  return layout;
}

std::vector<cublasLtMatmulHeuristicResult_t> lt_algorithms(const CublasLt& lt, const LtDesc& desc, const LtLayout& a, const LtLayout& b,
                                                           const LtLayout& d, const LtWanted& wanted) {
  cublasLtMatmulPreference_t made = nullptr;
  if (!desc || !a || !b || !d || lt.preference_create(&made) != CUBLAS_STATUS_SUCCESS) return {};
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, LtFree<cublasLtMatmulPreferenceOpaque_t>> preference(made, {lt.preference_destroy});
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  lt.preference_set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &wanted.workspace_bytes, sizeof wanted.workspace_bytes);
  lt.preference_set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
  if (wanted.alignments) {
    constexpr cublasLtMatmulPreferenceAttributes_t kOperands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < 4; ++i) lt.preference_set(made, kOperands[i], &(*wanted.alignments)[i], sizeof(uint32_t));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(wanted.count));
  int count = 0;
  if (lt.heuristic(lt.handle, desc.get(), a.get(), b.get(), d.get(), d.get(), made, wanted.count, found.data(), &count) !=
      CUBLAS_STATUS_SUCCESS) {
    count = 0;
  }
  found.resize(static_cast<size_t>(std::max(count, 0)));
  return found;
}

bool LtProduct::choose(const LtWanted& wanted) {
  workspace_bytes = wanted.workspace_bytes;
  const std::vector<cublasLtMatmulHeuristicResult_t> found = lt_algorithms(*lt, desc, a, b, d, wanted);
  if (found.empty()) return false;
  algo = found.front().algo;
  return true;
}

cublasStatus_t LtProduct::run(float alpha, const void* left, const void* right, float beta, const void* old, void* out, void* workspace,
                              cudaStream_t stream) const {
  return lt->matmul(lt->handle, desc.get(), &alpha, left, a.get(), right, b.get(), &beta, old, d.get(), out, d.get(), &algo, workspace,
                    workspace_bytes, stream);
}

}  // namespace k3::ops::cuda
