// Without CUDA: there is no device, and everything that needs one says so.
#include "k3/ops/cuda/launch.h"

namespace k3::ops::cuda {

Status to_status(CudaStatus, std::string_view what) {
  return fail(Code::unsupported, "{}: this program was built without CUDA (nvcc was not found)", what);
}

const DeviceInfo& device_info() {
  static const DeviceInfo none;
  return none;
}

}  // namespace k3::ops::cuda
