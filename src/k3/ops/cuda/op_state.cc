#include "k3/ops/cuda/op_state.h"

namespace k3::ops::cuda {

OpState::OpState() {
  Result<GemmPlans> plans = GemmPlans::create();
  if (plans.ok()) {
    plans_.emplace(*std::move(plans));
  } else {
    without_plans_ = plans.error().message;
  }
}

}  // namespace k3::ops::cuda
