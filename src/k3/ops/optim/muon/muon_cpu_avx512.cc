#include "k3/ops/optim/muon/muon_kernel_impl.h"
#include "k3/ops/optim/optim_lanes_avx512.h"

namespace k3::ops {

const MuonKernels kMuonAvx512 = muon_kernels<OptimLanes512>();

}  // namespace k3::ops
