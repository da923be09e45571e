#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/kda/train/kda_train_vjp_impl.h"

namespace k3::ops {

const KdaTrainKernels kKdaTrainAvx512 = kda_train_kernels<Lanes512>();

}  // namespace k3::ops
