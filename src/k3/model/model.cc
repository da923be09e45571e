#include "k3/model/model.h"

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/model/gpu/gpu_random.h"
#include "k3/model/gpu/gpu_weights.h"
#include "k3/model/random_weights.h"
#include "k3/model/stream/expert_stats.h"
#include "k3/model/summary.h"

namespace k3 {

std::string model_folder(const std::string& path) {
  if (is_directory(path)) return path;
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

namespace {

// Left to the rest of the system when the model takes what there is.
constexpr int64_t kAutoShare = 20;

Result<MemoryPlan> make_plan(const Checkpoint& checkpoint, const Config& config, const ExpertTable& experts,
                             const LoadOptions& options) {
  const int64_t available = available_memory_bytes();
  PlanRequest request = options.run;
  request.limit_bytes = options.ram_bytes.value_or(available - available / kAutoShare);
  if (request.limit_bytes > available) {
    return fail(Code::exhausted, "--ram {} is more than the {} that the system and its control groups have left",
                format_bytes(request.limit_bytes), format_bytes(available));
  }
  K3_TRY_ASSIGN(const ModelBytes bytes, model_bytes(checkpoint, config, experts));
  return plan_memory(config, bytes, request);
}

// What lies on the GPU and what in host memory; nothing when nobody asked and everything fits.
Result<std::optional<GpuPlan>> make_gpu_plan(const Config& config, const LoadOptions& options) {
  K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(options.device));
  const int64_t free = memory.free_bytes - memory.free_bytes / kAutoShare;
  const bool asked = options.vram_bytes || options.ram_bytes || options.ram_auto;
  const bool fits = text_weight_bytes(config) <= free;
  if (!asked && fits && options.pool.least_bytes == 0) return std::optional<GpuPlan>();
  const int64_t available = available_memory_bytes();
  GpuPlanRequest request;
  request.run = options.run;
  request.run.limit_bytes = options.vram_bytes.value_or(free);
  request.ram_bytes = options.ram_bytes.value_or(available - available / kAutoShare);
  request.pool = options.pool;
  if (request.run.limit_bytes > memory.total_bytes) {
    return fail(Code::exhausted, "--vram {} is more than the {} of {}", format_bytes(request.run.limit_bytes),
                format_bytes(memory.total_bytes), device_name(options.device));
  }
  if (request.ram_bytes > available) {
    return fail(Code::exhausted, "--ram {} is more than the {} that the system and its control groups have left",
                format_bytes(request.ram_bytes), format_bytes(available));
  }
  Result<GpuPlan> plan = plan_gpu(config, gpu_model_bytes(config, request.run.chunk_tokens), request);
  // Beside a whole model that nobody limited, a serving engine finds out what its pool can have.
  if (!asked && fits && (!plan.ok() || plan->everything)) return std::optional<GpuPlan>();
  if (!plan.ok()) return std::move(plan).take_error();
  return std::optional<GpuPlan>(*std::move(plan));
}

}  // namespace

Result<Model> Model::load(const std::string& path, ThreadPool& pool, const LoadProgress& progress) {
  LoadOptions options;
  options.progress = progress;
  return load(path, pool, options);
}

Result<Model> Model::load(const std::string& path, ThreadPool& pool, const LoadOptions& options) {
  Model model;
  model.folder_ = model_folder(path);
  K3_TRY_ASSIGN(model.config_, load_config(path));
  K3_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(model.folder_));
  resolve_by_tensors(checkpoint, model.config_);
  K3_TRY(check_sizes(model.config_));
  if (options.device.is_cuda()) {
    model.device_ = options.device;
    K3_TRY(check_gpu_config(model.config_));
    K3_TRY_ASSIGN(model.gpu_plan_, make_gpu_plan(model.config_, options).with_context(model.folder_));
    if (model.gpu_plan_) {
      model.plan_ = model.gpu_plan_->steps();
      if (options.on_plan) options.on_plan(plan_lines(*model.gpu_plan_), 0);
    }
    const GpuPlan* const plan = model.gpu_plan_ ? &*model.gpu_plan_ : nullptr;
    const std::string& stats = options.stream.expert_stats;
    if (plan != nullptr && !plan->everything && !stats.empty()) {
      K3_TRY(check_expert_stats_path(stats));
      model.expert_stats_ = stats;
      model.earlier_uses_.assign(static_cast<size_t>(model.config_.num_hidden_layers * model.config_.num_experts), 0);
      if (path_exists(stats)) {
        K3_TRY_ASSIGN(model.earlier_uses_, read_expert_stats(stats, model.config_.num_hidden_layers, model.config_.num_experts));
      }
    }
    K3_TRY_ASSIGN(model.weights_, load_weights_on(options.device, checkpoint, model.config_, plan, pool, options.progress, model.earlier_uses_)
                                      .with_context(model.folder_));
    return model;
  }
  if (options.vram_bytes) return fail(Code::invalid_argument, "--vram is for --device cuda; --ram limits the memory of a CPU");
  const bool asked = options.ram_bytes || options.ram_auto;
  if (asked || text_weight_bytes(model.config_) > available_memory_bytes()) {
    K3_TRY_ASSIGN(ExpertTable experts, ExpertTable::build(checkpoint, model.config_).with_context(model.folder_));
    K3_TRY_ASSIGN(model.plan_, make_plan(checkpoint, model.config_, experts, options).with_context(model.folder_));
    if (options.on_plan) options.on_plan(plan_lines(*model.plan_), model.plan_->streamed_read_bytes);
    if (!model.plan_->everything) {
      K3_TRY_ASSIGN(model.stream_, WeightStream::open(std::move(checkpoint), model.config_, std::move(experts), *model.plan_,
                                                      options.stream, pool, options.progress)
                                       .with_context(model.folder_));
      return model;
    }
  }
  K3_TRY_ASSIGN(model.weights_, load_weights(checkpoint, model.config_, pool, options.progress).with_context(model.folder_));
  return model;
}

