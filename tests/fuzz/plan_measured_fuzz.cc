// The JSON of a measured run (k3 bench, k3 loadgen). Every point that is accepted is one the cost model can be asked for.
#include <cmath>
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/plan/calibrate/measured_runs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto points = k3::plan::parse_measured_run({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (!points.ok()) {
    K3_CHECK(k3::is_utf8(points.error().message), "{}", points.error().message);
    return 0;
  }
  K3_CHECK(!points->empty());
  for (const auto& p : *points) {
    K3_CHECK(std::isfinite(p.seconds) && p.seconds > 0 && std::isfinite(p.spread) && p.spread >= 0, "{}", p.name);
    K3_CHECK(p.users >= 1 && p.context >= 0 && p.past >= 0 && p.input >= 0 && p.output >= 0, "{}", p.name);
  }
  return 0;
}
