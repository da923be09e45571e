#include "k3/train/run/quantised_experts.h"

#include "k3/ops/optim/fake_quant/fake_quant.h"

namespace k3::train {

Result<QuantisedExperts> QuantisedExperts::create(TrainWeights& weights) {
  QuantisedExperts out(weights);
  K3_TRY_ASSIGN(out.copies_, Storage::reserve(weights.elements * dtype_bytes(weights.dtype)));
  return out;
}

void QuantisedExperts::attach(ops::Tape& tape, const Tensor& grads) {
  attached_ = true;
  tape.parameters(copies_.data(), weights_->dtype, weights_->elements, grads);
  const auto move = [&](ops::Weight& w) {
    w.data = copies_.data() + (static_cast<const std::byte*>(w.data) - weights_->arena.data());
  };
  for (LayerWeights& layer : weights_->set.layers) {
    for (ops::ExpertWeights& expert : layer.moe.experts) {
      move(expert.w1);
      move(expert.w2);
      move(expert.w3);
    }
  }
}

void QuantisedExperts::refresh(const ops::Ctx& ctx) {
  if (!attached_) return;
  const Tensor copies(copies_.data(), weights_->dtype, {weights_->elements});
  for (const TrainTensor& t : weights_->tensors) {
    if (t.expert < 0) continue;
    const Tensor from = weights_->tensor(t).reshape({t.dims[0], t.dims[1]});
    const Tensor to = copies.slice(t.at, t.at + t.count).reshape({t.dims[0], t.dims[1]});
    if (weights_->dtype == DType::f64) {
      ops::mxfp4_fake_quant_ref(from.as<double>(), t.dims[0], t.dims[1], to.as<double>());
    } else {
      ops::mxfp4_fake_quant(ctx, from, to);
    }
  }
}

}  // namespace k3::train
