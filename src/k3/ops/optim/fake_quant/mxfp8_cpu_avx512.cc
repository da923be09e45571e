#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/optim/fake_quant/fake_quant_kernel.h"

namespace k3::ops {

void mxfp8_groups_avx512(const float* in, int64_t groups, float* out) noexcept { mxfp8_groups<Lanes512>(in, groups, out); }

}  // namespace k3::ops
