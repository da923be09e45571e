// What a run left behind: first byte even: state.json of a checkpoint, odd: log.jsonl. What is accepted is written as it was read.
#include <cmath>
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/train/log/run_report.h"
#include "k3/train/run/checkpoints.h"

namespace {

using namespace k3::train;

void state(std::string_view text) {
  const auto parsed = parse_state(text, "fuzz");
  if (!parsed.ok()) {
    K3_CHECK(k3::is_utf8(parsed.error().message), "{}", parsed.error().message);
    return;
  }
  K3_CHECK(parsed->step >= 0 && parsed->best_step >= -1 && parsed->best_step <= parsed->step && std::isfinite(parsed->best_bits_per_byte));
  const std::string json = state_json(*parsed);
  const auto again = parse_state(json, "fuzz");
  K3_CHECK(again.ok() && state_json(*again) == json, "{}", json);
}

void log(std::string_view lines, int64_t last) {
  std::string kept, twice;
  const RunHistory history = read_history(lines, last, &kept);
  for (const StepRecord& r : history.steps) K3_CHECK(r.step <= last && std::isfinite(r.loss));
  const RunHistory again = read_history(kept, last, &twice);
  K3_CHECK(kept == twice && history.steps.size() == again.steps.size() && history.samples.size() == again.samples.size());
  const std::string page = run_report({}, history);
  K3_CHECK(k3::is_utf8(page) && page.find("</html>") != std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) state(text);
  else log(text, data[0] < 128 ? 1000 : INT64_MAX);
  return 0;
}
