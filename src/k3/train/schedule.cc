#include "k3/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace k3::train {

int64_t warmup_steps(const LearningRate& rate) {
  // The product of a decimal share and a whole number may come out a rounding above the number meant.
  const double steps = rate.warmup_share * static_cast<double>(rate.total_steps);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps - 1e-9)));
}

double learning_rate(const LearningRate& rate, int64_t step) {
  const int64_t warmup = warmup_steps(rate);
  if (step < warmup) return rate.peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= rate.total_steps) return rate.minimum;
  const double part = static_cast<double>(step - warmup) / static_cast<double>(rate.total_steps - warmup);
  return rate.minimum + 0.5 * (rate.peak - rate.minimum) * (1 + std::cos(std::numbers::pi * part));
}

double weight_decay(const ParamFamily& family, double decay) { return family.matrix ? decay : 0; }

namespace {

// Rows of one head in a matrix of muon_per_head.
int64_t head_rows(const Config& config, ParamId id) {
  switch (id) {
    case ParamId::mla_q_b_proj:
    case ParamId::mla_q_proj: return config.qk_nope_head_dim + config.qk_rope_head_dim;
    case ParamId::mla_g_proj: return config.v_head_dim;
    default: return config.kda_head_dim;
  }
}

}  // namespace

std::vector<UnitsOfRows> ns_units(const Config& config, const ParamFamily& family) {
  if (family.optimizer == OptimizerGroup::none || family.optimizer == OptimizerGroup::adamw) return {};
  const std::vector<int64_t> shape = family.shape(config);
  const int64_t rows = shape[0], cols = shape[1];
  const auto units = [&](int64_t count, int64_t height, int64_t step) { return ops::NsUnits{count, height, cols, step * cols}; };
  if (family.optimizer == OptimizerGroup::muon) return {{0, units(1, rows, rows)}};
  if (family.optimizer == OptimizerGroup::muon_per_head) {
    const int64_t height = head_rows(config, family.id);
    return {{0, units(rows / height, height, height)}};
  }
  const int64_t keys = config.qk_nope_head_dim, values = config.v_head_dim, heads = config.num_attention_heads;
  if (keys == values) return {{0, units(2 * heads, keys, keys)}};
  return {{0, units(heads, keys, keys + values)}, {keys, units(heads, values, keys + values)}};
}

}  // namespace k3::train
