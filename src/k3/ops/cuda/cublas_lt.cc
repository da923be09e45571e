#include "k3/ops/cuda/cublas_lt.h"

#include <dlfcn.h>

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

}  // namespace k3::ops::cuda
