#include "k3/plan/advise/answer.h"

#include <algorithm>
#include <cmath>

#include "k3/plan/cost/prefix.h"

namespace k3::plan {
namespace {

// The batch of prompts of one attention group, and the pieces in which a pipeline takes it.
constexpr int64_t kPrefillBatchTokens = 16384, kPrefillChunkTokens = 2048;
constexpr int64_t kMostBatchRequests = 4096;

double real(int64_t value) { return static_cast<double>(value); }

PrefixPlace place_of(Tier tier) {
  return tier == Tier::gpu ? PrefixPlace::hbm : tier == Tier::host ? PrefixPlace::host : PrefixPlace::network;
}

// Of one request whose prefix is reused.
double restore_seconds(const Scenario& s, const Layout& layout) {
  if (s.load.hit_tokens() == 0) return 0;
  return prefix_benefit(deployment_of(s, layout), place_of(s.load.tier), s.load.hit_tokens(), s.load.new_tokens())
      .restore_seconds;
}

double accepted_tokens(const Scenario& s) {
  return s.draft.tokens == 0 ? 1 : s.draft.acceptance.at(s.draft.tokens, s.load.mean_context());
}

// A quantile over users 0 ... users - 1 of what user u sees, linear between neighbours as everywhere.
template <class Of>
double over_users(int64_t users, double q, const Of& of) {
  const double at = q * real(users - 1);
  const auto low = static_cast<int64_t>(at);
  const int64_t high = std::min(low + 1, users - 1);
  return of(low) + (of(high) - of(low)) * (at - real(low));
}

bool meets(const Objective& objective, const UserPoint& point) {
  return point.ttft_p95 <= objective.ttft_seconds && point.tpot_p95 <= objective.tpot_seconds;
}

// How far a point misses the objective: 1 for one that meets it.
double excess(const Objective& objective, const UserPoint& point) {
  return std::max({1.0, point.ttft_p95 / objective.ttft_seconds, point.tpot_p95 / objective.tpot_seconds});
}

// The most users, up to `most`, whose point meets the objective; 0: not even one.
int64_t most_users(const Scenario& s, const Layout& layout, int64_t most) {
  if (point_of(s, layout, most).meets) return most;
  int64_t low = 0, high = most;  // low meets, high does not
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (point_of(s, layout, middle).meets ? low : high) = middle;
  }
  return low;
}

}  // namespace

int64_t prefill_batch_requests(const Scenario& s, const Layout& layout, int64_t users) {
  const int64_t groups = std::max<int64_t>(1, layout.dp / layout.kcp);
  const int64_t fit = std::min(kPrefillBatchTokens * groups / s.load.new_tokens(), kMostBatchRequests);
  return std::clamp<int64_t>(fit, 1, users);
}

PrefillTime prefill_of(const Scenario& s, const Layout& layout, int64_t requests) {
  const PrefillSequence sequences{s.load.new_tokens(), s.load.hit_tokens(), requests};
  // Pieces of what the fullest attention group has: each has a pipeline of its own.
  const int64_t groups = std::max<int64_t>(1, layout.dp / layout.kcp);
  const int64_t tokens = (requests + groups - 1) / groups * s.load.new_tokens();
  return prefill_time(deployment_of(s, layout), {{&sequences, 1}, std::max<int64_t>(1, tokens / kPrefillChunkTokens)});
}

DecodeStep decode_of(const Scenario& s, const Layout& layout, int64_t users) {
  DecodeBatch batch;
  batch.requests = users;
  batch.context_tokens = s.load.mean_context();
  batch.draft_tokens = s.draft.tokens;
  batch.scheme = s.draft.scheme;
  return decode_step(deployment_of(s, layout), batch);
}

