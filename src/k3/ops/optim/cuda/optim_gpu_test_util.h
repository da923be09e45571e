// Internal to ops/optim. A Ctx on the GPU for the optimizer's tests, and units that own their device arrays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/gpu_test_util.h"

namespace k3::ops::cuda {

struct GpuRun {
  OpStateHandle state{new_op_state()};
  Workspace workspace{Device{0}};
  Ctx ctx;
  GpuRun() { ctx = {.device = Device{0}, .gpu = state.get(), .workspace = &workspace}; }
  void finish() {  // waits; a launch that failed fails the test
    const Status status = take_error(state.get());
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    gpu_sync();
  }
};

}  // namespace k3::ops::cuda
