#include "k3/ops/cuda/tensor_map.h"

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

Encode encoder() {
  static const Encode encode = find_encoder();
  return encode;
}

}  // namespace

int encode_line_map(CUtensorMap* map, const LineMapShape& shape) {
  const Encode encode = encoder();
  if (encode == nullptr) return static_cast<int>(cudaErrorNotSupported);
  const auto size = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[4] = {64, size(shape.lines), size(shape.rows), size(shape.matrices)};
  const cuuint64_t strides[3] = {128, size(shape.row_bytes), size(shape.matrix_bytes)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(shape.box_lines), static_cast<cuuint32_t>(shape.box_rows), 1},
                   steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(shape.base), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : static_cast<int>(cudaErrorInvalidValue);
}

int encode_map(CUtensorMap* map, const MapShape& shape) {
  const Encode encode = encoder();
  if (encode == nullptr) return static_cast<int>(cudaErrorNotSupported);
  cuuint64_t sizes[3], strides[2];
  cuuint32_t box[3], steps[3] = {1, 1, 1};
  for (int i = 0; i < shape.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(shape.strides[i]) * 2;
  }
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(shape.rank), const_cast<void*>(shape.base),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace k3::ops::cuda
