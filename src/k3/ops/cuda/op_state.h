// Purpose:  what the ops keep on one GPU between steps: measured products, and the first launch of a step that failed.
// Shapes:   none.
// Units:    none.
// Memory:   owns cuBLASLt's workspace; belongs to whoever makes the Ctx.
// Threads:  one Ctx, one thread.
// Errors:   create: those of GemmPlans; without cuBLASLt every product runs on the row kernel. take_error: see dispatch.h.
// Source:   none.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"

namespace k3::ops::cuda {

class OpState {
 public:
  OpState();
  void note(CudaStatus status, const char* what) {
    if (!status.ok() && first_.ok()) {
      first_ = status;
      what_ = what;
    }
  }
  Status take_error() {
    const CudaStatus status = std::exchange(first_, {});
    return to_status(status, what_);
  }
  GemmPlans* plans() { return plans_ ? &*plans_ : nullptr; }
  const std::string& without_plans() const { return without_plans_; }  // why there are none

 private:
  std::optional<GemmPlans> plans_;
  std::string without_plans_;
  CudaStatus first_;
  const char* what_ = "";
};

}  // namespace k3::ops::cuda
