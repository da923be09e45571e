#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/short_conv/short_conv_kernel_impl.h"

namespace k3::ops {

const ConvKernel kConvAvx512 = conv_kernel<Lanes512>;

}  // namespace k3::ops
