// Counts the experts that a step's tokens really choose, layer by layer: what a floor of bytes is made of.
#pragma once

#include <vector>

#include "k3/base/result.h"
#include "k3/format/config.h"
#include "k3/ops/ctx.h"

namespace k3::cli {

class RouteCounter {
 public:
  // Watches the routers of `ctx` (of a GPU) while it lives; steps are not captured then.
  RouteCounter(const ops::Ctx& ctx, const Config& config);
  ~RouteCounter();
  RouteCounter(const RouteCounter&) = delete;
  RouteCounter& operator=(const RouteCounter&) = delete;

  Status end_step();  // after the step has run
  // Over layers and steps; internal when no router was seen.
  Result<double> mean() const;

 private:
  const ops::Ctx& ctx_;
  int64_t first_, count_;
  std::vector<std::vector<int32_t>> ids_;  // of each router of the step
  Status copied_;
  int64_t chosen_ = 0, layers_ = 0;
};

// Different ids in [first, first + count).
int64_t distinct_ids(const std::vector<int32_t>& ids, int64_t first, int64_t count);

}  // namespace k3::cli
