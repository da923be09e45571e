// What `k3 plan` prints for people.
#pragma once

#include <string>

#include "k3/cli/plan/plan_setup.h"
#include "k3/plan/advise/advice.h"

namespace k3::cli {

std::string answer_text(const PlanSetup& setup, const plan::Answer& answer);
std::string missing_text(const PlanSetup& setup, const plan::Missing& missing);
std::string sweep_text(const PlanSetup& setup, const plan::Answer& answer);
std::string explain_text(const PlanSetup& setup, const plan::LayoutAnswer& chosen);
std::string against_text(const PlanSetup& first, const plan::Answer& first_answer, const PlanSetup& second,
                         const plan::Answer& second_answer);
std::string calibration_text(const plan::Calibration& calibration);
std::string check_text(const plan::Check& check);
std::string cells_text(const plan::Machine& machine);

// The serve command, and what of the layout k3 cannot serve.
std::string launch_text(const PlanSetup& setup, const plan::LayoutAnswer& chosen);

// "16 H200-SXM"
std::string machines_text(const plan::Scenario& scenario);
// "TTFT p95 at most 10 s, TPOT p95 at most 50 ms"; empty without one
std::string objective_text(const plan::Objective& objective);
// "2.9 to 3.6 s" around a time
std::string band_text(const plan::Band& band, double seconds);

}  // namespace k3::cli
