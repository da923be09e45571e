#include "k3/ops/kda/cuda/kda_prefill_maps.h"

#include <cuda_runtime_api.h>

namespace k3::ops::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
}

}  // namespace

int kda_prefill_encode(const K3KdaPrefill& a, PrefillMaps& maps) {
  static const Encode encode = find_encoder();
  if (encode == nullptr) return static_cast<int>(cudaErrorNotSupported);
  const auto rows = [&](CUtensorMap& map, const void* base, int64_t stride) {
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(a.heads * 128), static_cast<cuuint64_t>(a.tokens)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * 2)};
    const cuuint32_t box[2] = {64, 16}, steps[2] = {1, 1};
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  const bool done = rows(maps.z, a.z, a.z_stride) && rows(maps.q, a.q, a.q_stride) && rows(maps.k, a.k, a.k_stride) &&
                    rows(maps.v, a.v, a.v_stride);
  return done ? 0 : static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace k3::ops::cuda
