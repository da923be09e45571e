#include "k3/ops/cpu/lanes.h"
#include "k3/ops/kda/train/kda_train_vjp_impl.h"

namespace k3::ops {

const KdaTrainKernels kKdaTrainPortable = kda_train_kernels<LanesPortable>();

}  // namespace k3::ops
