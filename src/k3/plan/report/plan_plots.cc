#include "k3/plan/report/plan_plots.h"

#include <algorithm>
#include <cmath>

#include "k3/base/units.h"
#include "k3/plan/advise/advice.h"
#include "k3/plan/report/plan_plot_parts.h"

namespace k3::plan {

using namespace plots;

namespace {

std::string point_label(const FrontierPoint& f) {
  return fmt::format("{}, {} users: TTFT p95 {:.2f} s, TPOT p95 {:.1f} ms", layout_text(f.layout), f.point.users,
                     f.point.ttft_p95, f.point.tpot_p95 * 1e3);
}

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
    best.labels.push_back(point_label(f));
  }
  // Thousands of points of a large sweep make a page heavy and its cloud no clearer.
  constexpr size_t kMostPoints = 300;
  if (colour == 0 && all.x.size() > 0) {
    const size_t every = all.x.size() / kMostPoints + 1;
    Series thinned = all;
    thinned.x.clear(), thinned.y.clear(), thinned.labels.clear();
    for (size_t i = 0; i < all.x.size(); i += every) {
      add(thinned, all.x[i], all.y[i]);
      thinned.labels.push_back(all.labels[i]);
    }
    thinned.name = "every layout, " + name_of(plan);
    plot.series.push_back(std::move(thinned));
  }
  plot.series.push_back(std::move(best));
}

}  // namespace

Plot frontier_plot(const Plan& plan, const Plan* against) {
  Plot plot;
  plot.title = "Throughput against the speed of a user";
  plot.note =
      "Each dot is a layout with a number of users; on the line nothing else is better in both. Speeds are 1 / TPOT, with "
      "the wait for other prompts.";
  plot.wide = true;
  plot.x = axis("tokens/s of a user", Unit::number);
  plot.y = axis("tokens/s/GPU, in and out", Unit::count);
  plot.x.from_zero = plot.y.from_zero = true;
  add_frontier(plot, plan, 0, against != nullptr ? name_of(plan) : "frontier");
  if (against != nullptr) add_frontier(plot, *against, 1, name_of(*against));
  if (plan.scenario.objective.ttft_seconds < kNoLimit) {
    plot.note += " The box is of TPOT alone; a line of its own holds TTFT as well.";
    Series within = line(against != nullptr ? name_of(plan) + ", TTFT met" : "with TTFT met", 2);
    within.marker = Marker::dot;
    for (const FrontierPoint& f : frontier(plan.answer, true)) {
      add(within, f.point.user_tokens_per_second(), f.point.tokens_per_second_gpu);
      within.labels.push_back(point_label(f));
    }
    if (!within.x.empty()) plot.series.push_back(std::move(within));
  }
  const UserPoint* const point = plan.chosen()->point ? &*plan.chosen()->point : nullptr;
  if (point != nullptr)
    plot.marks.push_back(
        {point->user_tokens_per_second(), point->tokens_per_second_gpu, fmt::format("the answer: {} users", point->users)});
  if (plan.scenario.objective.tpot_seconds < kNoLimit) {
    double right = 0, top = 0;
    for (const Series& s : plot.series) {
      for (const double x : s.x) right = std::max(right, x);
      for (const double y : s.y) top = std::max(top, y);
    }
    const double left = 1 / plan.scenario.objective.tpot_seconds;
    if (left < right)
      plot.boxes.push_back(
          {left, right, 0, top, fmt::format("TPOT within {:.0f} ms", plan.scenario.objective.tpot_seconds * 1e3)});
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
    const bool speaks = p.scenario.load.output_tokens > 1;
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
    if (speaks) plot.series.push_back(std::move(tpot));
  };
  add_plan(plan, 0, "", true);
  if (against != nullptr && against->chosen() != nullptr) add_plan(*against, 2, ", " + name_of(*against), false);
  if (plan.scenario.objective.tpot_seconds < kNoLimit)
    plot.rules.push_back({false, plan.scenario.objective.tpot_seconds, "objective of TPOT"});
  if (plan.scenario.objective.ttft_seconds < kNoLimit)
    plot.rules.push_back({false, plan.scenario.objective.ttft_seconds, "objective of TTFT"});
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
      add(s, real(tokens),
          real(capacity(deployment_of(p.scenario, p.chosen()->layout), real(tokens), slots_of(p.scenario)).requests));
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
  if (equal > 1024 && equal < kMostLength)
    plot.marks.push_back({equal, fixed, fmt::format("equal at {} tokens", format_grouped(std::llround(equal)))});
  return plot;
}

Plot memory_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  const LayoutAnswer& chosen = *plan.chosen();
  const int64_t users = users_of(plan);
  Plot plot;
  plot.title = fmt::format("Memory of a GPU with {} user{}", users, users == 1 ? "" : "s");
  plot.note =
      "The chosen layout. Above the line requests do not fit; states are split over tp, latents are whole on each of its "
      "GPUs unless DCP splits them.";
  plot.x = axis("tokens of each", Unit::count, true);
  plot.y = axis("memory of a GPU", Unit::bytes);
  plot.y.from_zero = true;
  plot.y.max = s.machine.hw.memory_bytes * 1.25;
  Series weights = line("weights", 2), rest = line("reserve, workspaces", 6), state = line("KDA states", 1),
         latents = line("MLA latents", 0);
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
  plot.rules.push_back(
      {false, s.machine.hw.memory_bytes, fmt::format("memory, {:.0f} GB", s.machine.hw.memory_bytes / 1e9)});
  return plot;
}

Plot decode_plot(const Plan& plan) {
  const Scenario& s = plan.scenario;
  Plot plot;
  plot.title = "A decode step by parts";
  plot.note = fmt::format("One stage of {}, at {:.0f} tokens of context.", layout_text(plan.chosen()->layout),
                          s.load.mean_context());
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

namespace {

std::vector<PagePlot> other_plots(const Plan& plan, const Plan* against) {
  return {{"", "latency", users_plot(plan, against)},
          {"", "decode", decode_plot(plan)},
          {"Memory", "memory", memory_plot(plan)},
          {"", "history", history_plot(plan)},
          {"", "users", capacity_plot(plan, against)},
          {"", "prefix", prefix_plot(plan)},
          {"Prefill", "prefill-split", prefill_split_plot(plan)},
          {"", "prefill-time", prefill_time_plot(plan, against)},
          {"", "mechanism-prefill", mechanism_prefill_plot(plan)},
          {"Attention mechanisms on this model's shape", "mechanism-cache", mechanism_cache_plot(plan)},
          {"", "mechanism-decode", mechanism_decode_plot(plan)},
          {"Speculation", "speculation-drafted", speculation_length_plot(plan)},
          {"", "speculation-users", speculation_users_plot(plan)},
          {"", "speculation-need", speculation_need_plot(plan)}};
}

}  // namespace

std::vector<PagePlot> page_plots(const Plan& plan, const Plan* against) {
  if (against != nullptr && against->chosen() == nullptr) against = nullptr;
  // Answers of one token have no speed.
  const bool speeds =
      plan.scenario.load.output_tokens > 1 && (against == nullptr || against->scenario.load.output_tokens > 1);
  std::vector<PagePlot> plots;
  if (speeds) plots.push_back({"", "frontier", frontier_plot(plan, against)});
  for (PagePlot& plot : other_plots(plan, against)) plots.push_back(std::move(plot));
  return plots;
}

}  // namespace k3::plan
