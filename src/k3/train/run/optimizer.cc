#include "k3/train/run/optimizer.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/optim/grad_norm/grad_norm.h"
#include "k3/ops/optim/qk_clip/qk_clip.h"
#include "k3/ops/optim/quantile/quantile.h"
#include "k3/train/schedule.h"

namespace k3::train {

Result<Optimizer> Optimizer::create(TrainWeights& weights, const Recipe& recipe) {
  Optimizer out(weights, recipe);
  const int64_t bytes = weights.elements * dtype_bytes(weights.dtype);
  K3_TRY_ASSIGN(out.state_, out.sums(2 * bytes));
  K3_TRY_ASSIGN(out.norm_, out.sums(sizeof(ops::GradNorm<double>)));
  out.first_ = Tensor(out.state_.data(), weights.dtype, {weights.elements});
  out.second_ = Tensor(out.state_.data() + bytes, weights.dtype, {weights.elements});
  for (size_t i = 0; i < weights.tensors.size(); ++i) out.add_tensor(i);
  K3_TRY(out.add_layers());
  int64_t sums = sizeof(ops::GradNorm<double>);
  for (const Attention& a : out.attentions_) sums += a.largest.size_bytes();
  for (const Router& r : out.routers_) sums += r.load.size_bytes();
  for (Fetched& turn : out.fetched_) {
    if (out.on_gpu()) {
      K3_TRY_ASSIGN(turn.sums, Storage::pinned(sums));
      K3_TRY_ASSIGN(turn.copied, make_event());
    } else {
      K3_TRY_ASSIGN(turn.sums, Storage::allocate(sums));
    }
  }
  return out;
}

// Experts of a layer lie at one stride: those of a kind are one call.
void Optimizer::add_tensor(size_t index) {
  const TrainTensor& t = weights_->tensors[index];
  if (t.family->optimizer == OptimizerGroup::none || t.expert > 0) return;
  const bool table = t.family->id == ParamId::embed_tokens || t.family->id == ParamId::lm_head;
  const double decay = weight_decay(*t.family, table ? recipe_.embedding_decay.value_or(recipe_.weight_decay) : recipe_.weight_decay);
  const bool by_muon = t.family->optimizer != OptimizerGroup::adamw && recipe_.matrices != MatrixOptimizer::adamw;
  if (!by_muon) {
    const double lr = table ? recipe_.embedding_rate : recipe_.vector_rate;
    const int64_t copies = t.expert == 0 ? weights_->config.num_experts : 1;
    const int64_t stride = copies > 1 ? weights_->find(param_name(weights_->config, t.family->id, t.layer, 1))->at - t.at : 0;
    for (int64_t e = 0; e < copies; ++e) vectors_.push_back({t.at + e * stride, t.count, lr, decay});
    return;
  }
  if (t.expert == 0) {
    const int64_t experts = weights_->config.num_experts;
    const int64_t stride = experts > 1 ? weights_->find(param_name(weights_->config, t.family->id, t.layer, 1))->at - t.at : t.count;
    matrices_.push_back({t.at, {experts, t.dims[0], t.dims[1], stride}, recipe_.matrix_rate, decay});
    return;
  }
  if (recipe_.matrices == MatrixOptimizer::muon) {
    matrices_.push_back({t.at, {1, t.dims[0], t.dims[1], t.count}, recipe_.matrix_rate, decay});
    return;
  }
  for (const UnitsOfRows& part : ns_units(weights_->config, *t.family)) {
    matrices_.push_back({t.at + part.first_row * t.dims[1], part.units, recipe_.matrix_rate, decay});
  }
}

Status Optimizer::add_layers() {
  for (const LayerWeights& layer : weights_->set.layers) {
    if (layer.moe.router_bias) {
      Router router;
      router.bias = layer.moe.router_bias;
      K3_TRY_ASSIGN(router.histogram, sums(weights_->config.num_experts * ops::kQuantileBins * 4));
      K3_TRY_ASSIGN(router.load, sums(weights_->config.num_experts * 4));
      routers_.push_back(std::move(router));
    }
    if (layer.mla.kv_b) {
      Attention attention{layer.mla.q ? layer.mla.q : layer.mla.q_b, layer.mla.kv_b, {}};
      K3_TRY_ASSIGN(attention.largest, sums(weights_->config.num_attention_heads * dtype_bytes(largest_dtype())));
      attentions_.push_back(std::move(attention));
    }
  }
  return {};
}

void Optimizer::watch(ops::Tape& tape) {
  const int64_t experts = weights_->config.num_experts;
  for (Router& router : routers_) {
    tape.watch(router.bias.data, "histogram", Tensor(router.histogram.data(), DType::i32, {experts, ops::kQuantileBins}));
    tape.watch(router.bias.data, "load", Tensor(router.load.data(), DType::i32, {experts}));
  }
  for (Attention& attention : attentions_) {
    tape.watch(attention.kv_b.data, "max_logit",
               Tensor(attention.largest.data(), largest_dtype(), {weights_->config.num_attention_heads}));
  }
}

template <class T>
void Optimizer::apply(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step) {
  T* const w = weights_->all().as<T>();
  const T* const g = grads.as<T>();
  std::vector<ops::GradTensor<T>> parts;
  for (const TrainTensor& t : weights_->tensors) {
    if (t.family->optimizer != OptimizerGroup::none) parts.push_back({g + t.at, t.count});
  }
  auto* const norm = reinterpret_cast<ops::GradNorm<T>*>(norm_.data());
  std::vector<ops::AdamwTensor<T>> vectors;
  for (const Vector& v : vectors_) {
    vectors.push_back({w + v.at, first_.as<T>() + v.at, second_.as<T>() + v.at, g + v.at, copy_of(v.at), v.count, rate * v.lr, v.decay});
  }
  std::vector<ops::MuonTensor<T>> matrices;
  for (const Matrix& m : matrices_) {
    matrices.push_back({w + m.at, first_.as<T>() + m.at, g + m.at, copy_of(m.at), m.units, rate * m.lr, m.decay});
  }
  ops::AdamwOptions options;
  options.step = step;
  if constexpr (std::is_same_v<T, double>) {
    ops::grad_norm_ref(parts, recipe_.clip, norm);
    ops::adamw_ref(vectors, options, &norm->scale);
    ops::muon_ref(matrices, {}, &norm->scale);
  } else {
    ops::grad_norm(ctx, parts, recipe_.clip, norm);
    ops::adamw(ctx, vectors, options, &norm->scale);
    ops::muon(ctx, matrices, {}, &norm->scale);
  }
}

Status Optimizer::fetch(const ops::Ctx& ctx, Fetched& turn) const {
  std::byte* to = turn.sums.data();
  const auto take = [&](const Storage& from, int64_t bytes) -> Status {
    if (on_gpu()) {
      K3_TRY(copy_async(to, from.data(), bytes, ctx.stream));
    } else {
      std::memcpy(to, from.data(), static_cast<size_t>(bytes));
    }
    to += bytes;
    return {};
  };
  K3_TRY(take(norm_, sizeof(ops::GradNorm<double>)));
  for (const Attention& a : attentions_) K3_TRY(take(a.largest, a.largest.size_bytes()));
  for (const Router& r : routers_) K3_TRY(take(r.load, r.load.size_bytes()));
  return on_gpu() ? record(turn.copied, ctx.stream) : Status();
}

template <class T>
StepReport Optimizer::read(const std::byte* sums) const {
  StepReport report;
  const auto& norm = *reinterpret_cast<const ops::GradNorm<T>*>(sums);
  report.gradient_norm = norm.norm;
  int32_t seen = 0;
  for (const TrainTensor& t : weights_->tensors) {
    if (norm.bad_tensor >= 0 && t.family->optimizer != OptimizerGroup::none && seen++ == norm.bad_tensor) report.not_finite = &t;
  }
  sums += sizeof(ops::GradNorm<double>);
  for (const Attention& a : attentions_) {
    for (int64_t h = 0; h < weights_->config.num_attention_heads; ++h) {
      const double logit = on_gpu() ? static_cast<double>(reinterpret_cast<const float*>(sums)[h]) : reinterpret_cast<const double*>(sums)[h];
      report.largest_logit = std::max(report.largest_logit, logit);
    }
    sums += a.largest.size_bytes();
  }
  if (report.not_finite != nullptr) return report;
  for (const Router& r : routers_) {
    const double violation = ops::load_violation(reinterpret_cast<const int32_t*>(sums), weights_->config.num_experts);
    report.load_violation += violation / static_cast<double>(routers_.size());
    report.load_violation_worst = std::max(report.load_violation_worst, violation);
    sums += r.load.size_bytes();
  }
  return report;
}

StepReport Optimizer::read(const Fetched& from) const {
  return weights_->dtype == DType::f64 ? read<double>(from.sums.data()) : read<float>(from.sums.data());
}

template <class T>
void Optimizer::clip_attention(const ops::Ctx& ctx) {
  const Config& c = weights_->config;
  // Matrices of `set` are copies on a GPU: the masters lie at the same place of the arena.
  const auto place = [&](const ops::Weight& w) {
    const std::byte* const base = on_gpu() ? weights_->compute.data() : weights_->arena.data();
    return (static_cast<const std::byte*>(w.data) - base) / dtype_bytes(on_gpu() ? DType::bf16 : weights_->dtype);
  };
  for (Attention& attention : attentions_) {
    ops::QkClip<T> args;
    args.heads = c.num_attention_heads;
    args.nope = c.qk_nope_head_dim;
    args.rope = c.qk_rope_head_dim;
    args.value = c.v_head_dim;
    args.q = weights_->all().as<T>() + place(attention.q);
    args.q_bf16 = copy_of(place(attention.q));
    args.q_cols = attention.q.cols;
    args.kv = weights_->all().as<T>() + place(attention.kv_b);
    args.kv_bf16 = copy_of(place(attention.kv_b));
    args.kv_cols = attention.kv_b.cols;
    args.tau = recipe_.qk_clip;
    std::vector<T> largest;
    if (!on_gpu()) {
      const auto* const logits = reinterpret_cast<const double*>(attention.largest.data());
      for (int64_t h = 0; h < args.heads; ++h) largest.push_back(static_cast<T>(logits[h]));
    }
    args.max_logits = on_gpu() ? reinterpret_cast<const T*>(attention.largest.data()) : largest.data();
    if constexpr (std::is_same_v<T, double>) {
      ops::qk_clip_ref(args);
    } else {
      ops::qk_clip(ctx, args);
    }
  }
}

void Optimizer::balance(const ops::Ctx& ctx) {
  const int64_t experts = weights_->config.num_experts, topk = weights_->config.num_experts_per_token;
  for (Router& router : routers_) {
    auto* const histogram = reinterpret_cast<int32_t*>(router.histogram.data());
    auto* const load = reinterpret_cast<int32_t*>(router.load.data());
    const bool reference = router.bias.dtype == DType::f64;
    switch (recipe_.balancing) {
      case Balancing::quantile:
        if (reference) {
          ops::quantile_update_ref(experts, topk, recipe_.balancing_rate, histogram, router.bias.as<double>());
        } else {
          ops::quantile_update(ctx, experts, topk, recipe_.balancing_rate, histogram, router.bias.f32());
        }
        break;
      case Balancing::sign:
        if (reference) {
          ops::sign_balance_ref(load, experts, recipe_.balancing_rate, router.bias.as<double>());
        } else {
          ops::sign_balance(ctx, load, experts, recipe_.balancing_rate, router.bias.f32());
        }
        break;
      case Balancing::none: break;
    }
  }
}

Status Optimizer::clear_sums(const ops::Ctx& ctx, const Tensor& grads) {
  const auto clear = [&](void* data, int64_t bytes) -> Status {
    if (on_gpu()) return fill_async(data, 0, bytes, ctx.stream);
    std::memset(data, 0, static_cast<size_t>(bytes));
    return {};
  };
  for (Attention& a : attentions_) K3_TRY(clear(a.largest.data(), a.largest.size_bytes()));
  for (Router& r : routers_) {
    K3_TRY(clear(r.histogram.data(), r.histogram.size_bytes()));
    K3_TRY(clear(r.load.data(), r.load.size_bytes()));
  }
  return clear(grads.data, grads.size() * dtype_bytes(grads.dtype));
}

Status Optimizer::queue(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step) {
  K3_CHECK(queued_ - reported_ < kStepsAhead, "{} steps queued, {} reported", queued_, reported_);
  const bool reference = weights_->dtype == DType::f64;
  reference ? apply<double>(ctx, grads, rate, step) : apply<float>(ctx, grads, rate, step);
  Fetched& turn = fetched_[queued_++ % kStepsAhead];
  K3_TRY(fetch(ctx, turn));
  if (on_gpu() || read(turn).not_finite == nullptr) {
    reference ? clip_attention<double>(ctx) : clip_attention<float>(ctx);
    balance(ctx);
  }
  return clear_sums(ctx, grads);
}

Result<StepReport> Optimizer::report(const ops::Ctx& ctx) {
  K3_CHECK(reported_ < queued_, "{} steps queued, {} reported", queued_, reported_);
  const Fetched& turn = fetched_[reported_++ % kStepsAhead];
  if (on_gpu()) {
    K3_TRY(wait_for(turn.copied));
    K3_TRY(ops::cuda::take_error(ctx.gpu));
  }
  return read(turn);
}

Result<StepReport> Optimizer::step(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step) {
  K3_TRY(queue(ctx, grads, rate, step));
  return report(ctx);
}

}  // namespace k3::train
