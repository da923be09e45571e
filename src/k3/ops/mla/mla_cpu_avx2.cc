#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/mla/mla_kernel_impl.h"

namespace k3::ops {

const MlaKernels kMlaAvx2 = mla_kernels<Lanes256>();

}  // namespace k3::ops
