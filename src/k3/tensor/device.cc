#include "k3/tensor/device.h"

#include <charconv>

namespace k3 {

std::string device_name(Device device) { return device.is_cuda() ? "cuda:" + std::to_string(device.cuda) : "cpu"; }

Result<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  Device device{0};
  if (text != "cuda") {
    constexpr std::string_view kPrefix = "cuda:";
    const bool prefixed = text.starts_with(kPrefix);
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + (prefixed ? kPrefix.size() : 0), end, device.cuda);
    if (!prefixed || error != std::errc() || at != end || device.cuda < 0) {
      return fail(Code::invalid_argument, "'{}' is no device; say cpu, cuda, or cuda:1 for the second GPU", text);
    }
  }
  K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(device));
  (void)memory;
  return device;
}

}  // namespace k3
