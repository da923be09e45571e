#include "k3/model/model.h"

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"

namespace k3 {

std::string model_folder(const std::string& path) {
  if (is_directory(path)) return path;
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

Result<Model> Model::load(const std::string& path, ThreadPool& pool, const LoadProgress& progress) {
  Model model;
  model.folder_ = model_folder(path);
  K3_TRY_ASSIGN(model.config_, load_config(path));
  K3_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model.folder_));
  resolve_by_tensors(checkpoint, model.config_);
  K3_TRY_ASSIGN(model.weights_, load_weights(checkpoint, model.config_, pool, progress).with_context(model.folder_));
  return model;
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

Runner::Runner(const Model& model, ThreadPool& pool, const RunnerOptions& options, SequencePool cache)
    : model_(&model), options_(options), cache_(std::move(cache)), workspace_(std::make_unique<Workspace>()) {
  ctx_.pool = &pool;
  ctx_.workspace = workspace_.get();
  ctx_.isa = options.isa;
  ctx_.policy = options.policy;
  ctx_.deterministic = options.deterministic;
}

Result<Runner> Runner::create(const Model& model, ThreadPool& pool, const RunnerOptions& options) {
  if (options.ctx_tokens < 1 || options.chunk_tokens < 1 || options.sequences < 1) {
    return fail(Code::invalid_argument, "context, chunk and sequences must be at least 1");
  }
  if (options.isa > ops::detect_isa()) {
    return fail(Code::unsupported, "this processor has no {}; the best it has is {}", ops::isa_name(options.isa),
                ops::isa_name(ops::detect_isa()));
  }
  K3_TRY_ASSIGN(SequencePool cache,
                SequencePool::create(model.config(), options.policy, options.sequences, options.ctx_tokens));
  return Runner(model, pool, options, std::move(cache));
}

Status Runner::check_sequence(int32_t sequence) const {
  if (sequence >= 0 && sequence < cache_.sequences()) return {};
  return fail(Code::invalid_argument, "there is no sequence {}; the runner has {}", sequence, cache_.sequences());
}

Result<Tensor> Runner::step(std::span<const StepInput> inputs) {
  tokens_.clear();
  sequences_.clear();
  history_.clear();
  rows_.clear();
  offsets_.assign(1, 0);
  for (const StepInput& input : inputs) {
    K3_TRY(model_->check_ids(input.tokens));
    K3_TRY(check_sequence(input.sequence));
    if (std::find(sequences_.begin(), sequences_.end(), input.sequence) != sequences_.end()) {
      return fail(Code::invalid_argument, "sequence {} stands twice in one step", input.sequence);
    }
    if (static_cast<int64_t>(input.tokens.size()) > cache_.room(input.sequence)) {
      return fail(Code::exhausted, "the context of {} tokens is full: {} are used and {} more were given (see --ctx)",
                  cache_.ctx_tokens(), cache_.length(input.sequence), input.tokens.size());
    }
    tokens_.insert(tokens_.end(), input.tokens.begin(), input.tokens.end());
    sequences_.push_back(input.sequence);
    history_.push_back(cache_.length(input.sequence));
    const int64_t begin = offsets_.back();
    const auto end = static_cast<int64_t>(tokens_.size());
    offsets_.push_back(end);
    if (input.logits == StepInput::Logits::last && end > begin) rows_.push_back(end - 1);
    if (input.logits == StepInput::Logits::all) {
      for (int64_t t = begin; t < end; ++t) rows_.push_back(t);
    }
  }
  const auto rows = static_cast<int64_t>(rows_.size());
  const int64_t vocab = model_->config().vocab_size;
  logits_.resize(static_cast<size_t>(rows * vocab));
  const Tensor logits(logits_.data(), DType::f32, {rows, vocab});
  if (tokens_.empty()) return logits;
  const Batch batch{tokens_, offsets_, history_, cache_.views(sequences_), rows_};
  forward(ctx_, model_->config(), model_->weights(), batch, logits);
  for (const StepInput& input : inputs) cache_.advance(input.sequence, static_cast<int64_t>(input.tokens.size()));
  return logits;
}

Result<std::span<const float>> Runner::feed(int32_t sequence, std::span<const int32_t> tokens,
                                            const std::function<bool(int64_t)>& progress) {
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
                          end == count ? StepInput::Logits::last : StepInput::Logits::none};
    K3_TRY_ASSIGN(logits, step(std::span(&input, 1)));
    if (progress && !progress(end) && end < count) return fail(Code::cancelled, "stopped after {} tokens", end);
  }
  if (count == 0) return fail(Code::invalid_argument, "no tokens to feed");
  return std::span<const float>(logits.f32(), static_cast<size_t>(logits.size()));
}

}  // namespace k3
