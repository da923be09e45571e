#include "k3/train/run/trainer.h"

#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/model/summary.h"
#include "k3/train/run/batch_feed.h"
#include "k3/train/run/evaluate.h"
#include "k3/train/run/optimizer.h"
#include "k3/train/run/quantised_experts.h"
#include "k3/train/run/run_data.h"
#include "k3/train/run/run_folder.h"
#include "k3/train/run/start_model.h"
#include "k3/train/run/train_flops.h"
#include "k3/train/schedule.h"

namespace k3::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Factor of all rates at a step: the schedule of the phases from the last one that begins a new schedule.
double rate_at(const TrainConfig& config, int64_t step) {
  const size_t phase = config.place(step).phase;
  size_t first = phase, last = phase + 1;
  while (first > 0 && !config.phases[first].new_schedule) --first;
  while (last < config.phases.size() && !config.phases[last].new_schedule) ++last;
  int64_t begin = 0;
  for (size_t i = 0; i < first; ++i) begin += config.phases[i].steps;
  LearningRate rate{.peak = config.phases[first].learning_rate, .warmup_share = config.recipe.warmup};
  rate.minimum = rate.peak * config.recipe.minimum_rate;
  for (size_t i = first; i < last; ++i) rate.total_steps += config.phases[i].steps;
  return learning_rate(rate, step - begin);
}

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// What no run can do without: weights, gradients and two moments, and of every token in a micro-batch three activations a layer (one with
// recompute). A good deal less than what is used, so that nothing is refused that would fit; more than that is the kernel's to end.
Status check_memory(const TrainConfig& config, Device device) {
  double tokens = 0;
  for (const Phase& phase : config.phases) {
    if (phase.steps > 0) tokens = std::max(tokens, static_cast<double>(phase.tokens_per_step) / static_cast<double>(phase.micro_batches));
  }
  const double a_token = static_cast<double>(config.model.hidden_size) * static_cast<double>(config.model.num_hidden_layers) * (config.recompute ? 4 : 12);
  const double bytes = 16.0 * static_cast<double>(train_flops(config.model).parameters) + tokens * a_token;
  int64_t available = available_memory_bytes();
  if (device.is_cuda()) {
    K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(device));
    available = memory.free_bytes;
  }
  if (bytes <= static_cast<double>(available)) return {};
  return fail(Code::exhausted, "{}: at least {} of memory are wanted, {} are available: a smaller model, or more micro_batches, or recompute", config.path,
              format_bytes(static_cast<int64_t>(std::min(bytes, 9e18))), format_bytes(available));
}

}  // namespace

struct Trainer::Impl {
  Impl(const TrainConfig& config_, RunOptions options_, ThreadPool& pool_, TrainWeights weights_)
      : config(config_), options(std::move(options_)), pool(pool_), checkpoints(options.folder + "/checkpoints"), weights(std::move(weights_)) {}

  TrainWeights& trained() { return on_device ? *on_device : weights; }
  Status open();
  Status resume();
  Status write_config_path() const;
  Status enter_phase(size_t phase);
  bool pauses_after(int64_t step) const;
  Status queue_step();
  Status queue_steps();
  Result<StepRecord> finish_step();
  Status after_step(const StepRecord& record);
  Status evaluate_all();
  std::vector<std::pair<std::string, std::string>> prompts() const;
  Status write_samples();
  Status save();
  Status to_device();
  Status to_host();
  Result<RunSummary> run();
  bool on_gpu() const { return options.device.is_cuda(); }

  TrainConfig config;
  RunOptions options;
  std::unique_ptr<RunFolder> folder;
  ThreadPool& pool;
  Checkpoints checkpoints;
  TrainWeights weights;                       // on the host: what is read and written
  std::unique_ptr<TrainWeights> on_device;    // on a GPU: what is trained
  Storage moment_memory;                      // on the host, beside a GPU
  Tensor first, second;
  Storage gradient_memory;
  Tensor grads;
  std::unique_ptr<Gradient> gradient;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<QuantisedExperts> quantised;
  std::optional<RunData> data;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<RunLog> log;
  std::unique_ptr<BatchFeed> feed;
  // Steps whose numbers were not read yet.
  struct Queued {
    StepRecord record;
    int64_t loss_tokens = 0;
    Clock::time_point start;
  };
  std::deque<Queued> queued;
  Clock::time_point last_finish;
  size_t phase = static_cast<size_t>(-1);
  RunState state;
  int64_t resumed = 0;
  double flops_per_token = 0;
  int64_t saved = -1;  // step of the last checkpoint
};

