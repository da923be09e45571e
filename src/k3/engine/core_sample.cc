// What happens when a step has landed: registration, sampling, ends.
#include <algorithm>

#include "k3/engine/core.h"
#include "k3/engine/core_state.h"

namespace k3 {
namespace {

std::span<const float> last_row(const Tensor& rows) {
  return {rows.row(rows.dim(0) - 1), static_cast<size_t>(rows.dim(1))};
}

}  // namespace

// chosen: of the only row, which holds nothing then.
void EngineCore::land(Line& line, const Tensor& rows, const ops::cuda::ChosenRow* chosen) {
  const bool have_rows = rows.data != nullptr && rows.dim(0) > 0;
  const bool broken = chosen != nullptr ? (chosen->flags & ops::cuda::kSampleNotFinite) != 0
                                        : have_rows && !ops::all_finite({rows.f32(), static_cast<size_t>(rows.size())});
  if (broken) {
    ++counters_.nonfinite;
    cache_.abandon(*line.sequence);
    fault(line, fail(Code::internal, "the model answered numbers that are not finite"), true);
    return;
  }
  const bool first_pass = line.generated == 0;
  const int64_t reached = line.cached + line.planned;
  const Request& r = line.job->request;
  const auto blocks = static_cast<size_t>(reached / options_.block_tokens);
  const auto ids = line.modelled() ? std::span<const int32_t>{} : std::span<const int32_t>(line.tokens).first(static_cast<size_t>(reached));
  cache_.commit(*line.sequence, line.block_keys().first(blocks), ids, reached);
  if (line.state == Line::State::prefill) {
    counters_.computed_tokens += line.planned;
    line.job->summary.computed_tokens += line.planned;
  }
  if (r.prompt_logprobs && first_pass && have_rows) report_prompt(line, rows);
  if (line.modelled()) {
    land_modelled(line, reached);
    return;
  }
  line.cached = reached;
  line.planned = 0;
  if (line.cached < line.size() || !have_rows) return;
  line.state = Line::State::decode;
  if (chosen != nullptr) {
    take(line, ops::chosen_id(*chosen), {});
    return;
  }
  const std::span<const float> logits = last_row(rows);
  if (first_pass && line.choice == 0 && line.job->lines.size() > 1) fork_choices(line, logits);
  if (line.state == Line::State::ended) return;  // a fault of a sibling ends all
  sample(line, logits);
}

// Row t of the step holds what the model says of the token at position cached + t + 1.
void EngineCore::report_prompt(Line& line, const Tensor& rows) {
  const auto& callback = line.job->request.callbacks.on_prompt_token;
  if (!callback) return;
  for (int64_t t = 0; t < rows.dim(0); ++t) {
    const int64_t position = line.cached + t + 1;
    if (position >= line.size()) break;
    if (position <= line.reported) continue;
    line.reported = position;
    const ops::LogProbs probs({rows.row(t), static_cast<size_t>(rows.dim(1))});
    std::vector<TokenLogprob> top;
    for (const auto& [id, value] : probs.top(std::max(0, line.job->request.logprobs))) top.push_back({id, value});
    callback(position, probs.of(line.tokens[static_cast<size_t>(position)]), top);
  }
}

// The other choices go on from the prompt that the first one has read. Those that find no room queue as requests of their own.
void EngineCore::fork_choices(Line& first, std::span<const float> logits) {
  Job& job = *first.job;
  for (const auto& owned : job.lines) {
    Line& line = *owned;
    if (line.state != Line::State::forking) continue;
    line.tokens = first.tokens;
    line.keys = first.keys;
    if (static_cast<int64_t>(running_.size()) < options_.max_running) {
      Result<cache::SequenceId> copy = cache_.fork(*first.sequence);
      while (!copy.ok() && copy.error().code == Code::exhausted && release_idle()) copy = cache_.fork(*first.sequence);
      if (copy.ok()) {
        line.sequence = *copy;
        line.cached = first.cached;
        occupy(line);
        line.state = Line::State::decode;
        running_.push_back(&line);
        sample(line, logits);
        continue;
      }
    }
    line.state = Line::State::waiting;
    waiting_.push_back(&line);
  }
}

// Chooses the next token and tells the request.
void EngineCore::sample(Line& line, std::span<const float> logits) { take(line, choose(line, logits), logits); }

Result<int32_t> EngineCore::choose(Line& line, std::span<const float> logits) {
  std::span<const uint32_t> mask;
  const auto words = mask_words(static_cast<int64_t>(logits.size()));
  mask_.resize(words);
  const bool constrained = line.constraint && line.constraint->fill_mask(mask_);
  if (constrained) mask = mask_;
  if (line.waits_for_stop()) {
    if (!constrained) std::fill(mask_.begin(), mask_.end(), ~uint32_t{0});
    mask = mask_;
    for (const int32_t id : line.job->request.stop_ids) {
      if (id >= 0 && static_cast<size_t>(id) < logits.size()) mask_[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
    }
    // A text that its grammar says is complete ends, however short it is.
    const bool nothing_left = std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; });
    if (constrained && nothing_left) line.constraint->fill_mask(mask_);
  }
  return line.sampler->sample(logits, line.prompt(), line.answer(), mask);
}

