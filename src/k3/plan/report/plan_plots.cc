#include "k3/plan/report/plan_plots.h"

#include <algorithm>
#include <cmath>

#include "k3/plan/advise/advice.h"
#include "k3/plan/cost/mechanisms.h"
#include "k3/plan/cost/prefix.h"

namespace k3::plan {
namespace {

constexpr int64_t kMostLength = 1 << 20;

double real(int64_t value) { return static_cast<double>(value); }

Axis axis(std::string label, Unit unit, bool log = false) {
  Axis out;
  out.label = std::move(label), out.unit = unit, out.log = log;
  return out;
}

Series line(std::string name, int colour = -1) {
  Series out;
  out.name = std::move(name), out.colour = colour;
  return out;
}

void add(Series& s, double x, double y) {
  s.x.push_back(x);
  s.y.push_back(y);
}

// 1,024 to 1,048,576 tokens, four to an octave.
std::vector<int64_t> lengths() {
  std::vector<int64_t> out;
  for (int i = 0; i <= 40; ++i) out.push_back(std::llround(1024 * std::exp2(i / 4.0)));
  return out;
}

std::string name_of(const Plan& plan) { return scenario_name(plan.scenario); }

Scenario at_length(const Scenario& s, int64_t input) {
  Scenario out = s;
  out.load.input_tokens = input;
  return out;
}

int64_t users_of(const Plan& plan) { return plan.chosen()->point ? plan.chosen()->point->users : 1; }

void add_frontier(Plot& plot, const Plan& plan, int colour, const std::string& name) {
  Series all, best = line(name, colour);
  all.kind = Series::Kind::scatter, all.colour = 6;
  best.marker = Marker::dot;
  for (const LayoutAnswer& layout : plan.answer.layouts) {
    for (const UserPoint& p : layout.ladder) {
      add(all, p.user_tokens_per_second(), p.tokens_per_second_gpu);
      all.labels.push_back(fmt::format("{}, {} users", layout_text(layout.layout), p.users));
    }
  }
  for (const FrontierPoint& f : frontier(plan.answer)) {
    add(best, f.point.user_tokens_per_second(), f.point.tokens_per_second_gpu);
    best.labels.push_back(fmt::format("{}, {} users: TTFT p95 {:.2f} s, TPOT p95 {:.1f} ms", layout_text(f.layout), f.point.users, f.point.ttft_p95,
                                      f.point.tpot_p95 * 1e3));
  }
  // Thousands of points of a large sweep make a page heavy and its cloud no clearer.
  constexpr size_t kMostPoints = 600;
  if (colour == 0 && all.x.size() > 0) {
    const size_t every = all.x.size() / kMostPoints + 1;
    Series thinned = all;
    thinned.x.clear(), thinned.y.clear(), thinned.labels.clear();
    for (size_t i = 0; i < all.x.size(); i += every) {
      add(thinned, all.x[i], all.y[i]);
      thinned.labels.push_back(all.labels[i]);
    }
    thinned.name = "every layout of " + name_of(plan);
    plot.series.push_back(std::move(thinned));
  }
  plot.series.push_back(std::move(best));
}

// x where a first exceeds b, between the points of both (linear in log x); 0 when it never does.
double crossing(const std::vector<double>& x, const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 1; i < x.size(); ++i) {
    const double before = a[i - 1] - b[i - 1], after = a[i] - b[i];
    if (before < 0 && after >= 0) return std::exp(std::log(x[i - 1]) + (std::log(x[i]) - std::log(x[i - 1])) * before / (before - after));
  }
  return 0;
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
    Series s = line(hybrid ? "this model's mix" : mechanism_name(kMechanisms[i]), kColours[i]);
    s.dashed = !hybrid;
    for (const int64_t tokens : lengths()) {
      add(s, real(tokens), value(mechanism_cost(plan.scenario.counts, plan.scenario.precision, kMechanisms[i], real(tokens))));
    }
    plot.series.push_back(std::move(s));
  }
  return plot;
}

