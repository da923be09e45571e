#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/mla/mla_kernel_impl.h"

namespace k3::ops {

const MlaKernels kMlaAvx512 = mla_kernels<Lanes512>();

}  // namespace k3::ops