Status Trainer::Impl::resume() {
  // Of a resumed run, too: the config of its checkpoints says which model it was begun from.
  if (!config.start.empty()) K3_TRY(read_start(config, weights));
  state.config_hash = sha256_hex(config.json);
  state.model_hash = sha256_hex(config.model_json);
  state.data_hash = sha256_hex(manifest_json(data->manifest()));
  K3_TRY_ASSIGN(const std::optional<int64_t> newest, checkpoints.newest());
  if (!newest) {
    if (config.start.empty()) draw_train_weights(weights, config.seed, pool);
    K3_TRY(write_config_path());
    return write_file(options.folder + "/train.json", config.json);
  }
  const std::string advice = "cannot be resumed; to go on from an older checkpoint, or from the start, remove " + checkpoints.path(*newest);
  K3_TRY_ASSIGN(const RunState found, checkpoints.read_state(*newest).with_context(advice));
  if (found.config_hash != state.config_hash) {
    K3_TRY(check_same_start(config, options.folder));
    return fail(Code::invalid_argument, "{}: this run was begun with another config ({}/train.json); resume it with that one, or take another folder",
                options.folder, options.folder);
  }
  // The same text may name other things by now.
  if (!found.model_hash.empty() && found.model_hash != state.model_hash) {
    return fail(Code::invalid_argument, "{}: the model's config is another one than when this run was begun; resume it with that one, or take another folder",
                options.folder);
  }
  if (!found.data_hash.empty() && found.data_hash != state.data_hash) {
    return fail(Code::invalid_argument, "{}: {} holds other data than when this run was begun; resume it with those, or take another folder", options.folder,
                config.data);
  }
  const RunState begun = state;
  K3_TRY_ASSIGN(state, checkpoints.load(*newest, weights, first, second).with_context(advice));
  state.model_hash = begun.model_hash;
  state.data_hash = begun.data_hash;
  resumed = state.step;
  return write_config_path();
}

// What the paths in the config are relative to. A resumed run may have moved.
Status Trainer::Impl::write_config_path() const {
  return write_file(options.folder + "/config_path", std::filesystem::absolute(config.path).string());
}

Status Trainer::Impl::open() {
  K3_TRY_ASSIGN(data, RunData::open(config));
  K3_TRY_ASSIGN(Sampler opened_sampler, Sampler::create(config.tokenizer));
  sampler = std::make_unique<Sampler>(std::move(opened_sampler));
  // Now, not when the first one is due: that may be after the last step, before its checkpoint.
  for (const auto& [kind, prompt] : prompts()) K3_TRY(sampler->check(kind, prompt, config.model.vocab_size).with_context(config.path + ": sample." + kind));
  K3_TRY_ASSIGN(RunFolder locked, RunFolder::open(options.folder));
  folder = std::make_unique<RunFolder>(std::move(locked));
  const int64_t bytes = weights.elements * dtype_bytes(weights.dtype);
  if (on_gpu()) {
    K3_TRY(check_trainable_on_gpu(config.model));
    K3_TRY_ASSIGN(TrainWeights made, make_train_weights(config.model, DType::f32, options.device));
    on_device = std::make_unique<TrainWeights>(std::move(made));
    K3_TRY_ASSIGN(moment_memory, Storage::allocate(2 * bytes));
  }
  K3_TRY_ASSIGN(gradient_memory, Storage::allocate_on(options.device, bytes));
  grads = Tensor(gradient_memory.data(), weights.dtype, {weights.elements});
  gradient = std::make_unique<Gradient>(trained(), grads, pool);
  K3_TRY(gradient->open());
  gradient->tape().recompute = config.recompute;
  K3_TRY_ASSIGN(Optimizer made, Optimizer::create(trained(), config.recipe));
  optimizer = std::make_unique<Optimizer>(std::move(made));
  optimizer->watch(gradient->tape());
  first = on_gpu() ? Tensor(moment_memory.data(), weights.dtype, {weights.elements}) : optimizer->first();
  second = on_gpu() ? Tensor(moment_memory.data() + bytes, weights.dtype, {weights.elements}) : optimizer->second();
  K3_TRY(resume());
  K3_TRY(to_device());
  const TrainFlops flops = train_flops(config.model);
  flops_per_token = flops.per_token;
  RunFacts facts;
  facts.title = std::filesystem::path(config.path).stem().string();
  facts.config_json = config.json;
  facts.device = device_name(options.device);
  facts.parameters = flops.parameters;
  facts.active_parameters = flops.active_parameters;
  facts.total_steps = config.total_steps();
  K3_TRY_ASSIGN(RunLog opened, RunLog::open(options.folder, resumed, facts));
  log = std::make_unique<RunLog>(std::move(opened));
  return {};
}

