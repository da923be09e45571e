#include "k3/ops/attn_res/attn_res_kernel_impl.h"
#include "k3/ops/cpu/lanes_avx2.h"

namespace k3::ops {

const AttnResKernels kAttnResAvx2 = attn_res_kernels<Lanes256>();

}  // namespace k3::ops
