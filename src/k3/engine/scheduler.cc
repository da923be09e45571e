#include "k3/engine/scheduler.h"

#include <algorithm>
#include <numeric>

namespace k3 {
bool goes_before(SchedulePolicy policy, const Candidate& a, const Candidate& b) {
  if (a.resumed != b.resumed) return a.resumed;
  if (policy == SchedulePolicy::slo) {
    if (a.priority != b.priority) return a.priority > b.priority;
    const bool timed_a = a.due_seconds > 0, timed_b = b.due_seconds > 0;
    if (timed_a != timed_b) return timed_a;
    if (timed_a && a.due_seconds != b.due_seconds) return a.due_seconds < b.due_seconds;
  }
  return a.order < b.order;
}

std::vector<int64_t> share_prefill(std::span<const int64_t> remaining, int64_t budget) {
  std::vector<int64_t> shares(remaining.size(), 0);
  const auto give = [&](size_t i, int64_t most) {
    const int64_t tokens = std::min({most, remaining[i] - shares[i], budget});
    shares[i] += tokens;
    budget -= tokens;
  };
  const auto first = std::find_if(remaining.begin(), remaining.end(), [](int64_t r) { return r > 0; });
  if (first == remaining.end() || budget <= 0) return shares;
  give(static_cast<size_t>(first - remaining.begin()), std::max<int64_t>(1, budget / 4));
  std::vector<size_t> order(remaining.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remaining[a] < remaining[b]; });
  for (const size_t i : order) give(i, budget);
  return shares;
}

size_t choose_victim(SchedulePolicy policy, std::span<const Candidate> running) {
  size_t worst = 0;
  for (size_t i = 1; i < running.size(); ++i) {
    if (goes_before(policy, running[worst], running[i])) worst = i;
  }
  return worst;
}

}  // namespace k3