Status Trainer::Impl::enter_phase(size_t p) {
  const Phase& now = config.phases[p];
  if (now.mxfp4_experts) {
    if (!quantised) {
      K3_TRY_ASSIGN(QuantisedExperts made, QuantisedExperts::create(trained()));
      quantised = std::make_unique<QuantisedExperts>(std::move(made));
    }
    quantised->attach(gradient->tape(), grads);
    quantised->refresh(gradient->ctx());
  } else if (quantised) {
    quantised->detach();
  }
  gradient->ctx().mxfp8_experts = now.mxfp8_activations;
  phase = p;
  return {};
}

// What is done after the step wants its weights, not those of a later one.
bool Trainer::Impl::pauses_after(int64_t step) const {
  return step == config.total_steps() || due(config.evaluate_every, step) || due(config.sample_every, step) || due(config.checkpoint_every, step);
}

// On a GPU nothing here waits.
Status Trainer::Impl::queue_step() {
  Queued next;
  next.start = Clock::now();
  const int64_t before = state.step + static_cast<int64_t>(queued.size());
  const TrainConfig::Place place = config.place(before);
  if (place.phase != phase) K3_TRY(enter_phase(place.phase));
  K3_TRY_ASSIGN(StepBatches* const batches, feed->next());
  // Micro-batches of chat differ in how many tokens have a loss: gradients of sums are added and divided by the step's tokens, which
  // is one factor for all, so it is left to the end: the clip sees the mean's gradient.
  next.loss_tokens = std::max<int64_t>(1, batches->loss_tokens);
  for (const StepBatches::Micro& micro : batches->micros) gradient->add(micro.view, 1.0 / static_cast<double>(next.loss_tokens));
  K3_TRY(gradient->queued());
  K3_TRY(gradient->close_step());
  StepRecord& record = next.record;
  record.step = before + 1;
  record.phase = config.phases[phase].name;
  record.learning_rate = rate_at(config, before);
  record.tokens = batches->tokens;
  record.flops = flops_per_token * static_cast<double>(record.tokens);
  K3_TRY(optimizer->queue(gradient->ctx(), grads, record.learning_rate, record.step));
  if (quantised) quantised->refresh(gradient->ctx());
  queued.push_back(std::move(next));
  return {};
}

// A GPU is given the next step before it is done with this one; the CPU has nothing to gain from that.
Status Trainer::Impl::queue_steps() {
  const int64_t ahead = on_gpu() ? kStepsAhead : 1;
  for (int64_t step = state.step + static_cast<int64_t>(queued.size()); step < std::min(state.step + ahead, config.total_steps()); ++step) {
    if (step > state.step && pauses_after(step)) break;
    K3_TRY(queue_step());
  }
  return {};
}

// Steps behind one that is not a number may have been queued: the run ends here, and no checkpoint knows of them.
Result<StepRecord> Trainer::Impl::finish_step() {
  K3_TRY_ASSIGN(const StepReport report, optimizer->report(gradient->ctx()));
  K3_TRY_ASSIGN(const double nats, gradient->take_nats());
  Queued done = std::move(queued.front());
  queued.pop_front();
  StepRecord& record = done.record;
  record.loss = nats / static_cast<double>(done.loss_tokens);
  if (report.not_finite != nullptr || !std::isfinite(record.loss)) {
    return fail(Code::exhausted,
                "step {}: {} is not a number{}; nothing was changed by this step. A lower learning rate, a smaller clip or another seed may help; "
                "the run can be resumed from its last checkpoint",
                record.step, std::isfinite(record.loss) ? "a gradient" : "the loss",
                report.not_finite != nullptr ? " (first in " + report.not_finite->name + ")" : std::string());
  }
  record.gradient_norm = report.gradient_norm;
  record.load_violation = report.load_violation;
  record.load_violation_worst = report.load_violation_worst;
  record.largest_logit = report.largest_logit;
  const Clock::time_point now = Clock::now();
  record.seconds = std::chrono::duration<double>(now - std::max(done.start, last_finish)).count();
  last_finish = now;
  state.step = record.step;
  state.seconds += record.seconds;
  return std::move(record);
}

Status Trainer::Impl::evaluate_all() {
  double bits = 0, bytes = 0;
  for (const auto& [name, windows] : data->held_out()) {
    EvaluationRecord record = evaluate(*gradient, windows, on_gpu() ? 64 : 4);
    record.step = state.step;
    record.source = name;
    bits += record.bits_per_byte * static_cast<double>(record.bytes);
    bytes += static_cast<double>(record.bytes);
    K3_TRY(log->add(record));
    if (options.on_evaluation) options.on_evaluation(record);
  }
  if (bytes > 0 && std::isfinite(bits) && (state.best_step < 0 || bits / bytes < state.best_bits_per_byte)) {
    state.best_bits_per_byte = bits / bytes;
    state.best_step = state.step;
  }
  return {};
}

