#include "k3/train/log/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "k3/base/report/html_report.h"
#include "k3/base/units.h"

namespace k3::train {
namespace {

// Means of as many steps as give about 400 points, so that a curve of a million steps is a small page.
class Thinned {
 public:
  explicit Thinned(const std::vector<StepRecord>& steps) : steps_(steps), stride_(std::max<size_t>(1, steps.size() / 400)) {}

  template <class F>
  Series series(std::string name, const F& value) const {
    Series out;
    out.name = std::move(name);
    for (size_t i = 0; i < steps_.size(); i += stride_) {
      const size_t end = std::min(steps_.size(), i + stride_);
      double sum = 0;
      for (size_t j = i; j < end; ++j) sum += value(steps_[j]);
      out.x.push_back(static_cast<double>(steps_[end - 1].step));
      out.y.push_back(sum / static_cast<double>(end - i));
    }
    return out;
  }
  std::string note() const { return stride_ > 1 ? fmt::format("means of {} steps", stride_) : std::string(); }

 private:
  const std::vector<StepRecord>& steps_;
  size_t stride_;
};

std::vector<Rule> phase_rules(const std::vector<StepRecord>& steps) {
  std::vector<Rule> rules;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].phase != steps[i - 1].phase) rules.push_back({true, static_cast<double>(steps[i].step), steps[i].phase});
  }
  return rules;
}

Plot step_plot(const char* title, const char* unit, const Thinned& thin, const std::vector<Rule>& rules, std::vector<Series> series) {
  Plot plot;
  plot.title = title;
  plot.note = thin.note();
  plot.x.label = "step";
  plot.x.unit = Unit::count;
  plot.y.label = unit;
  plot.rules = rules;
  plot.series = std::move(series);
  return plot;
}

Plot evaluation_plot(const std::vector<EvaluationRecord>& evaluations) {
  Plot plot;
  plot.title = "Held-out text";
  plot.x.label = "step";
  plot.x.unit = Unit::count;
  plot.y.label = "bits per byte";
  std::map<std::string, Series> by_source;
  for (const EvaluationRecord& r : evaluations) {
    Series& s = by_source[r.source];
    s.name = r.source;
    s.marker = Marker::dot;
    s.x.push_back(static_cast<double>(r.step));
    s.y.push_back(r.bits_per_byte);
  }
  for (auto& [name, series] : by_source) plot.series.push_back(std::move(series));
  return plot;
}

double total(const std::vector<StepRecord>& steps, double (*value)(const StepRecord&)) {
  double sum = 0;
  for (const StepRecord& r : steps) sum += value(r);
  return sum;
}

std::vector<Tile> tiles_of(const RunFacts& facts, const RunHistory& history) {
  const double seconds = total(history.steps, [](const StepRecord& r) { return r.seconds; });
  const double tokens = total(history.steps, [](const StepRecord& r) { return static_cast<double>(r.tokens); });
  const double flops = total(history.steps, [](const StepRecord& r) { return r.flops; });
  std::vector<Tile> tiles;
  tiles.push_back({"steps", fmt::format("{}", history.steps.empty() ? 0 : history.steps.back().step), fmt::format("of {}", facts.total_steps)});
  if (!history.steps.empty()) tiles.push_back({"loss", fmt::format("{:.3f}", history.steps.back().loss), "nats a token, last step"});
  if (!history.evaluations.empty()) {
    const EvaluationRecord& last = history.evaluations.back();
    tiles.push_back({"held out", fmt::format("{:.3f}", last.bits_per_byte), "bits per byte, " + last.source});
  }
  tiles.push_back({"tokens", fmt::format("{:.2f} M", tokens / 1e6), fmt::format("in {:.0f} s", seconds)});
  if (seconds > 0) tiles.push_back({"speed", fmt::format("{:.0f}", tokens / seconds), "tokens a second"});
  if (seconds > 0 && facts.peak_flops > 0) tiles.push_back({"MFU", fmt::format("{:.1f} %", 100 * flops / seconds / facts.peak_flops), "6 FLOPs a token and active parameter"});
  tiles.push_back({"parameters", fmt::format("{:.2f} M", static_cast<double>(facts.parameters) / 1e6),
                   fmt::format("{:.2f} M met by a token", static_cast<double>(facts.active_parameters) / 1e6)});
  return tiles;
}

void add_tables(HtmlReport& page, const RunHistory& history) {
  ReportTable evaluations{"Evaluations", {"step", "source", "bits per byte", "nats a token", "tokens", "bytes"}, {}, 2, true};
  for (const EvaluationRecord& r : history.evaluations) {
    evaluations.rows.push_back({std::to_string(r.step), r.source, fmt::format("{:.4f}", r.bits_per_byte), fmt::format("{:.4f}", r.nats_per_token),
                                std::to_string(r.tokens), std::to_string(r.bytes)});
  }
  if (!evaluations.rows.empty()) page.table(evaluations);
  ReportTable samples{"What it writes (greedy)", {"step", "asked", "written"}, {}, 3};
  for (auto r = history.samples.rbegin(); r != history.samples.rend() && samples.rows.size() < 40; ++r) {
    samples.rows.push_back({std::to_string(r->step), r->prompt, r->text});
  }
  if (!samples.rows.empty()) page.table(samples);
}

}  // namespace

std::string run_report(const RunFacts& facts, const RunHistory& history) {
  HtmlReport page("Training " + facts.title, fmt::format("{} steps planned, on {}", facts.total_steps, facts.device));
  page.tiles(tiles_of(facts, history));
  if (!history.steps.empty()) {
    const Thinned thin(history.steps);
    const std::vector<Rule> rules = phase_rules(history.steps);
    page.plot(step_plot("Loss", "nats a token", thin, rules, {thin.series("", [](const StepRecord& r) { return r.loss; })}));
    if (!history.evaluations.empty()) page.plot(evaluation_plot(history.evaluations));
    page.plot(step_plot("Speed", "tokens a second", thin, rules, {thin.series("", [](const StepRecord& r) {
                          return r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0;
                        })}));
    page.plot(step_plot("Learning rate", "of the peak", thin, rules, {thin.series("", [](const StepRecord& r) { return r.learning_rate; })}));
    page.plot(step_plot("Gradient norm", "before the clip", thin, rules, {thin.series("", [](const StepRecord& r) { return r.gradient_norm; })}));
    page.plot(step_plot("Balance of experts", "largest load / mean - 1", thin, rules,
                        {thin.series("mean of layers", [](const StepRecord& r) { return r.load_violation; }),
                         thin.series("worst layer", [](const StepRecord& r) { return r.load_violation_worst; })}));
    page.plot(step_plot("Largest attention logit", "after the scale", thin, rules, {thin.series("", [](const StepRecord& r) { return r.largest_logit; })}));
  }
  add_tables(page, history);
  ReportTable config{"Config", {"train.json"}, {{facts.config_json}}, 1, true};
  page.table(config);
  return page.html();
}

}  // namespace k3::train
