#include "k3/ops/cpu/vec_apply.h"

#include "k3/ops/cpu/vec_apply_kernel.h"
#include "k3/ops/cpu/vec_portable.h"

namespace k3::ops {

void vec_apply_portable(VecFn fn, const float* x, int64_t count, float* y) noexcept {
  vec_loop<VecPortable>(fn, x, count, y);
}

void vec_apply(Isa isa, VecFn fn, const float* x, int64_t count, float* y) noexcept {
  if (isa >= Isa::avx512) return vec_apply_avx512(fn, x, count, y);
  if (isa == Isa::avx2) return vec_apply_avx2(fn, x, count, y);
  vec_apply_portable(fn, x, count, y);
}

}  // namespace k3::ops
