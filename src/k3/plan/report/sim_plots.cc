#include "k3/plan/report/sim_plots.h"

#include <algorithm>
#include <cmath>

#include "k3/base/report/axis.h"
#include "k3/base/units.h"

namespace k3::plan {
namespace {

using report::unit_text;

constexpr int kMain = 0, kBad = 1, kSecond = 2, kThird = 4, kFourth = 5, kGrey = 6;

Series series(Series::Kind kind, std::string name, int colour, bool stepped = true) {
  Series out;
  out.kind = kind;
  out.name = std::move(name);
  out.colour = colour;
  out.stepped = stepped;
  return out;
}

Plot timeline(const SimResult& result, std::string title, std::string label, Unit unit) {
  Plot plot;
  plot.title = std::move(title);
  plot.x.label = "time";
  plot.x.unit = Unit::seconds;
  plot.x.min = 0;
  plot.x.max = std::max(1e-3, static_cast<double>(result.series.samples().size()) * result.series.step_seconds());
  plot.y.label = std::move(label);
  plot.y.unit = unit;
  plot.y.from_zero = true;
  return plot;
}

template <class Value>
void fill(Series& s, const SimResult& result, Value value) {
  const auto& samples = result.series.samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    s.x.push_back(static_cast<double>(i) * result.series.step_seconds());
    s.y.push_back(static_cast<double>(value(samples[i], i > 0 ? samples[i - 1] : SimSample{})));
  }
}

}  // namespace

Plot load_plot(const SimReport& r) {
  Plot plot = timeline(r.result, "Requests", "requests", Unit::number);
  plot.wide = true;
  Series queued = series(Series::Kind::line, "waiting", kBad), running = series(Series::Kind::line, "running", kMain);
  fill(queued, r.result, [](const SimSample& s, const SimSample&) { return s.queued; });
  fill(running, r.result, [](const SimSample& s, const SimSample&) { return s.running; });
  plot.series = {queued, running};
  if (!r.against) return plot;
  const auto other = [&](const char* name, const std::vector<double>& values, int colour) {
    Series s = series(Series::Kind::line, r.against->name + ": " + name, colour);
    s.dashed = true;
    for (size_t i = 0; i < values.size(); ++i) s.x.push_back(static_cast<double>(i) * r.against->series_step), s.y.push_back(values[i]);
    if (!values.empty()) plot.x.max = std::max(*plot.x.max, s.x.back());
    plot.series.push_back(std::move(s));
  };
  other("waiting", r.against->queued, kThird);
  other("running", r.against->running, kSecond);
  return plot;
}

Plot pool_plot(const SimReport& r) {
  Plot plot = timeline(r.result, "The pool: latents and KDA states, in use and cached", "pages", Unit::count);
  plot.wide = true;
  const auto add = [&](const char* name, int colour, int64_t SimSample::*member) {
    Series s = series(Series::Kind::area, name, colour);
    fill(s, r.result, [&](const SimSample& sample, const SimSample&) { return sample.*member; });
    plot.series.push_back(std::move(s));
  };
  add("latents in use", kMain, &SimSample::running_mla);
  add("latents cached", kSecond, &SimSample::cached_mla);
  add("states in use", kBad, &SimSample::running_kda);
  add("checkpoints", kThird, &SimSample::cached_kda);
  add("free", kGrey, &SimSample::free);
  return plot;
}

Plot hit_plot(const SimReport& r) {
  Plot plot = timeline(r.result, "Prompt tokens from the cache", "share of the prompts admitted", Unit::percent);
  plot.y.min = 0, plot.y.max = 1;
  Series now = series(Series::Kind::line, "in each interval", kSecond), all = series(Series::Kind::line, "since the start", kMain, false);
  const auto share = [](int64_t hit, int64_t prompt) { return prompt > 0 ? static_cast<double>(hit) / static_cast<double>(prompt) : NAN; };
  fill(now, r.result, [&](const SimSample& s, const SimSample& before) {
    return share(s.hit_tokens - before.hit_tokens, s.prompt_tokens - before.prompt_tokens);
  });
  fill(all, r.result, [&](const SimSample& s, const SimSample&) { return share(s.hit_tokens, s.prompt_tokens); });
  plot.series = {now, all};
  return plot;
}

Plot eviction_plot(const SimReport& r) {
  Plot plot = timeline(r.result, "Evictions", "a second", Unit::count);
  const double step = r.result.series.step_seconds();
  Series pages = series(Series::Kind::line, "pages of latents", kMain), states = series(Series::Kind::line, "checkpoints", kThird);
  fill(pages, r.result, [&](const SimSample& s, const SimSample& before) { return static_cast<double>(s.evicted_pages - before.evicted_pages) / step; });
  fill(states, r.result,
       [&](const SimSample& s, const SimSample& before) { return static_cast<double>(s.evicted_checkpoints - before.evicted_checkpoints) / step; });
  plot.series = {pages, states};
  return plot;
}

