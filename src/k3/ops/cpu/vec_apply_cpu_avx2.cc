#include "k3/ops/cpu/vec_apply_kernel.h"
#include "k3/ops/cpu/vec_math_avx2.h"

namespace k3::ops {

void vec_apply_avx2(VecFn fn, const float* x, int64_t count, float* y) noexcept { vec_loop<Vec256>(fn, x, count, y); }

}  // namespace k3::ops