UserPoint point_of(const Scenario& s, const Layout& layout, int64_t users) {
  UserPoint p;
  p.users = users;
  const int64_t of_a_batch = prefill_batch_requests(s, layout, users);
  const PrefillTime prefill = prefill_of(s, layout, of_a_batch);
  const double batch_seconds = prefill.seconds + real(of_a_batch) * restore_seconds(s, layout);
  // The first batch fills the pipeline, and its fullest group ends last; those behind it follow at the steady rate.
  const double fill = std::max(0.0, prefill.latency_seconds - prefill.seconds);
  const double request = s.machine.efficiency.request_seconds;
  p.step_seconds = decode_of(s, layout, users).seconds;
  const int64_t batches = (users + of_a_batch - 1) / of_a_batch;
  const double prefill_seconds = real(batches) * batch_seconds + fill + request;
  const double gaps = real(s.load.output_tokens - 1);
  p.total_seconds = prefill_seconds + gaps / accepted_tokens(s) * p.step_seconds;
  p.prefill_share = prefill_seconds / p.total_seconds;
  const auto ttft = [&](int64_t user) { return real(user / of_a_batch + 1) * batch_seconds + fill + request; };
  const auto tpot = [&](int64_t user) { return gaps > 0 ? (p.total_seconds - ttft(user)) / gaps : 0; };
  p.ttft_p50 = over_users(users, 0.5, ttft);
  p.ttft_p95 = over_users(users, 0.95, ttft);
  p.tpot_p50 = over_users(users, 0.5, tpot);
  p.tpot_p95 = over_users(users, 0.05, tpot);  // the first to be prefilled waits longest afterwards
  const double gpus = real(layout.gpus());
  p.output_per_second = real(users * s.load.output_tokens) / p.total_seconds;
  p.output_per_second_gpu = p.output_per_second / gpus;
  p.tokens_per_second_gpu = real(users * s.load.total_tokens()) / p.total_seconds / gpus;
  const double price = s.gpu_hour / 3600 * 1e6;  // of a million GPU seconds
  p.cost_per_million = price / p.tokens_per_second_gpu;
  p.cost_per_million_output = price / p.output_per_second_gpu;
  p.meets = meets(s.objective, p);
  return p;
}

LayoutAnswer answer_layout(const Scenario& s, const Layout& layout) {
  LayoutAnswer answer;
  answer.layout = layout;
  answer.capacity = capacity(deployment_of(s, layout), real(s.load.total_tokens()), slots_of(s));
  const int64_t most = answer.capacity.requests;
  if (!answer.capacity.fits || most < 1) return answer;
  for (int64_t users = 1; users < most; users *= 2) answer.ladder.push_back(point_of(s, layout, users));
  answer.ladder.push_back(point_of(s, layout, most));
  if (s.load.users == 0) {
    answer.point = point_of(s, layout, std::max<int64_t>(1, most_users(s, layout, most)));
  } else if (s.load.users <= most) {
    answer.point = point_of(s, layout, s.load.users);
  }
  return answer;
}

bool better(const LayoutAnswer& a, const LayoutAnswer& b, const Objective& objective) {
  if (a.point.has_value() != b.point.has_value()) return a.point.has_value();
  if (!a.point) return a.capacity.requests > b.capacity.requests;
  if (a.point->meets != b.point->meets) return a.point->meets;
  if (!a.point->meets) return excess(objective, *a.point) < excess(objective, *b.point);
  return a.point->tokens_per_second_gpu > b.point->tokens_per_second_gpu;
}

Result<Answer> answer(const Scenario& s) {
  K3_TRY_ASSIGN(const std::vector<Layout> layouts, layouts_of(s));
  Answer out;
  for (const Layout& layout : layouts) {
    out.layouts.push_back(answer_layout(s, layout));
    const size_t last = out.layouts.size() - 1;
    if (out.layouts[last].ladder.empty()) continue;
    if (!out.best || better(out.layouts[last], out.layouts[*out.best], s.objective)) out.best = last;
  }
  return out;
}

std::vector<FrontierPoint> frontier(const Answer& answer, bool meeting) {
  std::vector<FrontierPoint> all, out;
  for (const LayoutAnswer& layout : answer.layouts) {
    for (const UserPoint& point : layout.ladder) all.push_back({layout.layout, point});
    if (layout.point) all.push_back({layout.layout, *layout.point});
  }
  if (meeting) std::erase_if(all, [](const FrontierPoint& point) { return !point.point.meets; });
  std::stable_sort(all.begin(), all.end(), [](const FrontierPoint& a, const FrontierPoint& b) {
    const double fast_a = a.point.user_tokens_per_second(), fast_b = b.point.user_tokens_per_second();
    return fast_a != fast_b ? fast_a > fast_b : a.point.tokens_per_second_gpu > b.point.tokens_per_second_gpu;
  });
  double most = 0;
  for (const FrontierPoint& point : all) {
    if (point.point.tokens_per_second_gpu <= most) continue;
    most = point.point.tokens_per_second_gpu;
    out.push_back(point);
  }
  return out;
}

}  // namespace k3::plan
