#include "k3/ops/cpu/vec_math_avx512.h"
#include "k3/ops/rms_norm/rms_norm_kernel.h"

namespace k3::ops {

void norm_row_avx512(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) noexcept {
  norm_row<Vec512>(x, weight, gate, eps, n, out);
}

}  // namespace k3::ops
