#include "k3/train/run/quantised_experts.h"

#include <algorithm>
#include <utility>

#include "k3/ops/optim/fake_quant/fake_quant.h"

namespace k3::train {

Result<QuantisedExperts> QuantisedExperts::create(TrainWeights& weights) {
  QuantisedExperts out(weights);
  out.dtype_ = weights.device.is_cuda() ? DType::bf16 : weights.dtype;
  const int64_t bytes = weights.elements * dtype_bytes(out.dtype_);
  if (weights.device.is_cuda()) {
    K3_TRY_ASSIGN(out.copies_, Storage::allocate_on(weights.device, bytes));
  } else {
    K3_TRY_ASSIGN(out.copies_, Storage::reserve(bytes));
  }
  std::vector<Run> matrices;
  for (const TrainTensor& t : weights.tensors) {
    if (t.expert >= 0) matrices.push_back({t.at, t.dims[0], t.dims[1]});
  }
  std::sort(matrices.begin(), matrices.end(), [](const Run& a, const Run& b) { return a.at < b.at; });
  for (const Run& m : matrices) {
    Run* const last = out.runs_.empty() ? nullptr : &out.runs_.back();
    if (last != nullptr && last->cols == m.cols && last->at + last->rows * last->cols == m.at) {
      last->rows += m.rows;
    } else {
      out.runs_.push_back(m);
    }
  }
  return out;
}

void QuantisedExperts::attach(ops::Tape& tape, const Tensor& grads) {
  if (std::exchange(attached_, true)) return;
  tape.parameters(copies_.data(), dtype_, weights_->elements, grads);
  move_experts(masters(), copies_.data());
}

void QuantisedExperts::detach() {
  if (std::exchange(attached_, false)) move_experts(copies_.data(), masters());
}

void QuantisedExperts::move_experts(const std::byte* from, std::byte* to) {
  const auto move = [&](ops::Weight& w) { w.data = to + (static_cast<const std::byte*>(w.data) - from); };
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
  const Tensor copies(copies_.data(), dtype_, {weights_->elements});
  for (const Run& run : runs_) {
    const Tensor from = weights_->all().slice(run.at, run.at + run.rows * run.cols).reshape({run.rows, run.cols});
    const Tensor to = copies.slice(run.at, run.at + run.rows * run.cols).reshape({run.rows, run.cols});
    if (weights_->dtype == DType::f64) {
      ops::mxfp4_fake_quant_ref(from.as<double>(), run.rows, run.cols, to.as<double>());
    } else {
      ops::mxfp4_fake_quant(ctx, from, to);
    }
  }
}

}  // namespace k3::train
