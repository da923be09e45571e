#include "k3/engine/core.h"

#include <algorithm>

#include "k3/engine/core_state.h"

namespace k3 {
namespace {

// A request that does not get its pages may be passed by smaller ones so often; then everyone behind it waits.
constexpr int32_t kMostBypasses = 64;

EngineHistogram histogram(std::vector<double> bounds) {
  EngineHistogram h;
  h.counts.assign(bounds.size() + 1, 0);
  h.bounds = std::move(bounds);
  return h;
}

}  // namespace

std::string_view end_reason_text(EndReason reason) {
  switch (reason) {
    case EndReason::stop_token: return "end of message";
    case EndReason::stopped: return "stopped by the reader";
    case EndReason::length: return "token limit";
    case EndReason::context: return "context full";
    case EndReason::cancelled: return "cancelled";
    case EndReason::deadline: return "deadline";
    case EndReason::interrupted: return "interrupted";
    case EndReason::failed: return "failed";
  }
  return "?";
}

Status check_request(const CoreOptions& options, const Request& request) {
  const auto prompt = request.modelled ? request.modelled->prompt_tokens : static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return fail(Code::invalid_argument, "the prompt is empty");
  if (prompt + 1 > options.ctx_tokens) {
    return fail(Code::invalid_argument, "the prompt has {} tokens and the context is {}; at least one must be left to answer",
                prompt, options.ctx_tokens);
  }
  if (request.choices < 1 || request.choices > options.max_running) {
    return fail(Code::invalid_argument, "n: {} is more than the {} sequences that this server computes at once", request.choices,
                options.max_running);
  }
  if (request.modelled) return check_modelled(options, request);
  K3_TRY(request.sampling.validate(options.vocab));
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= options.vocab) {
      return fail(Code::invalid_argument, "token id {} at position {} is outside the vocabulary of {}", request.prompt[i], i,
                  options.vocab);
    }
  }
  return {};
}

EngineCore::EngineCore(const CoreOptions& options, cache::HybridCache& cache, Executor& executor)
    : options_(options), cache_(cache), executor_(executor), slots_(static_cast<size_t>(options.max_running)) {
  const std::vector<double> long_times = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
  counters_.ttft = histogram(long_times);
  counters_.e2e = histogram(long_times);
  counters_.queue = histogram(long_times);
  counters_.inter_token = histogram({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
}

EngineCore::~EngineCore() { stop_all(EndReason::interrupted); }

void EngineCore::submit(RequestId id, Request request) {
  auto job = std::make_unique<Job>();
  job->id = id;
  job->order = next_order_++;
  job->submitted = executor_.now_seconds();
  job->request = std::move(request);
  const Request& r = job->request;
  // The length goes in front of the salt, so that no salt can spell another checkpoint's keys.
  const std::string extra = fmt::format("{}:{}{}", options_.identity.size(), options_.identity, r.cache_salt);
  for (int32_t c = 0; c < r.choices; ++c) {
    auto line = std::make_unique<Line>(cache::KeyChain(options_.block_tokens, options_.key_seed, extra));
    line->job = job.get();
    line->choice = c;
    if (!r.modelled) line->sampler = std::make_unique<ops::Sampler>(r.sampling, options_.vocab, static_cast<uint64_t>(c));
    if (r.grammar) line->constraint.emplace(r.grammar, r.stop_ids);
    if (c == 0) {
      line->tokens = r.prompt;
      line->keys.append(r.prompt);
      line->state = Line::State::waiting;
      waiting_.push_back(line.get());
    }
    job->lines.push_back(std::move(line));
  }
  jobs_.push_back(std::move(job));
  quiet_ = false;
}

void EngineCore::cancel(RequestId id) {
  for (const auto& job : jobs_) {
    if (job->id != id || job->done) continue;
    job->cancelled = true;
    for (const auto& line : job->lines) end(*line, EndReason::cancelled);
  }
  sweep();
}

void EngineCore::stop_all(EndReason reason) {
  for (const auto& job : jobs_) {
    for (const auto& line : job->lines) end(*line, reason);
  }
  sweep();
  release_all_idle();
}

void EngineCore::release_all_idle() {
  while (release_idle()) {
  }
}

bool EngineCore::has_work() const { return !jobs_.empty(); }

std::vector<RequestId> EngineCore::requests() const {
  std::vector<RequestId> out;
  for (const auto& job : jobs_) {
    if (!job->done) out.push_back(job->id);
  }
  return out;
}

Candidate EngineCore::candidate(const Line& line) const {
  const Job& job = *line.job;
  Candidate c;
  c.order = job.order;
  c.priority = job.request.priority;
  if (job.request.ttft_target_seconds > 0) c.due_seconds = job.submitted + job.request.ttft_target_seconds;
  c.resumed = line.state == Line::State::waiting && line.resumed;
  c.prefill_tokens = line.remaining();
  return c;
}

void EngineCore::expire() {
  const double now = executor_.now_seconds();
  for (const auto& job : jobs_) {
    const double limit = job->request.deadline_seconds > 0 ? job->request.deadline_seconds : options_.deadline_seconds;
    if (job->done || limit <= 0 || now - job->submitted <= limit) continue;
    if (job->first_token_at < 0 && !job->summary.error) {
      job->summary.error = fail(Code::deadline, "the deadline of {:.3g} s passed before the first token", limit);
    }
    for (const auto& line : job->lines) end(*line, EndReason::deadline);
  }
  sweep();
}

// ---- admission ----

// An empty slot, else the one whose idle sequence was used least recently; -1 when all are running.
int32_t EngineCore::free_slot(int32_t except) const {
  int32_t oldest = -1;
  for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
    const Slot& slot = slots_[static_cast<size_t>(i)];
    if (slot.line != nullptr || i == except) continue;
    if (!slot.idle) return i;
    if (oldest < 0 || slot.last_use < slots_[static_cast<size_t>(oldest)].last_use) oldest = i;
  }
  return oldest;
}

void EngineCore::empty(Slot& slot) {
  if (slot.idle) cache_.release(*slot.idle);
  slot = Slot();
}

// Fewer lines run than there are slots.
void EngineCore::occupy(Line& line) {
  line.slot = free_slot();
  Slot& slot = slots_[static_cast<size_t>(line.slot)];
  empty(slot);
  slot.line = &line;
}

// Gives up the idle sequence that was used least recently.
bool EngineCore::release_idle(const Slot* except) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.idle && &slot != except && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  }
  if (oldest == nullptr) return false;
  empty(*oldest);
  return true;
}

