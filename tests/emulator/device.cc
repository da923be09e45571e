// The GPU that the kernels' dispatch sees: what a test pretends, and what the machine says of a launch that failed.
#include "k3/ops/cuda/launch.h"
#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {
namespace {
DeviceInfo& known() {
  static DeviceInfo info;
  return info;
}
}  // namespace

const DeviceInfo& device_info() { return known(); }
bool plain_device() { return false; }
void pretend_device(const DeviceInfo& info) { known() = info; }
Status to_status(CudaStatus status, std::string_view what) {
  if (status.ok()) return {};
  return fail(Code::device_lost, "{}: {}", what, emulator::failure());
}

}  // namespace k3::ops::cuda
