// Clocks of steps on a GPU, for benches.
#include <algorithm>

#include "k3/model/model.h"
#include "k3/model/run/stepper.h"

namespace k3 {

Status Stepper::time_steps() {
  if (gpu_ == nullptr) return fail(Code::unsupported, "events are for steps on a GPU");
  K3_TRY_ASSIGN(gpu_->begun, make_event());
  K3_TRY_ASSIGN(gpu_->computed, make_event());
  return {};
}

Result<double> Stepper::last_seconds() const {
  K3_CHECK(gpu_ != nullptr && gpu_->begun, "last_seconds without time_steps");
  return seconds_between(gpu_->begun, gpu_->computed);
}

Result<double> Stepper::time_part(const Batch& batch, const Part& part, int64_t repeats) {
  K3_CHECK(gpu_ != nullptr, "time_part without a GPU");
  Gpu& gpu = *gpu_;
  const Stream stream = gpu.stream.get();
  K3_TRY(set_current_device(model_->device()));
  K3_TRY(gpu.buffers.stage(batch, stream));
  Batch staged = batch;
  staged.caches = gpu.buffers.caches();
  ctx_.step = &gpu.buffers.step();
  const auto compute = [&]() -> Status {
    const Workspace::Scope scope(*workspace_);
    K3_TRY(part(ctx_, staged));
    return ops::cuda::take_error(gpu.ops.get());
  };
  K3_TRY(compute());  // warms the workspace
  K3_TRY(synchronize(stream));
  if (repeats == 0) return 0.0;
  K3_TRY(begin_capture(stream));
  Status status = compute();
  Result<GraphHandle> captured = end_capture(stream);
  K3_TRY(std::move(status));
  K3_TRY_ASSIGN(const GraphHandle graph, std::move(captured));
  K3_TRY_ASSIGN(const EventHandle begin, make_event());
  K3_TRY_ASSIGN(const EventHandle end, make_event());
  std::vector<double> seconds;
  for (int64_t i = 0; i <= repeats; ++i) {
    K3_TRY(record(begin, stream));
    K3_TRY(launch_graph(graph, stream));
    K3_TRY(record(end, stream));
    K3_TRY_ASSIGN(const double taken, seconds_between(begin, end));
    if (i > 0) seconds.push_back(taken);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace k3