bool EngineCore::begins(const Kept& kept, const Line& line) {
  if (line.modelled()) return begins_modelled(kept, line);
  return std::equal(kept.tokens.begin(), kept.tokens.end(), line.tokens.begin());
}

// Continues an idle sequence whose tokens begin the prompt, where that skips more than the prefix cache would.
bool EngineCore::take_idle(Line& line) {
  const Request& r = line.job->request;
  if (!r.use_cache || r.prompt_logprobs) return false;
  Slot* best = nullptr;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.idle || slot.kept.salt != r.cache_salt || slot.kept.size() >= line.size()) continue;
    if (r.slot && *r.slot != static_cast<int32_t>(i)) continue;
    if (best != nullptr && best->kept.size() >= slot.kept.size()) continue;
    if (begins(slot.kept, line)) best = &slot;
  }
  if (best == nullptr) return false;
  const int64_t length = best->kept.size();
  const cache::CachePrompt prompt = line.cache_prompt();
  if (cache_.peek(prompt).cached_tokens >= length) return false;
  line.sequence = best->idle;
  line.cached = length;
  line.slot = static_cast<int32_t>(best - slots_.data());
  cache_.extend(*line.sequence, prompt);
  *best = Slot();
  slots_[static_cast<size_t>(line.slot)].line = &line;
  Admitted admitted;
  admitted.prompt_tokens = line.size();
  admitted.cached_tokens = admitted.matched_tokens = length;
  admitted.resumed_idle = true;
  counters_.resumed_prompt_tokens += line.size();
  counters_.resumed_tokens += length;
  start(line, admitted);
  return true;
}

bool EngineCore::admit_line(Line& line) {
  if (take_idle(line)) return true;
  const Request& r = line.job->request;
  // Prompt log-probabilities need every token computed, so nothing is taken from the cache (or left there).
  const bool cached = r.use_cache && !r.prompt_logprobs;
  cache::CachePrompt prompt = line.cache_prompt();
  prompt.use_cache = cached;
  Admitted admitted;
  for (;;) {
    Result<cache::Admission> admission = cache_.admit(prompt);
    if (admission.ok()) {
      line.sequence = admission->sequence;
      line.cached = admission->cached_tokens;
      admitted = {line.size(),      admission->cached_tokens, admission->matched_tokens, admission->limit,
                  false,            admission->copied_bytes,  admission->fetched_bytes,  0};
      break;
    }
    // The pool has shrunk (quarantine) since the answer was preempted.
    if (admission.error().code == Code::invalid_argument && line.generated > 0) {
      end(line, EndReason::context);
      return true;
    }
    if (admission.error().code != Code::exhausted) {
      note_device(admission.error());
      fault(line, std::move(admission).take_error(), false);
      return true;
    }
    if (!release_idle()) return false;
  }
  occupy(line);
  start(line, admitted);
  return true;
}

