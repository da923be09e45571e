#include "k3/tensor/device.h"

#include <charconv>

namespace k3 {

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

}  // namespace k3
