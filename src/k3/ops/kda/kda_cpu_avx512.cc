#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/kda/kda_chunk_impl.h"

namespace k3::ops {

const KdaKernels kKdaAvx512 = kda_kernels<Lanes512>();

}  // namespace k3::ops
