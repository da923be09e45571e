// Plots of a plan against lengths: prefill, attention mechanisms, speculation, a reused prefix.
#include <algorithm>
#include <cmath>

#include "k3/plan/advise/advice.h"
#include "k3/plan/cost/mechanisms.h"
#include "k3/plan/cost/prefix.h"
#include "k3/plan/report/plan_plot_parts.h"
#include "k3/plan/report/plan_plots.h"

namespace k3::plan {

using namespace plots;

namespace {

// x where a first exceeds b, between the points of both (linear in log x); 0 when it never does.
double crossing(const std::vector<double>& x, const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 1; i < x.size(); ++i) {
    const double before = a[i - 1] - b[i - 1], after = a[i] - b[i];
    if (before < 0 && after >= 0)
      return std::exp(std::log(x[i - 1]) + (std::log(x[i]) - std::log(x[i - 1])) * before / (before - after));
  }
  return 0;
}

std::string mechanism_text(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::full: return "full";
    case Mechanism::mla: return "MLA";
    case Mechanism::dsa: return "DSA";
    case Mechanism::kda: return "KDA";
    case Mechanism::hybrid: break;
  }
  return "this model's mix";
}

template <class Value>
Plot mechanism_plot(const Plan& plan, std::string title, std::string label, Unit unit, const Value& value) {
  Plot plot;
  plot.title = std::move(title);
  plot.x = axis("tokens", Unit::count, true);
  plot.y = axis(std::move(label), unit, true);
  constexpr int kColours[] = {6, 2, 4, 1, 0};
  for (size_t i = 0; i < kMechanisms.size(); ++i) {
    const bool hybrid = kMechanisms[i] == Mechanism::hybrid;
    Series s = line(mechanism_text(kMechanisms[i]), kColours[i]);
    s.dashed = !hybrid;
    for (const int64_t tokens : lengths()) {
      add(s, real(tokens),
          value(mechanism_cost(plan.scenario.counts, plan.scenario.precision, kMechanisms[i], real(tokens))));
    }
    plot.series.push_back(std::move(s));
  }
  return plot;
}

// A speculating step over a plain one: the tokens a step from which drafting is faster.
double step_growth(const Scenario& s, const Layout& layout, int64_t users, int64_t drafted, SpeculationScheme scheme) {
  Scenario drafting = s, plain = s;
  plain.draft.tokens = 0;
  drafting.draft.tokens = drafted, drafting.draft.scheme = scheme;
  return decode_of(drafting, layout, users).seconds / decode_of(plain, layout, users).seconds;
}

double speed_with(const Scenario& s, const Layout& layout, int64_t users, const AcceptanceCurve& curve, int64_t drafted,
                  SpeculationScheme scheme) {
  return curve.at(drafted, s.load.mean_context()) / step_growth(s, layout, users, drafted, scheme);
}

}  // namespace

