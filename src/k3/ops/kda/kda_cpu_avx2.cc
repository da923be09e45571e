#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/kda/kda_chunk_impl.h"

namespace k3::ops {

const KdaKernels kKdaAvx2 = kda_kernels<Lanes256>();

}  // namespace k3::ops
