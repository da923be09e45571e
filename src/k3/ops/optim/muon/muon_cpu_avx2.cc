#include "k3/ops/optim/muon/muon_kernel_impl.h"
#include "k3/ops/optim/optim_lanes_avx2.h"

namespace k3::ops {

const MuonKernels kMuonAvx2 = muon_kernels<OptimLanes256>();

}  // namespace k3::ops