void EngineCore::start(Line& line, const Admitted& found) {
  line.state = Line::State::prefill;
  running_.push_back(&line);
  if (line.modelled()) receive(line);
  Job& job = *line.job;
  if (job.admitted_at >= 0) return;
  job.admitted_at = executor_.now_seconds();
  job.summary.admitted = found;
  job.summary.queue_seconds = job.summary.admitted.queue_seconds = job.admitted_at - job.submitted;
  observe(counters_.queue, job.summary.queue_seconds);
  counters_.prompt_tokens += found.prompt_tokens;
  if (job.request.callbacks.on_admitted) job.request.callbacks.on_admitted(job.summary.admitted);
}

void EngineCore::admit() {
  if (waiting_.empty() || static_cast<int64_t>(running_.size()) >= options_.max_running) return;
  std::vector<Line*> order(waiting_.begin(), waiting_.end());
  std::stable_sort(order.begin(), order.end(), [&](const Line* a, const Line* b) {
    return goes_before(options_.schedule, candidate(*a), candidate(*b));
  });
  std::vector<Line*> passed;
  for (Line* line : order) {
    if (static_cast<int64_t>(running_.size()) >= options_.max_running) break;
    if (std::any_of(passed.begin(), passed.end(), [](const Line* p) { return p->bypassed >= kMostBypasses; })) break;
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), line));
    if (admit_line(*line)) {
      for (Line* p : passed) ++p->bypassed;
    } else {
      waiting_.push_back(line);
      passed.push_back(line);
    }
  }
}

// ---- the step ----

void EngineCore::preempt(Line& line) {
  leave_cache(line, false);
  std::erase(running_, &line);
  line.state = Line::State::waiting;
  line.resumed = true;
  line.cached = 0;
  waiting_.push_back(&line);
  ++counters_.preemptions;
  ++line.job->summary.preemptions;
}

// Pages for so many tokens, taken from idle sequences and, in the end, from whoever goes last. False: the line itself gave way
// or ended.
bool EngineCore::make_room(Line& line, int64_t tokens) {
  for (;;) {
    Status status = cache_.grow(*line.sequence, tokens);
    if (status.ok()) return true;
    if (status.error().code == Code::invalid_argument && line.generated > 0) {  // more than the whole pool holds
      end(line, EndReason::context);
      return false;
    }
    if (status.error().code != Code::exhausted) {
      fault(line, std::move(status).take_error(), false);
      return false;
    }
    if (release_idle()) continue;
    if (running_.size() == 1) {
      end(line, EndReason::context);
      return false;
    }
    std::vector<Candidate> candidates;
    for (const Line* running : running_) candidates.push_back(candidate(*running));
    Line* victim = running_[choose_victim(options_.schedule, candidates)];
    preempt(*victim);
    if (victim == &line) return false;
  }
}

// With separate phases: which of them this step is for.
void EngineCore::choose_phase(const std::vector<Line*>& order) {
  const auto any = [&](Line::State state) { return std::any_of(order.begin(), order.end(), [&](const Line* l) { return l->state == state; }); };
  const bool both = options_.separate_phases && any(Line::State::decode) && any(Line::State::prefill);
  if (!both) {
    prefill_turn_ = decode_turn_ = true;
  } else if (prefill_turn_ == decode_turn_) {
    decode_turn_ = false;
  } else {
    std::swap(prefill_turn_, decode_turn_);
  }
}

std::vector<EngineCore::Line*> EngineCore::plan_step(std::vector<StepItem>& items) {
  int64_t budget = std::min(options_.step_tokens, executor_.most_tokens());
  std::vector<Line*> order = running_;
  std::stable_sort(order.begin(), order.end(), [&](const Line* a, const Line* b) {
    return goes_before(options_.schedule, candidate(*a), candidate(*b));
  });
  // Every line may want a row of logits; those that want one a token share the rest.
  constexpr int64_t kPromptRows = 128;  // keeps the logits of a step small where no memory plan does
  int64_t spare_rows = std::min(executor_.most_rows() - static_cast<int64_t>(order.size()), kPromptRows);
  std::vector<int64_t> prompts(order.size(), 0);
  choose_phase(order);
  int64_t keys = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    Line& line = *order[i];
    line.planned = 0;
    if (line.state == Line::State::decode && budget > 0 && decode_turn_) {
      line.planned = line.modelled() ? decode_tokens(line, budget) : 1;
      budget -= line.planned;
    } else if (line.state == Line::State::prefill && prefill_turn_) {
      const int64_t reach = line.cached + std::min(line.remaining(), budget);
      if (options_.prefill_keys > 0 && keys > 0 && keys + reach > options_.prefill_keys) continue;
      keys += reach;
      prompts[i] = line.remaining();
      if (line.job->request.prompt_logprobs) {
        prompts[i] = std::min(prompts[i], 1 + spare_rows);
        spare_rows -= prompts[i] - 1;
      }
    }
  }
  const std::vector<int64_t> shares = share_prefill(prompts, budget);
  for (size_t i = 0; i < order.size(); ++i) order[i]->planned += shares[i];
  for (Line* line : order) {
    if (line->planned > 0 && line->runs()) make_room(*line, line->cached + line->planned);
  }
  std::vector<Line*> lines;
  items.clear();
  for (Line* line : order) {
    if (line->planned == 0 || !line->runs()) continue;  // has given way or ended
    StepItem item;
    const int64_t target = line->cached + line->planned;
    if (!line->modelled()) item.tokens = std::span(line->tokens).subspan(static_cast<size_t>(line->cached), static_cast<size_t>(line->planned));
    item.token_count = line->planned;
    item.history = line->cached;
    item.decode = line->state == Line::State::decode;
    item.block_table = cache_.block_table(*line->sequence);
    item.state_pages = cache_.state_pages(*line->sequence);
    item.checkpoints = cache_.plan_checkpoints(*line->sequence, target);
    if (target == line->size()) item.logits = WantLogits::last;
    if (line->job->request.prompt_logprobs && line->generated == 0) item.logits = WantLogits::all;
    if (item.logits == WantLogits::last) item.choice = choice_of(*line);
    items.push_back(item);
    lines.push_back(line);
  }
  return lines;
}

