#include "k3/plan/advise/advice.h"

#include <algorithm>
#include <cmath>

#include "k3/base/units.h"

namespace k3::plan {
namespace {

constexpr double kLeastGain = 1.03;
constexpr int64_t kMostGpus = 4096;

bool memory_side(const Part& part, const Hardware& hw) {
  return part.bytes / hw.hbm_bytes_per_second >= part.flops / hw.bf16_flops_per_second;
}

template <size_t N>
Binding largest(const std::array<NamedPart, N>& parts, double seconds, const Hardware& hw) {
  const NamedPart* most = &parts[0];
  for (const NamedPart& part : parts) {
    if (part.part.seconds > most->part.seconds) most = &part;
  }
  return {std::string(part_text(most->name)), most->part.seconds / seconds, memory_side(most->part, hw)};
}

// The same question with other machines: a layout belongs to a number of GPUs.
Scenario with_gpus(Scenario s, int64_t gpus) {
  s.gpus = gpus;
  const LayoutWish old = s.wish;
  s.wish = {};
  s.wish.moe = old.moe, s.wish.sp = old.sp, s.wish.up_sharded = old.up_sharded;
  return s;
}

Scenario with_free_layout(const Scenario& s) { return with_gpus(s, s.gpus); }

Scenario with_machine(Scenario s, const std::string& name) {
  s.machine = load_machine(name).value();  // a name of machine_names()
  return with_free_layout(s);
}

bool fixed_layout(const LayoutWish& wish) { return wish.tp || wish.dp || wish.pp || wish.dcp || wish.kcp || wish.moe; }

std::optional<LayoutAnswer> best_of(const Scenario& s) {
  const Result<Answer> all = answer(s);
  if (!all.ok() || !all->best) return std::nullopt;
  const LayoutAnswer& best = all->layouts[*all->best];
  return best.point ? std::optional(best) : std::nullopt;
}

// A request (or those asked for) finds room on some layout.
bool holds(const Scenario& s) {
  const Result<std::vector<Layout>> layouts = layouts_of(s);
  if (!layouts.ok()) return false;
  const int64_t wanted = std::max<int64_t>(1, s.load.users);
  return std::any_of(layouts->begin(), layouts->end(), [&](const Layout& layout) {
    const Capacity c = capacity(deployment_of(s, layout), static_cast<double>(s.load.total_tokens()), slots_of(s));
    return c.fits && c.requests >= wanted;
  });
}

void add_if_fits(std::vector<Nearest>& out, std::string what, Scenario scenario) {
  if (auto best = best_of(scenario)) out.push_back({std::move(what), std::move(scenario), *std::move(best)});
}

double routed_bytes_per_weight(const Counts& counts) {
  return counts.modules.routed.params > 0 ? counts.modules.routed.bytes / counts.modules.routed.params : 0;
}

Scenario with_packed_experts(Scenario s) {
  s.counts.modules.routed.bytes = s.counts.modules.routed.params * kMxfp4Bytes;
  return s;
}

bool is_shared_machine(const Scenario& s) {
  const std::vector<std::string> names = machine_names();
  return std::find(names.begin(), names.end(), s.machine.source) != names.end();
}

// What could be changed, cheapest first.
std::vector<std::pair<Change, Scenario>> candidates(const Scenario& s) {
  std::vector<std::pair<Change, Scenario>> out;
  const auto add = [&](Effort effort, std::string what, Scenario scenario) {
    Change change;
    change.what = std::move(what), change.effort = effort;
    out.emplace_back(std::move(change), std::move(scenario));
  };
  if (fixed_layout(s.wish)) {
    Scenario free = with_free_layout(s);
    free.wish.moe.reset();
    add(Effort::layout, "another layout", std::move(free));
  }
  if (!s.wish.sp) {
    Scenario sharded = s;
    sharded.wish.sp = true;
    add(Effort::engine, "residual stream sharded in prefills (--sp)", std::move(sharded));
  }
  Scenario small = s;
  if (s.precision.cache > kFp8Bytes) {
    small.precision.cache = kFp8Bytes;
    add(Effort::numerics, "latents in FP8 (--latent-dtype f8_e4m3)", small);
  }
  if (s.precision.state > kBf16Bytes) {
    Scenario states = s;
    states.precision.state = small.precision.state = kBf16Bytes;
    add(Effort::numerics, "KDA states in BF16 (--state-dtype bf16)", std::move(states));
    if (s.precision.cache > kFp8Bytes) add(Effort::numerics, "FP8 latents and BF16 states", std::move(small));
  }
  if (routed_bytes_per_weight(s.counts) > 1)
    add(Effort::numerics, "experts packed in MXFP4 (--experts mxfp4)", with_packed_experts(s));
  if (s.draft.tokens == 0) {
    Scenario drafting = s;
    drafting.draft = {7, published_acceptance().front(), SpeculationScheme::fused};
    add(Effort::draft, "a draft model accepted as on code (--draft 7)", std::move(drafting));
  }
  if (s.gpus * 2 <= kMostGpus)
    add(Effort::more_gpus, fmt::format("{} GPUs instead of {}", s.gpus * 2, s.gpus), with_gpus(s, s.gpus * 2));
  if (is_shared_machine(s)) {
    for (const std::string& name : machine_names()) {
      if (name != s.machine.source)
        add(Effort::other_gpus, fmt::format("{} {} instead of {}", s.gpus, name, s.machine.source), with_machine(s, name));
    }
  }
  return out;
}

}  // namespace

std::string_view part_text(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kTexts[] = {{"kda_proj", "KDA projections"},
                                                                      {"mla_proj", "MLA projections"},
                                                                      {"moe_dense", "router, latent, shared experts"},
                                                                      {"dense_ffn", "dense layers"},
                                                                      {"head", "head"},
                                                                      {"routed", "routed experts"},
                                                                      {"kda_state", "KDA states"},
                                                                      {"mla_core", "MLA attention"},
                                                                      {"attn_res", "AttnRes"},
                                                                      {"communication", "communication"},
                                                                      {"kernels", "kernel launches"},
                                                                      {"gemm", "dense products"},
                                                                      {"kda_scan", "KDA scan"},
                                                                      {"elementwise", "elementwise"},
                                                                      {"hop", "pipeline hops"}};
  for (const auto& [part, text] : kTexts) {
    if (part == name) return text;
  }
  return name;
}

Bindings bindings_of(const Scenario& s, const LayoutAnswer& chosen) {
  Bindings b;
  const UserPoint& point = *chosen.point;
  const DecodeStep decode = decode_of(s, chosen.layout, point.users);
  const PrefillTime prefill = prefill_of(s, chosen.layout, prefill_batch_requests(s, chosen.layout, point.users));
  b.decode = largest(decode.parts(), decode.stage_seconds, s.machine.hw);
  b.prefill = largest(prefill.parts(), prefill.seconds, s.machine.hw);
  b.memory_stops_users = s.load.users == 0 && point.meets && point.users == chosen.capacity.requests;
  return b;
}

DraftEffect draft_effect(const Scenario& s, const Layout& layout, int64_t users) {
  Scenario plain = s;
  plain.draft.tokens = 0;
  DraftEffect e;
  e.plain_step_seconds = decode_of(plain, layout, users).seconds;
  e.step_seconds = decode_of(s, layout, users).seconds;
  e.tokens_per_step = s.draft.acceptance.at(s.draft.tokens, s.load.mean_context());
  e.speed = e.tokens_per_step * e.plain_step_seconds / e.step_seconds;
  e.break_even = break_even(e.plain_step_seconds, e.step_seconds, s.draft.tokens);
  return e;
}

int64_t fewest_gpus(const Scenario& s, int64_t most) {
  const int64_t given = s.wish.tp.value_or(1) * s.wish.dp.value_or(1) * s.wish.pp.value_or(1);
  Scenario tried = s;
  for (int64_t gpus = given; gpus <= most; gpus *= 2) {
    tried.gpus = gpus;
    if (holds(tried)) return gpus;
  }
  return 0;
}

Missing missing_of(const Scenario& s, const Answer& answer) {
  Missing m;
  const double wanted = static_cast<double>(std::max<int64_t>(1, s.load.users));
  for (const LayoutAnswer& layout : answer.layouts) {
    const double each = layout.capacity.per_request_bytes * std::ceil(wanted / static_cast<double>(layout.layout.dp));
    const double bytes = each - layout.capacity.free_bytes;
    if (&layout != &answer.layouts.front() && bytes >= m.bytes) continue;
    m.layout = layout.layout, m.capacity = layout.capacity, m.bytes = bytes;
  }
  if (fixed_layout(s.wish)) add_if_fits(m.nearest, "another layout", with_free_layout(s));
  if (routed_bytes_per_weight(s.counts) > 1)
    add_if_fits(m.nearest, "experts packed in MXFP4 (--experts mxfp4)", with_packed_experts(s));
  Scenario small = s;
  small.precision.cache = kFp8Bytes, small.precision.state = kBf16Bytes, small.slots = 1;
  add_if_fits(m.nearest, "FP8 latents, BF16 states, one slot (--latent-dtype f8_e4m3 --state-dtype bf16 --slots 1)",
              std::move(small));
  if (const int64_t gpus = fewest_gpus(with_free_layout(s), kMostGpus); gpus > 0) {
    add_if_fits(m.nearest, fmt::format("{} GPUs of {}", gpus, s.machine.hw.name), with_gpus(s, gpus));
  }
  for (const std::string& name : machine_names()) {
    if (name != s.machine.source) add_if_fits(m.nearest, fmt::format("{} GPUs of {}", s.gpus, name), with_machine(s, name));
  }
  return m;
}

std::vector<Change> next_changes(const Scenario& s, const LayoutAnswer& chosen) {
  std::vector<Change> all;
  const UserPoint& now = *chosen.point;
  for (auto& [change, scenario] : candidates(s)) {
    const std::optional<LayoutAnswer> best = best_of(scenario);
    if (!best) continue;
    change.answer = *best;
    change.meets = best->point->meets;
    // With the users given, what counts is how fast they are; else what a GPU brings.
    change.gain = s.load.users > 0 ? best->point->output_per_second / now.output_per_second
                                   : best->point->tokens_per_second_gpu / now.tokens_per_second_gpu;
    if (change.meets != now.meets ? change.meets : change.gain >= kLeastGain) all.push_back(change);
  }
  // The best of each effort.
  std::vector<Change> out;
  for (const Change& change : all) {
    const auto same =
        std::find_if(out.begin(), out.end(), [&](const Change& other) { return other.effort == change.effort; });
    if (same == out.end()) {
      out.push_back(change);
    } else if (better(change.answer, same->answer, s.objective)) {
      *same = change;
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Change& a, const Change& b) { return a.effort < b.effort; });
  return out;
}

}  // namespace k3::plan
