#include "k3/ops/cpu/lanes.h"
#include "k3/ops/mla/mla_kernel_impl.h"

namespace k3::ops {

const MlaKernels kMlaPortable = mla_kernels<LanesPortable>();

}  // namespace k3::ops
