#include "k3/ops/cuda/op_state.h"

#include "k3/ops/cuda/dispatch.h"

namespace k3::ops::cuda {

OpState::OpState() {
  Result<GemmPlans> plans = GemmPlans::create();
  if (plans.ok()) {
    plans_.emplace(*std::move(plans));
  } else {
    without_plans_ = plans.error().message;
  }
}

OpState* new_op_state() { return new OpState; }
void delete_op_state(OpState* state) { delete state; }
Status take_error(OpState* state) { return state->take_error(); }

Status prepare_product(OpState* state, const Weight& w, DType out, int64_t tokens, Stream stream) {
  if (state->plans() == nullptr || w.scheme != Scheme::bf16) return {};
  return state->plans()->prepare({.tokens = tokens, .rows = w.rows, .in = w.cols, .out = out}, stream);
}

}  // namespace k3::ops::cuda