// For the executor to choose the next token by; none where the choice needs the logits: for what is told of them, what else changes them,
// or other choices that begin with them.
RowChoice EngineCore::choice_of(const Line& line) const {
  const Request& r = line.job->request;
  const bool forks = line.generated == 0 && line.job->lines.size() > 1;
  const bool masked = line.constraint.has_value() || line.waits_for_stop();
  if (!executor_.can_choose() || line.modelled() || r.logprobs >= 0 || forks || masked) return {};
  return line.sampler->plain_row(static_cast<uint64_t>(line.generated));
}

bool EngineCore::step() {
  expire();
  end_on_lost_device();
  admit();
  end_on_lost_device();
  sweep();
  std::vector<StepItem> items;
  const std::vector<Line*> lines = plan_step(items);
  if (lines.empty()) {
    quiet_ = false;
    sweep();
    return false;
  }
  const double begin = executor_.now_seconds();
  Result<Tensor> logits = executor_.step(items);
  if (logits.ok()) repeat_step(lines, items);
  const double seconds = executor_.now_seconds() - begin;
  ++counters_.steps;
  counters_.step_seconds += seconds;
  if (!logits.ok()) {
    fail_step(lines, logits.error());
  } else {
    int64_t row = 0;
    const std::span<const ops::cuda::ChosenRow> chosen = executor_.chosen();
    const int64_t rows = logits->rank == 2 ? logits->dim(0) : 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const int64_t count = items[i].logits == WantLogits::none   ? 0
                            : items[i].logits == WantLogits::last ? 1
                                                                        : items[i].token_count;
      const int64_t take = std::min(count, rows - row);  // a simulation has no logits
      // A fault of one choice has ended its siblings, here or in a step that fails.
      const bool is_chosen = items[i].choice && !chosen.empty();
      if (lines[i]->runs()) {
        land(*lines[i], take > 0 ? logits->slice(row, row + take) : Tensor(), is_chosen ? &chosen[static_cast<size_t>(row)] : nullptr);
      }
      row += take;
    }
  }
  sweep();
  measure_rate();
  return true;
}

// Generated tokens a second, over stretches of a few seconds.
void EngineCore::measure_rate() {
  constexpr double kStretch = 2;
  const double now = executor_.now_seconds();
  if (now - window_start_ < kStretch) return;
  counters_.tokens_per_second = window_start_ > 0 ? static_cast<double>(window_tokens_) / (now - window_start_) : 0;
  window_start_ = now;
  window_tokens_ = 0;
}

void EngineCore::note_device(const Error& error) {
  if (error.code == Code::device_lost && device_status_.ok()) device_status_ = Error(error);
}

// A device that is lost does not come back: nobody waits for it.
void EngineCore::end_on_lost_device() {
  if (device_status_.ok()) return;
  for (const auto& job : jobs_) {
    for (const auto& line : job->lines) fault(*line, Error(device_status_.error()), false);
  }
}

void EngineCore::fail_step(const std::vector<Line*>& lines, const Error& error) {
  for (Line* line : lines) {
    if (!line->runs()) continue;
    cache_.abandon(*line->sequence);
    fault(*line, Error(error).with_context("a step failed"), true);
  }
  note_device(error);
  end_on_lost_device();
}

void EngineCore::observe(EngineHistogram& h, double seconds) {
  size_t i = 0;
  while (i < h.bounds.size() && seconds > h.bounds[i]) ++i;
  ++h.counts[i];
  h.sum += seconds;
}

}  // namespace k3