Plot prefill_split_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  Plot plot;
  plot.title = "Where the time of a prefill goes";
  plot.note = "One prompt at a time.";
  plot.wide = true;
  plot.x = axis("tokens of the prompt", Unit::count, true);
  plot.y = axis("share of the time", Unit::percent);
  plot.y.min = 0, plot.y.max = 1;
  const PrefillTime first = prefill_of(s, plan.chosen()->layout, 1);
  std::vector<std::vector<double>> shares(first.parts().size());
  std::vector<double> x, rest;
  size_t mla = 0, gemm = 0, routed = 0;
  for (const int64_t tokens : lengths()) {
    const PrefillTime t = prefill_of(at_length(s, tokens), plan.chosen()->layout, 1);
    x.push_back(real(tokens));
    const auto parts = t.parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      shares[i].push_back(parts[i].part.seconds / t.seconds);
      const std::string_view name = parts[i].name;
      if (name == "mla_core") mla = i;
      if (name == "gemm") gemm = i;
      if (name == "routed") routed = i;
    }
    rest.push_back(0.5);
  }
  const auto parts = first.parts();
  std::vector<double> below(x.size(), 0.0);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (*std::max_element(shares[i].begin(), shares[i].end()) < 0.002) continue;
    Series s_i = line(std::string(part_text(parts[i].name)));
    s_i.kind = Series::Kind::area;
    s_i.x = x, s_i.y = shares[i];
    plot.series.push_back(std::move(s_i));
  }
  std::vector<std::pair<double, const char*>> crossings;
  for (const auto& [other, name] :
       {std::pair(&shares[gemm], "the dense products"), std::pair(&shares[routed], "the routed experts"),
        std::pair(&rest, "all else together")}) {
    if (const double at = crossing(x, shares[mla], *other); at > 0) crossings.emplace_back(at, name);
  }
  std::sort(crossings.begin(), crossings.end());
  constexpr double kTooClose = 1.3;  // in the ratio of two lengths: their numbers would cover each other on a phone
  for (size_t i = 0; i < crossings.size(); ++i) {
    const auto& [at, name] = crossings[i];
    const size_t number = i + 1;
    std::string label = fmt::format("{}", number);
    if (i > 0 && at < kTooClose * crossings[i - 1].first)
      label = plot.rules.back().label + "," + label, plot.rules.back().label.clear();
    plot.rules.push_back({true, at, std::move(label)});
    plot.note += fmt::format("{} {}: MLA attention passes {} at {:.0f}k tokens.", number == 1 ? " Marks:" : "", number, name,
                             at / 1000);
  }
  return plot;
}

Plot prefill_time_plot(const Plan& plan, const Plan* against) {
  Plot plot;
  plot.title = "Time to the first token of a lone prompt";
  plot.x = axis("tokens of the prompt", Unit::count, true);
  plot.y = axis("TTFT", Unit::seconds, true);
  const auto add_plan = [&](const Plan& p, int colour) {
    Series s = line(against != nullptr ? name_of(p) : "with the band of the errors", colour);
    for (const int64_t tokens : lengths()) {
      const double seconds = point_of(at_length(p.scenario, tokens), p.chosen()->layout, 1).ttft_p50;
      add(s, real(tokens), seconds);
      s.low.push_back(seconds * p.scenario.band.low);
      s.high.push_back(seconds * p.scenario.band.high);
    }
    plot.series.push_back(std::move(s));
  };
  add_plan(plan, 0);
  if (against != nullptr && against->chosen() != nullptr) add_plan(*against, 1);
  return plot;
}

Plot mechanism_cache_plot(const Plan& plan) {
  return mechanism_plot(plan, "Cache of a sequence, by mechanism", "bytes", Unit::bytes,
                        [](const MechanismCost& c) { return c.cache_bytes; });
}

Plot mechanism_decode_plot(const Plan& plan) {
  return mechanism_plot(plan, "Bytes of a decoded token, by mechanism", "bytes read and written", Unit::bytes,
                        [](const MechanismCost& c) { return c.decode_bytes; });
}

Plot mechanism_prefill_plot(const Plan& plan) {
  Plot plot = mechanism_plot(plan, "Attention of a prefill, by mechanism", "PFLOP", Unit::number,
                             [](const MechanismCost& c) { return c.prefill_flops / 1e15; });
  plot.note = "Projections and experts left out: they are the same for all.";
  return plot;
}

Plot speculation_length_plot(const Plan& plan) {
  const int64_t users = users_of(plan);
  Plot plot;
  plot.title = fmt::format("Speculation: speed by drafted tokens, {} user{}", users, users == 1 ? "" : "s");
  plot.note = "Against decoding without a draft; fused replay. Below 1 it loses.";
  plot.x = axis("drafted tokens", Unit::number);
  plot.y = axis("times as fast", Unit::number);
  for (const AcceptanceCurve& curve : published_acceptance()) {
    Series s = line(curve.name);
    for (int64_t drafted = 1; drafted <= 8; ++drafted) {
      add(s, real(drafted),
          speed_with(plan.scenario, plan.chosen()->layout, users, curve, drafted, SpeculationScheme::fused));
    }
    plot.series.push_back(std::move(s));
  }
  plot.rules.push_back({false, 1, "no gain"});
  return plot;
}

