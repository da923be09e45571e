// The learning rate of a step, and what decays. Pure functions.
// Source: training.md 3 and 2.1.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/format/config.h"
#include "k3/model/params.h"
#include "k3/ops/optim/muon/muon.h"

namespace k3::train {

struct LearningRate {
  double peak = 0;
  double minimum = 0;
  int64_t total_steps = 0;
  double warmup_share = 0.01;
};

// Steps of the linear warm-up: ceil(share * total), at least 1.
int64_t warmup_steps(const LearningRate& rate);

// Step 0 is the first. Warm-up reaches the peak at its last step: peak * (step + 1) / warm-up steps; then a cosine from the peak to the
// minimum, which it has at step total_steps and keeps beyond.
double learning_rate(const LearningRate& rate, int64_t step);

inline constexpr double kWeightDecay = 0.1;

// Decoupled decay: `decay` for what multiplies an activation (matrices, embedding and head among them), 0 for norms, biases, decays,
// convolutions and pseudo-queries.
double weight_decay(const ParamFamily& family, double decay = kWeightDecay);

// The Newton-Schulz units of a parameter as parts of its rows; empty: not Muon's. One entry but for muon_per_kv with keys and values of
// different heights, which has two.
struct UnitsOfRows {
  int64_t first_row = 0;
  ops::NsUnits units;
};
std::vector<UnitsOfRows> ns_units(const Config& config, const ParamFamily& family);

}  // namespace k3::train
