// Purpose:  the plots of a simulation's page.
// Shapes:   none.
// Units:    as the axes say.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   none; what there is no data for is an empty plot.
// Source:   docs/simulator.md.
#pragma once

#include "k3/base/report/plot.h"
#include "k3/plan/report/sim_report.h"

namespace k3::plan {

Plot load_plot(const SimReport& report);
Plot pool_plot(const SimReport& report);
Plot hit_plot(const SimReport& report);
Plot eviction_plot(const SimReport& report);
Plot latency_plot(const SimReport& report, std::string title, std::vector<double> SimDigest::*values, double slo);
Plot policy_plot(const SimReport& report);  // skipped tokens against bytes
Plot load_curve(const SimReport& report);

}  // namespace k3::plan
