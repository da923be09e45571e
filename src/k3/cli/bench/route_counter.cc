#include "k3/cli/bench/route_counter.h"

#include "k3/ops/cuda/dispatch.h"

namespace k3::cli {

RouteCounter::RouteCounter(const ops::Ctx& ctx, const Config& config)
    : ctx_(ctx), first_(config.first_local_expert), count_(config.local_expert_count()) {
  ops::cuda::watch_routes(ctx.gpu, [this](const Tensor& ids) {
    ids_.emplace_back(static_cast<size_t>(ids.size()));
    Status status = copy_async(ids_.back().data(), ids.data, 4 * ids.size(), ctx_.stream);
    if (!status.ok() && copied_.ok()) copied_ = std::move(status);
  });
}

RouteCounter::~RouteCounter() { ops::cuda::watch_routes(ctx_.gpu, {}); }

Status RouteCounter::end_step() {
  K3_TRY(synchronize(ctx_.stream));
  K3_TRY(std::move(copied_));
  copied_ = {};
  for (const std::vector<int32_t>& ids : ids_) chosen_ += distinct_ids(ids, first_, count_);
  layers_ += static_cast<int64_t>(ids_.size());
  ids_.clear();
  return {};
}

Result<double> RouteCounter::mean() const {
  if (layers_ == 0) return fail(Code::internal, "no router told what it chose: the floors of experts would be wrong");
  return static_cast<double>(chosen_) / static_cast<double>(layers_);
}

int64_t distinct_ids(const std::vector<int32_t>& ids, int64_t first, int64_t count) {
  std::vector<bool> seen(static_cast<size_t>(count), false);
  int64_t found = 0;
  for (const int32_t id : ids) {
    if (id < first || id >= first + count || seen[static_cast<size_t>(id - first)]) continue;
    seen[static_cast<size_t>(id - first)] = true;
    ++found;
  }
  return found;
}

}  // namespace k3::cli
