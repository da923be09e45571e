// Internal to ops/optim. A Ctx on the GPU for the optimizer's tests, and waiting for it.
#pragma once

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/gpu_test_util.h"

namespace k3::ops::cuda {

struct GpuRun {
  OpStateHandle state{new_op_state()};
  Workspace workspace{Device{0}};
  Ctx ctx;
  GpuRun() { ctx = {.device = Device{0}, .gpu = state.get(), .workspace = &workspace}; }
  void finish() {  // waits; after a launch that failed nothing can go on
    if (const Status status = take_error(state.get()); !status.ok()) {
      fmt::print(stderr, "{}\n", status.error().message);
      std::fflush(stderr);
      std::_Exit(3);
    }
    gpu_sync();
  }
};

}  // namespace k3::ops::cuda
