#include "k3/plan/cost/speculation.h"

#include <algorithm>
#include <cmath>

#include "k3/plan/cost/memory.h"

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

constexpr double kRawInputBytes = 2;  // of each raw key, query, value and beta that replay keeps
constexpr int64_t kPublishedDraft = 7;

}  // namespace

StateTraffic speculation_state_traffic(const Counts& counts, const Precision& precision, SpeculationScheme scheme,
                                       int64_t draft_tokens) {
  const double state = recurrent_bytes(counts, precision), verified = real(draft_tokens + 1);
  const double values = real(counts.kda_layers * counts.kda_heads * (2 * counts.key_dim + counts.value_dim + 1));
  const double raw = verified * values * kRawInputBytes;
  switch (scheme) {
    case SpeculationScheme::none: return {2 * state, 0};
    case SpeculationScheme::snapshot: return {(verified + 3) * state, verified * state};
    case SpeculationScheme::replay: return {3 * state + 2 * raw, raw};
    case SpeculationScheme::fused: return {2 * state + 2 * raw, raw};
  }
  return {};
}

double tokens_per_step(double alpha, int64_t draft_tokens) {
  double sum = 1, accepted = 1;
  for (int64_t i = 0; i < draft_tokens; ++i) sum += accepted *= alpha;
  return sum;
}

double fit_alpha(int64_t draft_tokens, double wanted) {
  if (!(wanted > 1)) return 0;
  if (wanted >= real(draft_tokens + 1)) return 1;
  double low = 0, high = 1;
  for (int step = 0; step < 100; ++step) {  // the sum grows with alpha
    const double middle = (low + high) / 2;
    (tokens_per_step(middle, draft_tokens) < wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

double ContextDecay::factor(double context_tokens) const {
  if (!(context_tokens > from_tokens)) return 1;
  if (context_tokens >= to_tokens) return share;
  if (!(from_tokens > 0) || std::isinf(to_tokens)) return 1;
  return 1 + (share - 1) * std::log(context_tokens / from_tokens) / std::log(to_tokens / from_tokens);
}

double AcceptanceCurve::at(int64_t draft_tokens, double context_tokens) const {
  if (draft_tokens <= 0 || tokens_per_step.empty()) return 1;
  const size_t last = std::min(static_cast<size_t>(draft_tokens), tokens_per_step.size()) - 1;
  return 1 + (tokens_per_step[last] - 1) * decay.factor(context_tokens);
}

AcceptanceCurve constant_acceptance(std::string name, double alpha, int64_t most_draft_tokens) {
  AcceptanceCurve curve;
  curve.name = std::move(name);
  for (int64_t g = 1; g <= most_draft_tokens; ++g) curve.tokens_per_step.push_back(tokens_per_step(alpha, g));
  return curve;
}

const std::vector<AcceptanceCurve>& published_acceptance() {
  static const std::vector<AcceptanceCurve> kCurves = [] {
    std::vector<AcceptanceCurve> curves = {
        {"dspark-code", {1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88}, {}},
        {"dspark-code-block", {1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00}, {}},
    };
    const struct {
      const char* name;
      double tokens;
    } points[] = {{"chat", 2.7}, {"math-few-shot", 5.0}, {"low-entropy", 4.73}, {"creative", 2.61}};
    for (const auto& p : points) {
      curves.push_back(constant_acceptance(p.name, fit_alpha(kPublishedDraft, p.tokens), kPublishedDraft + 1));
    }
    return curves;
  }();
  return kCurves;
}

BreakEven break_even(double plain_step_seconds, double speculating_step_seconds, int64_t draft_tokens) {
  BreakEven b;
  b.tokens_per_step = speculating_step_seconds / plain_step_seconds;
  if (b.tokens_per_step <= real(draft_tokens + 1)) b.alpha = fit_alpha(draft_tokens, b.tokens_per_step);
  return b;
}

}  // namespace k3::plan
