// The JSON of a recorded run, and that of another simulation to compare with. Times of an accepted recording are finite.
#include <cmath>
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/plan/report/sim_report.h"
#include "k3/plan/sim/recording.h"

namespace {

k3::plan::Workload small_workload() {
  std::vector<k3::PlannedRequest> planned(3);
  for (size_t i = 0; i < planned.size(); ++i) {
    planned[i].input_tokens = 100;
    planned[i].output_tokens = 5;
    planned[i].prompt = {{i, 100}};
  }
  return k3::plan::make_workload(planned).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::plan::Workload workload = small_workload();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recording = k3::plan::parse_recording(text, workload);
  if (recording.ok()) {
    K3_CHECK(recording->size() == workload.requests.size());
    for (const auto& r : *recording) K3_CHECK(std::isfinite(r.start_seconds) && std::isfinite(r.first_token_seconds) && std::isfinite(r.end_seconds));
  } else {
    K3_CHECK(k3::is_utf8(recording.error().message), "{}", recording.error().message);
  }
  const auto other = k3::plan::parse_other(text);
  if (!other.ok()) K3_CHECK(k3::is_utf8(other.error().message), "{}", other.error().message);
  return 0;
}
