#include "k3/ops/attn_res/attn_res_kernel_impl.h"
#include "k3/ops/cpu/lanes_avx512.h"

namespace k3::ops {

const AttnResKernels kAttnResAvx512 = attn_res_kernels<Lanes512>();

}  // namespace k3::ops