double speed_with(const Scenario& s, const Layout& layout, int64_t users, const AcceptanceCurve& curve, int64_t drafted, SpeculationScheme scheme) {
  Scenario drafting = s, plain = s;
  plain.draft.tokens = 0;
  drafting.draft = {drafted, curve, scheme};
  const double tokens = curve.at(drafted, s.load.mean_context());
  return tokens * decode_of(plain, layout, users).seconds / decode_of(drafting, layout, users).seconds;
}

}  // namespace

Plot frontier_plot(const Plan& plan, const Plan* against) {
  Plot plot;
  plot.title = "Throughput against the speed of a user";
  plot.note = "Each dot is a layout with a number of users; on the line nothing else is better in both. Speeds are 1 / TPOT, with the wait for other prompts.";
  plot.wide = true;
  plot.x = axis("tokens/s of a user", Unit::number);
  plot.y = axis("tokens/s/GPU, in and out", Unit::count);
  plot.x.from_zero = plot.y.from_zero = true;
  add_frontier(plot, plan, 0, against != nullptr ? name_of(plan) : "frontier");
  if (against != nullptr) add_frontier(plot, *against, 1, name_of(*against));
  if (plan.scenario.objective.ttft_seconds < kNoLimit) plot.note += " The box is of TPOT alone; layouts may still miss the objective of TTFT.";
  const UserPoint* const point = plan.chosen()->point ? &*plan.chosen()->point : nullptr;
  if (point != nullptr) plot.marks.push_back({point->user_tokens_per_second(), point->tokens_per_second_gpu, fmt::format("the answer: {} users", point->users)});
  if (plan.scenario.objective.tpot_seconds < kNoLimit) {
    double right = 0, top = 0;
    for (const Series& s : plot.series) {
      for (const double x : s.x) right = std::max(right, x);
      for (const double y : s.y) top = std::max(top, y);
    }
    const double left = 1 / plan.scenario.objective.tpot_seconds;
    if (left < right) plot.boxes.push_back({left, right, 0, top, fmt::format("TPOT within {:.0f} ms", plan.scenario.objective.tpot_seconds * 1e3)});
  }
  return plot;
}

Plot users_plot(const Plan& plan, const Plan* against) {
  Plot plot;
  plot.title = "Latency against users";
  plot.note = "Of the chosen layout. The band is that of the errors known, around TPOT p95.";
  plot.x = axis("users at once", Unit::count, true);
  plot.y = axis("time", Unit::seconds, true);
  const auto add_plan = [&](const Plan& p, int first, const std::string& suffix, bool banded) {
    Series ttft = line("TTFT p95" + suffix, first), tpot = line("TPOT p95" + suffix, first + 1);
    for (const UserPoint& u : p.chosen()->ladder) {
      add(ttft, real(u.users), u.ttft_p95);
      add(tpot, real(u.users), u.tpot_p95);
      if (!banded) continue;
      tpot.low.push_back(u.tpot_p95 * p.scenario.band.low);
      tpot.high.push_back(u.tpot_p95 * p.scenario.band.high);
    }
    ttft.dashed = tpot.dashed = !banded;
    plot.series.push_back(std::move(ttft));
    plot.series.push_back(std::move(tpot));
  };
  add_plan(plan, 0, "", true);
  if (against != nullptr && against->chosen() != nullptr) add_plan(*against, 2, ", " + name_of(*against), false);
  if (plan.scenario.objective.tpot_seconds < kNoLimit) plot.rules.push_back({false, plan.scenario.objective.tpot_seconds, "objective of TPOT"});
  if (plan.scenario.objective.ttft_seconds < kNoLimit) plot.rules.push_back({false, plan.scenario.objective.ttft_seconds, "objective of TTFT"});
  return plot;
}

