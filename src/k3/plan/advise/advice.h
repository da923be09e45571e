// Purpose:  what a planner says beyond numbers: what binds, what is missing where nothing fits, which change helps most.
// Shapes:   none.
// Units:    bytes, seconds, tokens/s for one accelerator.
// Memory:   plain values.
// Threads:  pure functions; a list of changes evaluates every layout of each (tens of milliseconds).
// Errors:   none: a change that the model cannot have is left out.
// Source:   cost-model.md 7, 8, 9, 10.
#pragma once

#include <string>
#include <vector>

#include "k3/plan/advise/answer.h"
#include "k3/plan/cost/speculation.h"

namespace k3::plan {

// The largest part of a time, with its share.
struct Binding {
  std::string what;  // for people: "routed experts' bytes"
  double share = 0;
  bool memory_bound = false;  // of its roof: bytes rather than FLOPs
};
struct Bindings {
  Binding decode, prefill;
  bool memory_stops_users = false;  // the point has all users that fit, and meets the objective
};
Bindings bindings_of(const Scenario& scenario, const LayoutAnswer& chosen);

// What the scenario's draft does to a decode step of so many users; only for a scenario with a draft.
struct DraftEffect {
  double plain_step_seconds = 0, step_seconds = 0;
  double tokens_per_step = 1;
  double speed = 1;  // of decoding, over that without a draft
  BreakEven break_even;
};
DraftEffect draft_effect(const Scenario& scenario, const Layout& layout, int64_t users);

// For people: "routed experts", from the part's name in parts().
std::string_view part_text(std::string_view part_name);

// Nothing fits: by how much on the best layout, and what does fit, the smallest change first.
struct Nearest {
  std::string what;  // "16 h200", "the same with bf16 states", ...
  Scenario scenario;
  LayoutAnswer answer;
};
struct Missing {
  Layout layout;  // the one with the least missing
  Capacity capacity;
  double bytes = 0;  // on each accelerator, for one request
  std::vector<Nearest> nearest;
};
Missing missing_of(const Scenario& scenario, const Answer& answer);

// The fewest GPUs of the scenario's machine that hold a request, up to `most`; 0: none.
int64_t fewest_gpus(const Scenario& scenario, int64_t most);

enum class Effort { layout, engine, numerics, draft, more_gpus, other_gpus };  // cheapest first
struct Change {
  std::string what;
  Effort effort = Effort::layout;
  LayoutAnswer answer;
  double gain = 1;  // tokens/s/GPU of its point over the present one
  bool meets = false;
};
// Those that gain at least 3 %, or meet an objective that is missed now: the best of each effort, cheapest first.
std::vector<Change> next_changes(const Scenario& scenario, const LayoutAnswer& chosen);

}  // namespace k3::plan