Plot latency_plot(const SimReport& r, std::string title, std::vector<double> SimDigest::*values_of, double slo) {
  const std::vector<double> mine = digest_of(r).*values_of;
  const std::vector<double>* const other = r.against ? &(*r.against.*values_of) : nullptr;
  Plot plot;
  plot.title = std::move(title);
  plot.x.unit = Unit::seconds;
  plot.x.label = "at most";
  plot.x.log = true;
  plot.y.unit = Unit::percent;
  plot.y.label = "share of requests";
  plot.y.min = 0, plot.y.max = 1;
  const auto add = [&](const std::string& name, const std::vector<double>& values, int colour, bool dashed) {
    if (values.empty()) return;
    Series s = series(Series::Kind::line, name, colour, false);
    s.dashed = dashed;
    for (size_t i = 0; i < values.size(); ++i) {
      s.x.push_back(std::max(values[i], 1e-6));
      s.y.push_back(static_cast<double>(i) / static_cast<double>(values.size() - 1));
    }
    plot.series.push_back(std::move(s));
  };
  add(other != nullptr ? r.result.name : std::string(), mine, kMain, false);
  if (other != nullptr) add(r.against->name, *other, kSecond, true);
  if (slo > 0) plot.rules.push_back({true, slo, "objective"});
  return plot;
}

Plot policy_plot(const SimReport& r) {
  Plot plot;
  plot.title = "Checkpoint policies";
  plot.note = "Tokens that need not be computed against what the checkpoints take at their most. The dashed line: what the latents alone would allow.";
  plot.wide = true;
  plot.x.label = "bytes of checkpoints, at most at once";
  plot.x.unit = Unit::bytes;
  plot.x.log = true;
  plot.y.label = "prompt tokens skipped";
  plot.y.unit = Unit::percent;
  Series s = series(Series::Kind::scatter, "", kMain);
  double best = 0, least = 1;
  for (const PolicyPoint& point : r.policies) {
    const double bytes = std::max(1.0, point.summary.checkpoint_bytes), hit = point.summary.hit_ratio();
    s.x.push_back(bytes);
    s.y.push_back(hit);
    s.labels.push_back(fmt::format("{}: {:.2f} %, {}", point.policy, 100 * hit, unit_text(bytes, Unit::bytes)));
    plot.marks.push_back({bytes, hit, point.policy});
    best = std::max(best, point.summary.matched_ratio());
    least = std::min(least, hit);
  }
  plot.y.min = std::max(0.0, least - (best - least) / 5), plot.y.max = std::min(1.0, best + (best - least) / 5);  // room for names
  if (*plot.y.max <= *plot.y.min) plot.y.min = 0, plot.y.max = 1;
  plot.series = {s};
  plot.rules.push_back({false, best, "all blocks that match"});
  return plot;
}

// Throughput against user speed, a point for each load.
Plot load_curve(const SimReport& r) {
  Plot plot;
  const bool objective = r.scenario.slo_ttft_seconds > 0 || r.scenario.slo_tpot_seconds > 0;
  plot.title = "Throughput against the speed of a user";
  plot.note = fmt::format("The same requests at rising load. Speed: 1 / TPOT p50.{}",
                          objective ? " Misses: p95 of TTFT or TPOT is beyond the objective; the box is of TPOT alone." : "");
  plot.wide = true;
  plot.x.label = "tokens/s of a user";
  plot.y.label = r.gpus > 0 ? "output tokens/s/GPU" : "output tokens/s";
  plot.y.unit = Unit::count;
  plot.x.from_zero = plot.y.from_zero = true;
  double right = 0, top = 0;
  const auto add = [&](const std::string& name, const std::vector<LoadDigest>& loads, int colour, bool dashed) {
    Series curve = series(Series::Kind::line, name, colour, false);
    curve.dashed = dashed;
    curve.marker = Marker::dot;
    for (const LoadDigest& load : loads) {
      if (!(load.user_tokens_per_second > 0)) continue;
      const std::string title = load.load + (load.meets ? "" : ", misses");
      curve.x.push_back(load.user_tokens_per_second), curve.y.push_back(load.output_per_second);
      curve.labels.push_back(fmt::format("{}: {:.3g} tokens/s, TTFT p95 {}", title, load.user_tokens_per_second, unit_text(load.ttft_p95, Unit::seconds)));
      if (!dashed) plot.marks.push_back({load.user_tokens_per_second, load.output_per_second, title});
      right = std::max(right, load.user_tokens_per_second), top = std::max(top, load.output_per_second);
    }
    if (curve.x.empty()) return;
    plot.series.push_back(std::move(curve));
  };
  const bool two = r.against && !r.against->loads.empty();
  add(two ? r.result.name : std::string(), digest_of(r).loads, kMain, false);
  if (two) add(r.against->name, r.against->loads, kSecond, true);
  const double slo = r.scenario.slo_tpot_seconds;
  if (slo > 0 && 1 / slo < right) plot.boxes.push_back({1 / slo, right, 0, top, fmt::format("TPOT within {}", unit_text(slo, Unit::seconds))});
  return plot;
}

}  // namespace k3::plan
