// The text of a hardware record. What is accepted has every cell within its limits.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/plan/hardware/hardware_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto machine = k3::plan::parse_machine({reinterpret_cast<const char*>(data), size}, "fuzz.toml");
  if (!machine.ok()) {
    K3_CHECK(k3::is_utf8(machine.error().message), "{}", machine.error().message);
    return 0;
  }
  for (const k3::plan::CellInfo& cell : k3::plan::cells(*machine)) {
    K3_CHECK(cell.value >= cell.least && cell.value <= cell.most, "{} is {}", cell.name, cell.value);
  }
  return 0;
}
