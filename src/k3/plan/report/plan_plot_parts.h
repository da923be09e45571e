// Internal to plan/report. What the plots of a plan share.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "k3/base/report/plot.h"
#include "k3/plan/report/plan_json.h"

namespace k3::plan::plots {

inline constexpr int64_t kMostLength = 1 << 20;

inline double real(int64_t value) { return static_cast<double>(value); }

inline Axis axis(std::string label, Unit unit, bool log = false) {
  Axis out;
  out.label = std::move(label), out.unit = unit, out.log = log;
  return out;
}

inline Series line(std::string name, int colour = -1) {
  Series out;
  out.name = std::move(name), out.colour = colour;
  return out;
}

inline void add(Series& s, double x, double y) {
  s.x.push_back(x);
  s.y.push_back(y);
}

// 1,024 to 1,048,576 tokens, four to an octave.
inline std::vector<int64_t> lengths() {
  std::vector<int64_t> out;
  for (int i = 0; i <= 40; ++i) out.push_back(std::llround(1024 * std::exp2(i / 4.0)));
  return out;
}

inline std::string name_of(const Plan& plan) { return scenario_name(plan.scenario); }

inline Scenario at_length(const Scenario& s, int64_t input) {
  Scenario out = s;
  out.load.input_tokens = input;
  return out;
}

inline int64_t users_of(const Plan& plan) { return plan.chosen()->point ? plan.chosen()->point->users : 1; }

}  // namespace k3::plan::plots