Result<Model> Model::random(const Config& config, uint64_t seed, Device device, ThreadPool& pool, const LoadProgress& progress) {
  Model model;
  model.folder_ = "random weights";
  model.config_ = config;
  model.device_ = device;
  K3_TRY(check_sizes(config));
  K3_TRY_ASSIGN(model.weights_, device.is_cuda() ? random_weights_on(device, config, seed, pool, progress)
                                                 : random_weights(config, seed, pool, progress));
  return model;
}

std::optional<StreamStats> Model::stream_stats() const {
  if (stream_ == nullptr) return std::nullopt;
  return stream_->stats();
}

Result<std::optional<ops::ExpertStoreStats>> Model::expert_store_stats() const {
  if (weights_.experts == nullptr) return std::optional<ops::ExpertStoreStats>();
  K3_TRY_ASSIGN(const ops::ExpertStoreStats stats, weights_.experts->stats());
  return std::optional<ops::ExpertStoreStats>(stats);
}

Status Model::save_expert_stats() const {
  if (stream_ != nullptr) return stream_->save_expert_stats();
  if (expert_stats_.empty() || weights_.experts == nullptr) return {};
  K3_TRY_ASSIGN(const std::vector<uint64_t> now, weights_.experts->uses());
  std::vector<uint64_t> all = earlier_uses_;  // layers whose experts are all on the GPU count nothing
  const int64_t experts = config_.num_experts;
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const ops::ExpertBank& bank = weights_.layers[static_cast<size_t>(l)].moe.bank;
    if (bank.store == nullptr) continue;
    for (int64_t e = 0; e < experts; ++e) all[static_cast<size_t>(l * experts + e)] += now[static_cast<size_t>(bank.store_layer * experts + e)];
  }
  return write_expert_stats(expert_stats_, config_.num_hidden_layers, experts, all);
}

Status Model::check_ids(std::span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_.vocab_size) {
      return fail(Code::invalid_argument, "token id {} at position {} is outside the vocabulary of {}", ids[i], i,
                  config_.vocab_size);
    }
  }
  return {};
}

Runner::Runner(Stepper stepper, const RunnerOptions& options, SequencePool cache)
    : stepper_(std::move(stepper)),
      options_(options),
      cache_(std::move(cache)),
      broken_(static_cast<size_t>(options.sequences), false) {}

Result<Runner> Runner::create(const Model& model, ThreadPool& pool, const RunnerOptions& wanted) {
  RunnerOptions options = wanted;
  const std::optional<MemoryPlan>& plan = model.plan();
  if (plan) options.chunk_tokens = std::min(options.chunk_tokens, plan->chunk_tokens);
  if (options.ctx_tokens < 1 || options.chunk_tokens < 1 || options.sequences < 1) {
    return fail(Code::invalid_argument, "context, chunk and sequences must be at least 1");
  }
  if (plan && (options.sequences > plan->sequences ||
               options.sequences * options.ctx_tokens > plan->sequences * plan->ctx_tokens)) {
    return fail(Code::exhausted, "the memory plan has room for {} sequences of {} tokens, not for {} of {}", plan->sequences,
                plan->ctx_tokens, options.sequences, options.ctx_tokens);
  }
  const StepLimits limits{.tokens = options.chunk_tokens, .sequences = options.sequences, .ctx_tokens = options.ctx_tokens};
  K3_TRY_ASSIGN(Stepper stepper, Stepper::create(model, pool, options, limits));
  K3_TRY_ASSIGN(SequencePool cache, SequencePool::create(model.config(), options.policy, options.sequences, options.ctx_tokens,
                                                         options.dtypes, model.device()));
  return Runner(std::move(stepper), options, std::move(cache));
}

