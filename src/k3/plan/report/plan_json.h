// Purpose:  a plan, the check against measurements, or the cells of a record, as JSON for programs.
// Shapes:   none.
// Units:    seconds, bytes, tokens/s, as the field names say.
// Memory:   the text.
// Threads:  pure functions.
// Errors:   none.
// Source:   docs/planning.md names the fields.
#pragma once

#include <string>

#include "k3/plan/advise/answer.h"
#include "k3/plan/calibrate/calibrate.h"
#include "k3/plan/published/check.h"

namespace k3::plan {

struct Plan {
  const Scenario& scenario;
  const Answer& answer;
  const Calibration* calibration = nullptr;

  const LayoutAnswer* chosen() const { return answer.best ? &answer.layouts[*answer.best] : nullptr; }
};

// `against`: the second scenario, or null.
std::string plan_json(const Plan& plan, const Plan* against);
std::string check_json(const Check& check);
std::string cells_json(const Machine& machine);

}  // namespace k3::plan
