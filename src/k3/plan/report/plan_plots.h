// Purpose:  the plots of a plan: those of its page, in order, each with the heading it stands under and a file's name.
// Shapes:   none.
// Units:    seconds, bytes, tokens/s.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; the plan has a layout that fits (Plan::chosen).
// Source:   cost-model.md 4 (history), 5.7 (prefill), 9 (speculation), 10.2 (prefix), 11 (mechanisms).
#pragma once

#include <vector>

#include "k3/base/report/plot.h"
#include "k3/plan/report/plan_json.h"

namespace k3::plan {

Plot frontier_plot(const Plan& plan, const Plan* against);
Plot users_plot(const Plan& plan, const Plan* against);         // latency against users
Plot capacity_plot(const Plan& plan, const Plan* against);      // users that fit against length
Plot history_plot(const Plan& plan);                            // both cache classes of a request against length
Plot memory_plot(const Plan& plan);                             // of a GPU, against length
Plot decode_plot(const Plan& plan);                             // a step by parts against users
Plot prefill_split_plot(const Plan& plan);                      // shares of a prefill against length, with crossings
Plot prefill_time_plot(const Plan& plan, const Plan* against);  // seconds of a lone prompt against length
Plot mechanism_cache_plot(const Plan& plan);
Plot mechanism_decode_plot(const Plan& plan);
Plot mechanism_prefill_plot(const Plan& plan);
Plot speculation_length_plot(const Plan& plan);  // speed against drafted tokens
Plot speculation_users_plot(const Plan& plan);   // speed against users
Plot speculation_need_plot(const Plan& plan);    // tokens a step from which it pays, against users
Plot prefix_plot(const Plan& plan);              // prefill time against the reused length

struct PagePlot {
  const char* heading = "";  // that begins with it; empty: none
  const char* name = "";     // for a file
  Plot plot;
};
std::vector<PagePlot> page_plots(const Plan& plan, const Plan* against);

}  // namespace k3::plan
