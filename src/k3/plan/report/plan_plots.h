// Internal to plan/report. The plots of a plan's page.
#pragma once

#include "k3/base/report/plot.h"
#include "k3/plan/report/plan_json.h"

namespace k3::plan {

Plot frontier_plot(const Plan& plan, const Plan* against);
Plot users_plot(const Plan& plan, const Plan* against);        // latency against users
Plot capacity_plot(const Plan& plan, const Plan* against);     // users that fit against length
Plot history_plot(const Plan& plan);                           // both cache classes of a request against length
Plot memory_plot(const Plan& plan);                            // of a GPU, against length
Plot decode_plot(const Plan& plan);                            // a step by parts against users
Plot prefill_split_plot(const Plan& plan);                     // shares of a prefill against length, with crossings
Plot prefill_time_plot(const Plan& plan, const Plan* against);  // seconds of a lone prompt against length
Plot mechanism_cache_plot(const Plan& plan);
Plot mechanism_decode_plot(const Plan& plan);
Plot mechanism_prefill_plot(const Plan& plan);
Plot speculation_length_plot(const Plan& plan);  // speed against drafted tokens
Plot speculation_users_plot(const Plan& plan);   // speed against users
Plot prefix_plot(const Plan& plan);              // prefill time against the reused length

}  // namespace k3::plan