// Kind and text of what is sampled.
std::vector<std::pair<std::string, std::string>> Trainer::Impl::prompts() const {
  std::vector<std::pair<std::string, std::string>> out;
  if (!config.sample.text.empty()) out.emplace_back("text", config.sample.text);
  if (!config.sample.chat.empty()) out.emplace_back("chat", config.sample.chat);
  return out;
}

Status Trainer::Impl::write_samples() {
  for (const auto& [kind, prompt] : prompts()) {
    SampleRecord record{state.step, kind, prompt, ""};
    K3_TRY_ASSIGN(record.text, sampler->write(*gradient, kind, prompt, config.sample.tokens));
    K3_TRY(log->add(record));
    if (options.on_sample) options.on_sample(record);
  }
  return {};
}

Status Trainer::Impl::to_device() {
  if (!on_gpu()) return {};
  const ops::Ctx& ctx = gradient->ctx();
  for (const auto& [to, from] : {std::pair(&optimizer->first(), &first), std::pair(&optimizer->second(), &second)}) {
    K3_TRY(copy_async(to->data, from->data, from->size() * dtype_bytes(from->dtype), ctx.stream));
  }
  return copy_train_weights(ctx, weights, *on_device);
}

Status Trainer::Impl::to_host() {
  if (!on_gpu()) return {};
  const ops::Ctx& ctx = gradient->ctx();
  for (const auto& [from, to] : {std::pair(&optimizer->first(), &first), std::pair(&optimizer->second(), &second)}) {
    K3_TRY(copy_async(to->data, from->data, from->size() * dtype_bytes(from->dtype), ctx.stream));
  }
  return copy_train_weights(ctx, *on_device, weights);
}

Status Trainer::Impl::save() {
  K3_TRY(to_host());
  K3_TRY(checkpoints.save(state, weights, first, second));
  saved = state.step;
  K3_TRY(log->write_report());
  if (options.on_checkpoint) options.on_checkpoint(state.step);
  return {};
}

Status Trainer::Impl::after_step(const StepRecord& record) {
  K3_TRY(log->add(record));
  if (options.on_step) options.on_step(record, config.total_steps());
  const bool last = state.step == config.total_steps();
  // Evaluated before it is saved: the best one is to be kept.
  if (due(config.evaluate_every, state.step) || last) K3_TRY(evaluate_all());
  if (due(config.sample_every, state.step) || last) K3_TRY(write_samples());
  if (!due(config.checkpoint_every, state.step) && !last && state.step != state.best_step) return {};
  return save();
}

Result<RunSummary> Trainer::Impl::run() {
  const Clock::time_point start = Clock::now();
  RunSummary summary;
  if (!log->steps().empty()) summary.last_loss = log->steps().back().loss;  // of a part before, should there be no step left
  saved = state.step == resumed && resumed > 0 ? resumed : -1;
  if (state.step < config.total_steps()) {
    feed = std::make_unique<BatchFeed>(config, options.device, data->manifest().pad, [this](size_t p) { return data->batches_of(p); }, state.step);
  }
  while (true) {
    // At least one step: a run in slots that are too short still gets to its end.
    const bool out_of_time = options.stop_after_seconds > 0 && state.step > resumed && seconds_since(start) >= options.stop_after_seconds;
    if (!out_of_time && (options.stop == nullptr || !options.stop->load())) K3_TRY(queue_steps());
    if (queued.empty()) break;
    K3_TRY_ASSIGN(const StepRecord record, finish_step());
    summary.last_loss = record.loss;
    K3_TRY(after_step(record));
  }
  if (saved != state.step) K3_TRY(save());
  summary.steps = state.step;
  summary.finished = state.step == config.total_steps();
  summary.seconds = state.seconds;
  return summary;
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::create(const TrainConfig& config, const RunOptions& options, ThreadPool& pool) {
  if (config.total_steps() == 0) return fail(Code::invalid_argument, "{}: no phase has steps, there is nothing to do", config.path);
  K3_TRY(check_memory(config, options.device));
  K3_TRY_ASSIGN(TrainWeights weights, make_train_weights(config.model, DType::f32));
  auto impl = std::make_unique<Impl>(config, options, pool, std::move(weights));
  K3_TRY(impl->open());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

int64_t Trainer::resumed_step() const { return impl_->resumed; }
int64_t Trainer::parameters() const { return train_flops(impl_->config.model).parameters; }
Result<RunSummary> Trainer::run() { return impl_->run(); }

}  // namespace k3::train
