#include "k3/ops/situ_glu/cuda/situ_glu_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {

CudaStatus glu_cuda(const GluRows& a, Stream stream) {
  if (a.rows == 0) return {};
  K3_CHECK(a.width > 0 && a.width % 8 == 0 && a.rows * (a.width / 8) < int64_t{1} << 31, "glu: [{}, {}]", a.rows, a.width);
  K3_CHECK(!a.situ || a.beta > 0, "glu: beta {}", a.beta);
  for (const void* p : {a.gate, a.up, static_cast<const void*>(a.out)}) {
    K3_CHECK(p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0, "glu: rows not aligned to 16 bytes");
  }
  for (const int64_t stride : {a.gate_stride, a.up_stride, a.out_stride})
    K3_CHECK(stride % 8 == 0, "glu: stride {}", stride);
  return {glu_launch(a, stream)};
}

}  // namespace k3::ops::cuda
