#include "k3/ops/kda/cuda/kda_any_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {

CudaStatus kda_any_cuda(const KdaAnyArgs& a, Stream stream) {
  K3_CHECK(a.dim >= 1 && a.dim <= kKdaAnyDim && a.taps >= 2 && a.taps <= kKdaAnyTaps, "kda: heads of {}, {} taps", a.dim, a.taps);
  K3_CHECK(a.weights.heads > 0 && a.sequences >= 0 && a.exports >= 0, "kda: {} heads, {} sequences", a.weights.heads, a.sequences);
  K3_CHECK(a.offsets != nullptr && a.slots.state != nullptr && a.slots.conv != nullptr && a.slots.slots != nullptr && a.rows.out != nullptr,
           "kda: a null pointer");
  if (a.sequences == 0) return {};
  return {kda_any_launch(a, stream)};
}

}  // namespace k3::ops::cuda
