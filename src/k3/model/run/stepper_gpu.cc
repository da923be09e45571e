// Steps on a GPU: arrays staged, kernels queued or a captured graph replayed, logits fetched.
#include <algorithm>
#include <mutex>

#include "k3/model/model.h"
#include "k3/model/run/stepper.h"
#include "k3/ops/mla/cuda/mla_parts.h"

namespace k3 {
namespace {

// Every matrix that meets activations, and the dtype of its product.
void for_each_product(const WeightSet& set, const std::function<void(const ops::Weight&, DType)>& visit) {
  const auto bf16 = [&](std::initializer_list<const ops::Weight*> weights) {
    for (const ops::Weight* w : weights) {
      if (*w) visit(*w, DType::bf16);
    }
  };
  for (const LayerWeights& l : set.layers) {
    bf16({&l.kda.q, &l.kda.k, &l.kda.v, &l.kda.f_a, &l.kda.f_b, &l.kda.b, &l.kda.o, &l.kda.g, &l.kda.g_a, &l.kda.g_b, &l.mla.q, &l.mla.q_a,
          &l.mla.q_b, &l.mla.kv_a, &l.mla.kv_b, &l.mla.o, &l.mla.g, &l.mlp.gate, &l.mlp.up, &l.mlp.down, &l.moe.down, &l.moe.up,
          &l.moe.shared.gate, &l.moe.shared.up, &l.moe.shared.down});
    if (l.moe.router) visit(l.moe.router, DType::f32);
  }
  visit(set.lm_head, DType::f32);
}

}  // namespace

Result<std::unique_ptr<Stepper::Gpu>> Stepper::make_gpu(const Model& model, const StepLimits& limits) {
  auto gpu = std::make_unique<Gpu>();
  gpu->limits = limits;
  K3_TRY(set_current_device(model.device()));
  K3_TRY_ASSIGN(gpu->stream, make_stream());
  gpu->ops = ops::cuda::OpStateHandle(ops::cuda::new_op_state());
  DeviceStepLimits step;
  step.tokens = limits.tokens;
  step.sequences = limits.sequences;
  step.table_pages = (limits.ctx_tokens + limits.page_tokens - 1) / limits.page_tokens;
  step.exports = limits.exports;
  step.slot_groups = limits.slot_groups;
  K3_TRY_ASSIGN(gpu->buffers, DeviceStepBuffers::create(model.device(), step));
  Status prepared;
  for_each_product(model.weights(), [&](const ops::Weight& w, DType out) {
    // Keys and values are expanded from all latents that a prompt attends to, in parts; beyond the most that is measured the last plan
    // serves.
    const bool expands = std::any_of(model.weights().layers.begin(), model.weights().layers.end(),
                                     [&](const LayerWeights& l) { return &w == &l.mla.kv_b; });
    const int64_t most = &w == &model.weights().lm_head ? limits.sequences
                         : expands ? std::max(limits.tokens, std::min(limits.ctx_tokens, ops::cuda::mla_measured_keys(model.config().num_attention_heads)))
                                   : limits.tokens;
    for (int64_t tokens = 32; prepared.ok() && tokens < 2 * most; tokens *= 2) {
      prepared = ops::cuda::prepare_product(gpu->ops.get(), w, out, tokens, gpu->stream.get());
    }
  });
  K3_TRY(std::move(prepared));
  return gpu;
}

// Whether experts that lie in host memory come to the GPU in parts that the host chooses: no graph can hold that.
bool Stepper::in_parts(int64_t tokens) const {
  if (model_->weights().experts == nullptr) return false;
  for (const LayerWeights& l : model_->weights().layers) {
    if (l.moe.bank.store != nullptr) return ops::cuda::moe_in_parts(l.moe.bank, tokens);
  }
  return false;
}

// The kernels of a step, as a graph once they have run a first time (which has warmed the workspace).
Status Stepper::compute_on_gpu(const Batch& batch, const Tensor& logits) {
  Gpu& gpu = *gpu_;
  const auto compute = [&] { return forward(ctx_, model_->config(), model_->source(), batch, logits); };
  const bool no_exports = std::all_of(batch.caches.begin(), batch.caches.end(), [](const LayerCache& c) { return c.exports.empty(); });
  const int64_t sequences = batch.sequence_count();
  const bool decode = batch.token_count() == sequences && ctx_.step->longest == 1 &&
                      static_cast<int64_t>(batch.logit_rows.size()) == sequences && no_exports && !in_parts(batch.token_count()) &&
                      !ops::cuda::tracing(gpu.ops.get());
  if (!decode) return compute();
  const auto found = gpu.graphs.find(sequences);
  if (found == gpu.graphs.end()) {
    gpu.graphs.emplace(sequences, GraphHandle());
    return compute();
  }
  if (!found->second) {
    K3_TRY(begin_capture(gpu.stream.get()));
    Status status = compute();
    Result<GraphHandle> graph = end_capture(gpu.stream.get());
    K3_TRY(std::move(status));
    K3_TRY_ASSIGN(found->second, std::move(graph));
  }
  return launch_graph(found->second, gpu.stream.get());
}

Status Stepper::reserve_logits_on_gpu(int64_t rows) {
  Gpu& gpu = *gpu_;
  const int64_t bytes = rows * model_->config().vocab_size * 4;
  if (gpu.logits.size_bytes() >= bytes) return {};
  gpu.graphs.clear();  // they write to the old place
  K3_TRY_ASSIGN(gpu.logits, Storage::allocate_on(model_->device(), bytes));
  K3_TRY_ASSIGN(gpu.host_logits, Storage::pinned(bytes));
  const int64_t choices = rows * static_cast<int64_t>(sizeof(ops::cuda::SampleRow) + sizeof(ops::cuda::ChosenRow));
  K3_TRY_ASSIGN(gpu.choices, Storage::allocate_on(model_->device(), choices));
  K3_TRY_ASSIGN(gpu.host_choices, Storage::pinned(choices));
  return {};
}

Result<Tensor> Stepper::run_on_gpu(const Batch& batch) {
  Gpu& gpu = *gpu_;
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t vocab = model_->config().vocab_size;
  K3_TRY(set_current_device(model_->device()));
  K3_TRY(reserve_logits_on_gpu(rows));
  const Tensor host(gpu.host_logits.data(), DType::f32, {rows, vocab});
  if (batch.tokens.empty()) return host;
  ops::ExpertStore* const experts = model_->weights().experts.get();
  std::unique_lock<std::mutex> turn;
  if (experts != nullptr) {
    turn = std::unique_lock(experts->step_mutex());
    K3_TRY(experts->begin_step(in_parts(batch.token_count()), gpu.stream.get()));
  }
  if (gpu.begun) K3_TRY(record(gpu.begun, gpu.stream.get()));
  K3_TRY(gpu.buffers.stage(batch, gpu.stream.get()));
  Batch staged = batch;
  staged.caches = gpu.buffers.caches();
  ctx_.step = &gpu.buffers.step();
  K3_TRY(stage_choices_on_gpu(batch));
  const Tensor logits(gpu.logits.data(), DType::f32, {rows, vocab});
  K3_TRY(compute_on_gpu(staged, logits));
  K3_TRY(choose_on_gpu(batch, logits));
  K3_TRY(ops::cuda::take_error(gpu.ops.get()));
  if (gpu.computed) K3_TRY(record(gpu.computed, gpu.stream.get()));
  if (experts != nullptr) K3_TRY(experts->end_step(gpu.stream.get()));
  K3_TRY(fetch_rows_on_gpu(batch, host));
  K3_TRY(synchronize(gpu.stream.get()));
  note_chosen(batch);
  return host;
}

}  // namespace k3
