#include "k3/ops/cpu/lanes.h"
#include "k3/ops/optim/fake_quant/fake_quant_kernel.h"

namespace k3::ops {

void mxfp8_groups_portable(const float* in, int64_t groups, float* out) noexcept { mxfp8_groups<LanesPortable>(in, groups, out); }

}  // namespace k3::ops
