#include "k3/ops/attn_res/attn_res_kernel_impl.h"
#include "k3/ops/cpu/lanes.h"

namespace k3::ops {

const AttnResKernels kAttnResPortable = attn_res_kernels<LanesPortable>();

}  // namespace k3::ops