Plot capacity_plot(const Plan& plan, const Plan* against) {
  Plot plot;
  plot.title = "Users that fit against their context";
  plot.x = axis("tokens of each", Unit::count, true);
  plot.y = axis("users", Unit::count, true);
  const auto add_plan = [&](const Plan& p, int colour) {
    Series s = line(against != nullptr ? name_of(p) : "", colour);
    for (const int64_t tokens : lengths()) {
      add(s, real(tokens), real(capacity(deployment_of(p.scenario, p.chosen()->layout), real(tokens), slots_of(p.scenario)).requests));
    }
    plot.series.push_back(std::move(s));
  };
  add_plan(plan, 0);
  if (against != nullptr && against->chosen() != nullptr) add_plan(*against, 1);
  return plot;
}

Plot history_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  Plot plot;
  plot.title = "History of a request, both classes";
  plot.note = "KDA keeps a fixed state, MLA a latent for each token; over all GPUs, without replicas.";
  plot.x = axis("tokens", Unit::count, true);
  plot.y = axis("bytes", Unit::bytes, true);
  Series state = line("KDA states", 1), latents = line("MLA latents", 0), sum = line("both", 6);
  sum.dashed = true;
  const double fixed = s.slots * fixed_bytes(s.counts, s.precision), each = cache_bytes_per_token(s.counts, s.precision);
  for (const int64_t tokens : lengths()) {
    add(state, real(tokens), fixed);
    add(latents, real(tokens), real(tokens) * each);
    add(sum, real(tokens), fixed + real(tokens) * each);
  }
  plot.series = {state, latents, sum};
  const double equal = fixed / each;
  if (equal > 1024 && equal < kMostLength) plot.marks.push_back({equal, fixed, fmt::format("equal at {:.0f}", equal)});
  return plot;
}

Plot memory_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  const LayoutAnswer& chosen = *plan.chosen();
  const int64_t users = users_of(plan);
  Plot plot;
  plot.title = fmt::format("Memory of a GPU with {} user{}", users, users == 1 ? "" : "s");
  plot.note = "The chosen layout. Above the line requests do not fit; states are split over tp, latents are whole on each of its GPUs unless DCP splits them.";
  plot.x = axis("tokens of each", Unit::count, true);
  plot.y = axis("memory of a GPU", Unit::bytes);
  plot.y.from_zero = true;
  plot.y.max = s.machine.hw.memory_bytes * 1.25;
  Series weights = line("weights", 2), rest = line("reserve, workspaces", 6), state = line("KDA states", 1), latents = line("MLA latents", 0);
  for (Series* one : {&weights, &rest, &state, &latents}) one->kind = Series::Kind::area;
  const double of_a_gpu = std::ceil(real(users) / real(chosen.layout.dp));
  for (const int64_t tokens : lengths()) {
    const Capacity c = capacity(deployment_of(s, chosen.layout), real(tokens), slots_of(s));
    const double used = c.weights_bytes + c.reserved_bytes + c.extra_bytes + of_a_gpu * c.state_bytes;
    add(weights, real(tokens), c.weights_bytes);
    add(rest, real(tokens), c.reserved_bytes + c.extra_bytes);
    add(state, real(tokens), of_a_gpu * c.state_bytes);
    // Cut where the axis ends: the area beyond says nothing.
    add(latents, real(tokens), std::min(of_a_gpu * c.cache_bytes, std::max(0.0, *plot.y.max - used)));
  }
  plot.series = {weights, rest, state, latents};
  plot.rules.push_back({false, s.machine.hw.memory_bytes, "memory"});
  return plot;
}

