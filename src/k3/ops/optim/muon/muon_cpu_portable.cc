#include "k3/ops/optim/muon/muon_kernel_impl.h"
#include "k3/ops/optim/optim_lanes.h"

namespace k3::ops {

const MuonKernels kMuonPortable = muon_kernels<OptimLanesPortable>();

}  // namespace k3::ops