Plot speculation_users_plot(const Plan& plan) {
  Plot plot;
  plot.title = "Speculation: speed by users, 7 drafted";
  plot.note =
      "Accepted as on code. Schemes differ in how rejected tokens leave the KDA states; the dip is where verified tokens "
      "touch more experts.";
  plot.x = axis("users at once", Unit::count, true);
  plot.y = axis("times as fast", Unit::number);
  const AcceptanceCurve& code = published_acceptance().front();
  for (const auto& [scheme, name] :
       {std::pair(SpeculationScheme::fused, "fused replay"), std::pair(SpeculationScheme::replay, "replay"),
        std::pair(SpeculationScheme::snapshot, "snapshot")}) {
    Series s = line(name);
    for (const UserPoint& u : plan.chosen()->ladder)
      add(s, real(u.users), speed_with(plan.scenario, plan.chosen()->layout, u.users, code, 7, scheme));
    if (s.x.size() == 1) s.marker = Marker::dot;
    plot.series.push_back(std::move(s));
  }
  plot.rules.push_back({false, 1, "no gain"});
  return plot;
}

Plot speculation_need_plot(const Plan& plan) {
  Plot plot;
  plot.title = "Speculation: tokens a step from which it pays, 7 drafted";
  plot.note =
      "A speculating step over a plain one. Where a line lies below what a text gives (dashed), drafting is faster there.";
  plot.wide = true;
  plot.x = axis("users at once", Unit::count, true);
  plot.y = axis("tokens a step", Unit::number);
  plot.y.min = 1;
  for (const auto& [scheme, name] :
       {std::pair(SpeculationScheme::fused, "fused replay"), std::pair(SpeculationScheme::replay, "replay"),
        std::pair(SpeculationScheme::snapshot, "snapshot")}) {
    Series s = line(name);
    for (const UserPoint& u : plan.chosen()->ladder)
      add(s, real(u.users), step_growth(plan.scenario, plan.chosen()->layout, u.users, 7, scheme));
    if (s.x.size() == 1) s.marker = Marker::dot;
    plot.series.push_back(std::move(s));
  }
  for (const char* const text : {"chat", "dspark-code", "math-few-shot"}) {
    for (const AcceptanceCurve& curve : published_acceptance()) {
      if (curve.name == text) plot.rules.push_back({false, curve.at(7), fmt::format("{}: {:.2f}", text, curve.at(7))});
    }
  }
  return plot;
}

Plot prefix_plot(const Plan& plan) {
  Plot plot;
  plot.title = "A prompt whose prefix is reused";
  plot.note = "Prefill with 1,024 new tokens behind the prefix: all of it computed, or the prefix restored from each tier.";
  plot.x = axis("tokens of the prefix", Unit::count, true);
  plot.y = axis("time", Unit::seconds, true);
  const Deployment d = deployment_of(plan.scenario, plan.chosen()->layout);
  Series cold = line("computed", 6);
  cold.dashed = true;
  for (const auto& [place, name] :
       {std::pair(PrefixPlace::network, "from the network"), std::pair(PrefixPlace::host, "from the host"),
        std::pair(PrefixPlace::hbm, "from the GPU")}) {
    Series s = line(name);
    for (const int64_t tokens : lengths()) {
      const PrefixBenefit b = prefix_benefit(d, place, tokens, 1024);
      add(s, real(tokens), b.warm_seconds + b.restore_seconds);
      if (place == PrefixPlace::hbm) add(cold, real(tokens), b.cold_seconds);
    }
    plot.series.push_back(std::move(s));
  }
  plot.series.insert(plot.series.begin(), std::move(cold));
  return plot;
}

}  // namespace k3::plan