Plot decode_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  Plot plot;
  plot.title = "A decode step by parts";
  plot.note = fmt::format("One stage of {}, at {:.0f} tokens of context.", layout_text(plan.chosen()->layout), s.load.mean_context());
  plot.x.label = "users at once";
  plot.y = axis("time", Unit::seconds);
  plot.y.from_zero = true;
  plot.stacked_bars = true;
  struct Group {
    std::string_view name;
    std::vector<std::string_view> parts;
  };
  const Group groups[] = {{"matrices", {"kda_proj", "mla_proj", "moe_dense", "dense_ffn", "head"}},
                          {"routed experts", {"routed"}},
                          {"KDA states", {"kda_state"}},
                          {"MLA attention", {"mla_core"}},
                          {"AttnRes", {"attn_res"}},
                          {"communication", {"communication"}},
                          {"kernel launches", {"kernels"}}};
  for (size_t g = 0; g < std::size(groups); ++g) {
    Series bar = line(std::string(groups[g].name), static_cast<int>(g));
    bar.kind = Series::Kind::bars;
    plot.series.push_back(std::move(bar));
  }
  for (const UserPoint& u : plan.chosen()->ladder) {
    const DecodeStep step = decode_of(s, plan.chosen()->layout, u.users);
    const double place = real(static_cast<int64_t>(plot.x.categories.size()));
    plot.x.categories.push_back(fmt::format("{}", u.users));
    for (size_t g = 0; g < std::size(groups); ++g) {
      double seconds = 0;
      for (const NamedPart& part : step.parts()) {
        const auto& names = groups[g].parts;
        if (std::find(names.begin(), names.end(), part.name) != names.end()) seconds += part.part.seconds;
      }
      add(plot.series[g], place, seconds);
    }
  }
  return plot;
}

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
  for (const auto& [other, name] : {std::pair(&shares[gemm], "the dense products"), std::pair(&shares[routed], "the routed experts"), std::pair(&rest, "all else")}) {
    const double at = crossing(x, shares[mla], *other);
    if (at <= 0) continue;
    const size_t number = plot.rules.size() + 1;
    plot.rules.push_back({true, at, fmt::format("{}", number)});
    plot.note += fmt::format("{} {}: MLA attention passes {} at {:.0f}k tokens.", number == 1 ? " Marks:" : "", number, name, at / 1000);
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
  return mechanism_plot(plan, "Cache of a sequence, by mechanism", "bytes", Unit::bytes, [](const MechanismCost& c) { return c.cache_bytes; });
}

Plot mechanism_decode_plot(const Plan& plan) {
  return mechanism_plot(plan, "Bytes of a decoded token, by mechanism", "bytes read and written", Unit::bytes, [](const MechanismCost& c) { return c.decode_bytes; });
}

Plot mechanism_prefill_plot(const Plan& plan) {
  Plot plot = mechanism_plot(plan, "Attention of a prefill, by mechanism", "PFLOP", Unit::number, [](const MechanismCost& c) { return c.prefill_flops / 1e15; });
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
      add(s, real(drafted), speed_with(plan.scenario, plan.chosen()->layout, users, curve, drafted, SpeculationScheme::fused));
    }
    plot.series.push_back(std::move(s));
  }
  plot.rules.push_back({false, 1, "no gain"});
  return plot;
}

Plot speculation_users_plot(const Plan& plan) {
  Plot plot;
  plot.title = "Speculation: speed by users, 7 drafted";
  plot.note = "Accepted as on code. Schemes differ in how rejected tokens leave the KDA states; the dip is where verified tokens touch more experts.";
  plot.x = axis("users at once", Unit::count, true);
  plot.y = axis("times as fast", Unit::number);
  const AcceptanceCurve& code = published_acceptance().front();
  for (const auto& [scheme, name] : {std::pair(SpeculationScheme::fused, "fused replay"), std::pair(SpeculationScheme::replay, "replay"),
                                     std::pair(SpeculationScheme::snapshot, "snapshot")}) {
    Series s = line(name);
    for (const UserPoint& u : plan.chosen()->ladder) add(s, real(u.users), speed_with(plan.scenario, plan.chosen()->layout, u.users, code, 7, scheme));
    if (s.x.size() == 1) s.marker = Marker::dot;
    plot.series.push_back(std::move(s));
  }
  plot.rules.push_back({false, 1, "no gain"});
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
  for (const auto& [place, name] : {std::pair(PrefixPlace::network, "from the network"), std::pair(PrefixPlace::host, "from the host"),
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
