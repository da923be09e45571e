#include "k3/ops/cpu/lanes.h"
#include "k3/ops/short_conv/short_conv_kernel_impl.h"

namespace k3::ops {

const ConvKernel kConvPortable = conv_kernel<LanesPortable>;

}  // namespace k3::ops