// The line goes on with this token, or ends with the fault. logits: only for a request that wants to be told of them.
void EngineCore::take(Line& line, Result<int32_t> id, std::span<const float> logits) {
  const Request& r = line.job->request;
  if (!id.ok() && !r.sampling.logit_bias.empty()) {
    fault(line, fail(Code::invalid_argument, "logit_bias: leaves no token to choose ({})", id.error().message), false);
    return;
  }
  if (!id.ok() && line.waits_for_stop()) {
    fault(line, fail(Code::invalid_argument, "min_tokens: every token is one to stop at, so none can come before"), false);
    return;
  }
  if (!id.ok()) {
    fault(line, std::move(id).take_error(), false);
    return;
  }
  if (line.constraint && !line.constraint->accept(*id)) {
    fault(line, fail(Code::internal, "token {} left the grammar", *id), false);
    return;
  }
  emit(line, *id, logits);
}

void EngineCore::count_generated(Line& line, int64_t tokens) {
  line.generated += tokens;
  line.job->summary.generated_tokens += tokens;
  counters_.generated_tokens += tokens;
  window_tokens_ += tokens;
}

void EngineCore::emit(Line& line, int32_t id, std::span<const float> logits) {
  Job& job = *line.job;
  const Request& r = job.request;
  const double now = executor_.now_seconds();
  if (job.first_token_at < 0) {
    job.first_token_at = now;
    job.summary.prefill_seconds = now - job.admitted_at;
    observe(counters_.ttft, now - job.submitted);
  }
  if (line.last_token_seconds > 0 && !line.modelled()) observe(counters_.inter_token, now - line.last_token_seconds);
  line.last_token_seconds = now;
  GeneratedToken token;
  token.choice = line.choice;
  token.id = id;
  token.index = line.generated;
  std::vector<TokenLogprob> top;
  if (r.logprobs >= 0) {
    const ops::LogProbs probs(logits);
    token.logprob = probs.of(id);
    for (const auto& [other, value] : probs.top(r.logprobs)) top.push_back({other, value});
    token.top = &top;
  }
  if (!line.modelled()) {
    line.tokens.push_back(id);
    line.keys.append(std::span(&id, 1));
  }
  count_generated(line, 1);
  const bool go_on = !r.callbacks.on_token || r.callbacks.on_token(token);
  const bool stop = std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end();
  if (stop && !r.ignore_eos) {
    end(line, EndReason::stop_token);
  } else if (!go_on) {
    end(line, EndReason::stopped);
  } else if (r.max_tokens > 0 && line.generated >= r.max_tokens) {
    end(line, EndReason::length);
  } else if (line.size() >= options_.ctx_tokens) {
    end(line, EndReason::context);
  }
}

