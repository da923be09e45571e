#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/kda/train/kda_train_vjp_impl.h"

namespace k3::ops {

const KdaTrainKernels kKdaTrainAvx2 = kda_train_kernels<Lanes256>();

}  // namespace k3::ops
