// The text of a file of published measurements. What is accepted has what its quantity needs.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/plan/published/measurements.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto rows = k3::plan::parse_measurements({reinterpret_cast<const char*>(data), size}, "fuzz.toml");
  if (!rows.ok()) {
    K3_CHECK(k3::is_utf8(rows.error().message), "{}", rows.error().message);
    return 0;
  }
  for (const auto& row : *rows) {
    K3_CHECK(row.measured > 0 && row.layout.tp >= 1 && row.layout.dp >= 1 && row.layout.pp >= 1);
    K3_CHECK((row.batch > 0 && row.context > 0) || (row.users > 0 && row.input > 0 && row.output > 0) ||
             (row.sequences > 0 && row.input > 0));
  }
  return 0;
}