// ---- ends ----

EngineCore::Kept EngineCore::kept_of(const Line& line) const {
  Kept kept;
  if (line.modelled()) {
    kept.modelled_tokens = line.cached;
    kept.session = line.job->request.modelled->session;
  } else {
    kept.tokens.assign(line.tokens.begin(), line.tokens.begin() + static_cast<ptrdiff_t>(line.cached));
  }
  kept.salt = line.job->request.cache_salt;
  kept.prompt_tokens = std::min(line.cached, line.prompt_tokens());
  kept.cached_tokens = line.job->summary.admitted.cached_tokens;
  return kept;
}

void EngineCore::keep_idle(Slot& slot, cache::SequenceId sequence, Kept kept) {
  empty(slot);
  slot.idle = sequence;
  slot.kept = std::move(kept);
  slot.last_use = ++idle_clock_;
}

// Gives back what the line holds; its sequence may stay in its slot as an idle one.
void EngineCore::leave_cache(Line& line, bool may_idle) {
  if (!line.sequence) return;
  quiet_ = false;
  Slot& slot = slots_[static_cast<size_t>(line.slot)];
  slot = Slot();
  if (may_idle && options_.keep_idle && line.job->request.use_cache) {
    keep_idle(slot, *line.sequence, kept_of(line));
  } else {
    cache_.release(*line.sequence);
  }
  line.sequence.reset();
  line.slot = -1;
}

void EngineCore::end(Line& line, EndReason reason) {
  if (line.state == Line::State::ended) return;
  const bool queued = line.state == Line::State::waiting;
  line.state = Line::State::ended;
  if (queued) std::erase(waiting_, &line);
  std::erase(running_, &line);
  leave_cache(line, reason != EndReason::failed && line.cached > 0);
  Job& job = *line.job;
  if (reason == EndReason::stop_token || reason == EndReason::stopped) ++counters_.ended_by_stop;
  if (reason == EndReason::length || reason == EndReason::context) ++counters_.ended_by_length;
  if (job.request.callbacks.on_choice_end) job.request.callbacks.on_choice_end({line.choice, reason, line.generated});
  // Nobody will read the prompt for those that wait for the first choice to have read it.
  if (line.choice == 0) {
    for (const auto& other : job.lines) {
      if (other->state == Line::State::forking) end(*other, reason);
    }
  }
  finish_job(job);
}

// One fault ends the whole request: its other choices would be an answer that the client cannot use.
void EngineCore::fault(Line& line, Error error, bool quarantine) {
  if (line.state == Line::State::ended) return;
  Job& job = *line.job;
  if (!job.summary.error) job.summary.error = std::move(error);
  if (quarantine && line.sequence) {
    slots_[static_cast<size_t>(line.slot)] = Slot();
    cache_.quarantine(*line.sequence);
    line.sequence.reset();
    line.slot = -1;
  }
  for (const auto& other : job.lines) end(*other, EndReason::failed);
}

void EngineCore::finish_job(Job& job) {
  if (job.done) return;
  for (const auto& line : job.lines) {
    if (line->state != Line::State::ended) return;
  }
  job.done = true;
  const double now = executor_.now_seconds();
  if (job.first_token_at >= 0) job.summary.decode_seconds = now - job.first_token_at;
  observe(counters_.e2e, now - job.submitted);
  ++counters_.requests_done;
  if (job.summary.error) ++counters_.requests_failed;
  if (job.cancelled) ++counters_.requests_cancelled;
  if (job.request.callbacks.on_done) job.request.callbacks.on_done(job.summary);
}

void EngineCore::sweep() {
  jobs_.remove_if([](const std::unique_ptr<Job>& job) { return job->done; });
}

}  // namespace k3
