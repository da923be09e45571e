#include "k3/plan/advise/scenario.h"

#include <algorithm>

#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

std::vector<int64_t> divisors(int64_t of) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= of; ++d) {
    if (of % d != 0) continue;
    out.push_back(d);
    if (d * d != of) out.push_back(of / d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int64_t> choices(const std::optional<int64_t>& wish, int64_t of) {
  return wish ? std::vector<int64_t>{*wish} : divisors(of);
}

// Without a wish: on one GPU both are the same; sliced experts under several attention groups are not modelled.
std::vector<MoeSharding> moe_choices(const LayoutWish& wish, const Layout& layout) {
  if (wish.moe) return {*wish.moe};
  if (layout.stage_ranks() == 1) return {MoeSharding::tp};
  if (layout.dp > 1) return {MoeSharding::ep};
  return {MoeSharding::tp, MoeSharding::ep};
}

// The layouts of one (tp, dp, pp) whatever else is free in it. Without a wish, context parallelism comes in powers of two.
void add_inner(const Scenario& s, Layout layout, std::vector<Layout>* out, std::optional<Error>* first_refusal) {
  const auto power_of_two = [](int64_t n) { return (n & (n - 1)) == 0; };
  for (const int64_t dcp : choices(s.wish.dcp, layout.tp)) {
    for (const int64_t kcp : choices(s.wish.kcp, layout.dp)) {
      if (!(s.wish.dcp || power_of_two(dcp)) || !(s.wish.kcp || power_of_two(kcp))) continue;
      for (const MoeSharding moe : moe_choices(s.wish, layout)) {
        layout.dcp = dcp, layout.kcp = kcp, layout.moe = moe;
        const Status status = validate(deployment_of(s, layout));
        if (status.ok())
          out->push_back(layout);
        else if (!*first_refusal)
          *first_refusal = status.error();
      }
    }
  }
}

std::vector<Layout> all_layouts(const Scenario& s, int64_t gpus, std::optional<Error>* first_refusal) {
  std::vector<Layout> out;
  for (const int64_t tp : choices(s.wish.tp, gpus)) {
    for (const int64_t pp : choices(s.wish.pp, gpus)) {
      if (gpus % (tp * pp) != 0) continue;
      Layout layout;
      layout.tp = tp, layout.pp = pp, layout.dp = gpus / (tp * pp);
      layout.sp = s.wish.sp, layout.up_sharded = s.wish.up_sharded;
      if (s.wish.dp && *s.wish.dp != layout.dp) continue;
      add_inner(s, layout, &out, first_refusal);
    }
  }
  return out;
}

// "4032 or 4096": the next numbers of GPUs, down and up, that have a layout. One GPU always has.
std::string nearest_counts(const Scenario& s) {
  std::optional<Error> ignored;
  int64_t below = s.gpus - 1, above = s.gpus + 1;
  while (below > 1 && all_layouts(s, below, &ignored).empty()) --below;
  while (above <= 2 * s.gpus && all_layouts(s, above, &ignored).empty()) ++above;
  return above <= 2 * s.gpus ? fmt::format("{} or {}", below, above) : fmt::format("{}", below);
}

}  // namespace

Deployment deployment_of(const Scenario& s, const Layout& layout) {
  return {s.counts, s.machine.hw, s.machine.efficiency, layout, s.precision};
}

double slots_of(const Scenario& s) {
  if (s.draft.tokens == 0) return s.slots;
  const StateTraffic traffic = speculation_state_traffic(s.counts, s.precision, s.draft.scheme, s.draft.tokens);
  return s.slots + traffic.scratch_bytes / fixed_bytes(s.counts, s.precision);
}

Result<std::vector<Layout>> layouts_of(const Scenario& s) {
  std::optional<Error> first_refusal;
  const int64_t given = s.wish.tp.value_or(1) * s.wish.dp.value_or(1) * s.wish.pp.value_or(1);
  if (s.gpus % given != 0) {
    return fail(Code::invalid_argument, "tp x dp x pp = {} does not divide {} GPUs", given, s.gpus);
  }
  std::vector<Layout> out = all_layouts(s, s.gpus, &first_refusal);
  if (!out.empty()) return out;
  if (first_refusal && (s.wish.tp || s.wish.dp || s.wish.pp || s.wish.dcp || s.wish.kcp || s.wish.moe))
    return *std::move(first_refusal);
  if (first_refusal) {
    return fail(Code::invalid_argument, "the model cannot be laid out on {} GPUs in any way, but on {}; the first that was tried: {}",
                s.gpus, nearest_counts(s), first_refusal->message);
  }
  return fail(Code::invalid_argument, "no layout of {} GPUs has tp {}, dp {}, pp {}", s.gpus, s.wish.tp.value_or(0),
              s.wish.dp.value_or(0), s.wish.pp.value_or(0));
}

std::string multiple_text(double factor) {
  return factor >= 0.1 && factor < 10 ? fmt::format("{:.2f}", factor) : fmt::format("{:.3g}", factor);
}

std::string scenario_name(const Scenario& s) {
  return s.name.empty() ? fmt::format("{} {}", s.gpus, s.machine.hw.name) : s.name;
}

std::string layout_text(const Layout& l) {
  std::string text = fmt::format("TP{}", l.tp);
  if (l.pp > 1) text += fmt::format(" PP{}", l.pp);
  if (l.dp > 1) text += fmt::format(" DP{}", l.dp);
  if (l.moe == MoeSharding::ep) text += fmt::format(" EP{}", l.stage_ranks());
  if (l.dcp > 1) text += fmt::format(" DCP{}", l.dcp);
  if (l.kcp > 1) text += fmt::format(" KCP{}", l.kcp);
  if (l.sp) text += " SP";
  return text;
}

}  // namespace k3::plan
