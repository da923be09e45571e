#include "k3/ops/cpu/vec_math_avx2.h"
#include "k3/ops/situ_glu/situ_glu_vjp_kernel.h"

namespace k3::ops {

void glu_row_avx2(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) noexcept {
  glu_loop<Vec256>(gate, up, count, kind, out);
}

void glu_vjp_avx2(const float* gate, const float* up, const float* dout, int64_t count, const GluArgs& kind, float* dgate,
                  float* dup) noexcept {
  glu_vjp_loop<Vec256>(gate, up, dout, count, kind, dgate, dup);
}

}  // namespace k3::ops
