#include "k3/ops/cpu/lanes_avx2.h"
#include "k3/ops/short_conv/short_conv_kernel_impl.h"

namespace k3::ops {

const ConvKernel kConvAvx2 = conv_kernel<Lanes256>;

}  // namespace k3::ops