void Runner::reset(int32_t sequence) {
  cache_.reset(sequence);
  broken_[static_cast<size_t>(sequence)] = false;
}

Status Runner::pretend_history(int64_t tokens, uint64_t seed) {
  std::fill(broken_.begin(), broken_.end(), false);
  return cache_.pretend(tokens, seed);
}

Status Runner::save(int32_t sequence, const std::function<Status(std::span<const std::byte>)>& write) const {
  K3_TRY(check_sequence(sequence));
  if (broken_[static_cast<size_t>(sequence)]) {
    return fail(Code::unavailable, "a step of sequence {} failed half-way; there is nothing whole to save", sequence);
  }
  return cache_.save(sequence, write);
}

Status Runner::restore(int32_t sequence, int64_t tokens, const std::function<Status(std::span<std::byte>)>& read) {
  K3_TRY(check_sequence(sequence));
  if (tokens < 0 || tokens > cache_.ctx_tokens()) {
    return fail(Code::exhausted, "{} tokens do not fit the context of {} (see --ctx)", tokens, cache_.ctx_tokens());
  }
  reset(sequence);
  Status status = cache_.restore(sequence, tokens, read);
  if (!status.ok()) reset(sequence);
  return status;
}

Status Runner::check_sequence(int32_t sequence) const {
  if (sequence >= 0 && sequence < cache_.sequences()) return {};
  return fail(Code::invalid_argument, "there is no sequence {}; the runner has {}", sequence, cache_.sequences());
}

Status Runner::flatten(std::span<const StepInput> inputs) {
  flat_.clear();
  sequences_.clear();
  for (const StepInput& input : inputs) {
    K3_TRY(model().check_ids(input.tokens));
    K3_TRY(check_sequence(input.sequence));
    if (std::find(sequences_.begin(), sequences_.end(), input.sequence) != sequences_.end()) {
      return fail(Code::invalid_argument, "sequence {} stands twice in one step", input.sequence);
    }
    if (broken_[static_cast<size_t>(input.sequence)]) {
      return fail(Code::unavailable, "a step of sequence {} failed half-way; it has to be reset and fed again", input.sequence);
    }
    if (static_cast<int64_t>(input.tokens.size()) > cache_.room(input.sequence)) {
      return fail(Code::exhausted, "the context of {} tokens is full: {} are used and {} more were given (see --ctx)",
                  cache_.ctx_tokens(), cache_.length(input.sequence), input.tokens.size());
    }
    sequences_.push_back(input.sequence);
    flat_.add(input.tokens, cache_.length(input.sequence), input.logits, input.choice);
  }
  // Before the caches are touched: a step that is too large leaves its sequences as they are.
  return stepper_.check_size(flat_);
}

Result<double> Runner::time_part(std::span<const StepInput> inputs, const Stepper::Part& part, int64_t repeats) {
  K3_TRY(flatten(inputs));
  return stepper_.time_part(flat_.batch(cache_.views(sequences_)), part, repeats);
}

Result<Tensor> Runner::step(std::span<const StepInput> inputs) {
  K3_TRY(flatten(inputs));
  Result<Tensor> logits = stepper_.run(flat_.batch(cache_.views(sequences_)));
  if (!logits.ok()) {
    for (const StepInput& input : inputs) broken_[static_cast<size_t>(input.sequence)] = true;
    return logits;
  }
  for (const StepInput& input : inputs) cache_.advance(input.sequence, static_cast<int64_t>(input.tokens.size()));
  return logits;
}

Result<std::span<const float>> Runner::feed(int32_t sequence, std::span<const int32_t> tokens,
                                            const std::function<bool(int64_t)>& progress, const RowChoice& choice) {
  const auto count = static_cast<int64_t>(tokens.size());
  K3_TRY(check_sequence(sequence));
  if (count > cache_.room(sequence)) {
    return fail(Code::exhausted, "{} tokens do not fit the context of {} of which {} are used; raise --ctx", count,
                cache_.ctx_tokens(), cache_.length(sequence));
  }
  Tensor logits;
  for (int64_t begin = 0; begin < count; begin += options_.chunk_tokens) {
    const int64_t end = std::min(count, begin + options_.chunk_tokens);
    const StepInput input{sequence, tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                          end == count ? StepInput::Logits::last : StepInput::Logits::none, choice};
    K3_TRY_ASSIGN(logits, step(std::span(&input, 1)));
    if (progress && !progress(end) && end < count) return fail(Code::cancelled, "stopped after {} tokens", end);
  }
  if (count == 0) return fail(Code::invalid_argument, "no tokens to feed");
  return std::span<const float>(logits.f32(), static_cast<size_t>(logits.size()));
}

}  // namespace k3
