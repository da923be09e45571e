#include "k3/tensor/device.h"

#include <charconv>

namespace k3 {

<<<<<<< HEAD
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

=======
Result<Device> Device::parse(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{Kind::cuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view digits = text.substr(kPrefix.size());
    int index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0 && digits.front() != '-') {
      return Device{Kind::cuda, index};
    }
  }
  return fail(Code::invalid_argument, "'{}' is no device (cpu, cuda or cuda:N)", text);
}

std::string Device::text() const { return kind == Kind::cpu ? "cpu" : fmt::format("cuda:{}", index); }

>>>>>>> gemm
}  // namespace k3
