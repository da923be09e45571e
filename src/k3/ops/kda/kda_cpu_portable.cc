#include "k3/ops/cpu/lanes.h"
#include "k3/ops/kda/kda_chunk_impl.h"

namespace k3::ops {

const KdaKernels kKdaPortable = kda_kernels<LanesPortable>();

}  // namespace k3::ops
