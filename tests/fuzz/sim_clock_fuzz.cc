// A file of measured steps. What is accepted either makes a clock whose every step takes a finite positive time or is refused by name.
#include <cmath>
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/plan/sim/fitted_clock.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto points = k3::plan::parse_points({reinterpret_cast<const char*>(data), size});
  if (!points.ok()) {
    K3_CHECK(k3::is_utf8(points.error().message), "{}", points.error().message);
    return 0;
  }
  K3_CHECK(!points->empty());
  if (points->size() > 1000) return 0;  // fitting more says nothing new and takes long
  const auto clock = k3::plan::FittedClock::fit(*points);
  if (!clock.ok()) {
    K3_CHECK(k3::is_utf8(clock.error().message), "{}", clock.error().message);
    return 0;
  }
  for (const int64_t tokens : {1, 7, 4096}) {
    const k3::plan::StepPart parts[] = {{tokens, 100, false}, {1, 5000, true}};
    const double seconds = (*clock)->step_seconds(parts);
    K3_CHECK(std::isfinite(seconds) && seconds > 0, "{}", seconds);
  }
  return 0;
}
