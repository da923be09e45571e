#include "k3/server/api/answer/answer.h"

#include <atomic>
#include <chrono>
#include <mutex>

#include "k3/base/log.h"
#include "k3/base/rng.h"

namespace k3::server {
namespace {

using Clock = std::chrono::steady_clock;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(std::shared_ptr<const Context> context, std::shared_ptr<http::Exchange> exchange, const http::RequestHead& head,
         AnswerJob job)
      : context_(std::move(context)), exchange_(std::move(exchange)), job_(std::move(job)), request_id_(head.request_id) {
    state_.created = unix_seconds();
    state_.id = new_answer_id(state_.created);
    state_.model = context_->card.id;
    state_.generation = job_.generation;
    state_.choices = std::move(job_.choices);
    state_.tokenizer = context_->tokenizer;
    state_.prompt_logprobs.resize(job_.requests.size());
    choices_each_ = static_cast<size_t>(job_.generation.choices);
    ended_.resize(state_.choices.size());
  }

  void start();

 private:
  using Lock = std::lock_guard<std::recursive_mutex>;

  RequestCallbacks callbacks(size_t request);
  void on_admitted(const Admitted& admitted);
  bool on_token(size_t choice, const GeneratedToken& token);
  void on_choice_end(size_t choice, EndReason reason);
  void on_done(size_t request, const RequestSummary& summary);
  void all_done();
  void fail_with(const ApiError& error);
  void send(const std::string& frames);
  void cancel_all(bool client_gone);
  void interrupt();
  void ping();
  void log_line(int status);

  std::shared_ptr<const Context> context_;  // the engine may end requests after the server has gone
  std::shared_ptr<http::Exchange> exchange_;
  AnswerJob job_;
  AnswerState state_;
  std::string request_id_;
  Clock::time_point begun_ = Clock::now();
  size_t choices_each_ = 1;

  std::recursive_mutex mutex_;  // guards what follows: a request may end while the next is being submitted
  Clock::time_point last_sent_;
  std::vector<RequestId> ids_;
  std::vector<bool> ended_;
  std::vector<Piece> pieces_;
  std::string early_;  // frames made before all requests of the job were admitted
  size_t admitted_ = 0, done_ = 0, submitted_ = 0;
  bool streaming_ = false, cancelled_ = false, answered_ = false, abnormal_ = false, all_submitted_ = false;
  std::optional<ApiError> error_;
  RequestSummary sum_;
  uint64_t live_key_ = 0;
};

void Answer::start() {
  const auto call = [weak = weak_from_this()](void (Answer::*member)()) {
    return [weak, member] {
      if (const auto self = weak.lock()) (*self.*member)();
    };
  };
  live_key_ = context_->answers->add({.interrupt = call(&Answer::interrupt), .ping = call(&Answer::ping)});
  const size_t count = job_.requests.size();
  for (const Request& request : job_.requests) {  // before the first callback can look at them
    if (job_.keep_prompts) state_.prompts.push_back(request.prompt);
  }
  for (size_t i = 0; i < count; ++i) {
    Request request = std::move(job_.requests[i]);
    request.name = request_id_;
    request.callbacks = callbacks(i);
    auto id = context_->engine.submit(std::move(request));
    const Lock lock(mutex_);
    if (!id.ok()) {
      // A full queue is not the request's fault, unlike everything else that is exhausted.
      const bool full = id.error().code == Code::exhausted;
      error_ = full ? queue_full(context_->engine.retry_after_seconds()) : api_error(id.error());
      break;
    }
    ++submitted_;
    ids_.push_back(*id);
  }
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel_all(true);
  });
  bool over = false;
  {
    const Lock lock(mutex_);
    // Answered already: the server was stopped between a submission and the moment its id was known here.
    over = error_.has_value() || answered_;
  }
  if (over) cancel_all(false);
  const Lock lock(mutex_);
  all_submitted_ = true;
  if (done_ == submitted_) all_done();
}

// The server stops at once: what has been said is ended with a reason.
void Answer::interrupt() {
  {
    const Lock lock(mutex_);
    if (std::exchange(answered_, true)) return;
    if (streaming_) {
      for (size_t c = 0; c < ended_.size(); ++c) on_choice_end(c, EndReason::interrupted);
      send(job_.format.end(state_, false));
      exchange_->finish();
      log_line(200);
    } else {
      fail_with(status_error(503, "the server is stopping"));
    }
  }
  cancel_all(false);
}

// Proxies and clients give silent connections up. Before the admission there is no stream yet: its head tells the cached
// tokens.
void Answer::ping() {
  const Lock lock(mutex_);
  const std::chrono::duration<double> silent = Clock::now() - last_sent_;
  if (streaming_ && !answered_ && silent.count() >= context_->options.ping_seconds) send(std::string(job_.format.ping));
}

// The engine is called without our lock: its thread may be in one of our callbacks.
void Answer::cancel_all(bool client_gone) {
  std::vector<RequestId> ids;
  {
    const Lock lock(mutex_);
    cancelled_ = cancelled_ || client_gone;
    ids = ids_;
  }
  for (const RequestId id : ids) context_->engine.cancel(id);
}

RequestCallbacks Answer::callbacks(size_t request) {
  const size_t first = request * choices_each_;
  RequestCallbacks out;
  const auto self = shared_from_this();  // the engine keeps the answer alive until on_done
  out.on_admitted = [self](const Admitted& admitted) { self->on_admitted(admitted); };
  out.on_token = [self, first](const GeneratedToken& token) {
    return self->on_token(first + static_cast<size_t>(token.choice), token);
  };
  out.on_choice_end = [self, first](const ChoiceEnd& end) {
    self->on_choice_end(first + static_cast<size_t>(end.choice), end.reason);
  };
  out.on_done = [self, request](const RequestSummary& summary) { self->on_done(request, summary); };
  out.on_prompt_token = [self, request](int64_t position, float logprob, const std::vector<TokenLogprob>& top) {
    const Lock lock(self->mutex_);
    auto& list = self->state_.prompt_logprobs[request];
    if (position < 1) return;
    if (list.size() < static_cast<size_t>(position)) list.resize(static_cast<size_t>(position));
    list[static_cast<size_t>(position) - 1] = {0, logprob, top};
  };
  return out;
}

void Answer::send(const std::string& frames) {
  if (frames.empty()) return;
  if (!streaming_) {
    early_ += frames;
  } else {
    last_sent_ = Clock::now();
    exchange_->write(frames);  // when it fails, on_gone cancels
  }
}

void Answer::on_admitted(const Admitted& admitted) {
  const Lock lock(mutex_);
  const int64_t reported = std::max<int64_t>(0, admitted.prompt_tokens - job_.pending_tokens);
  Usage& usage = state_.prompt_usage;
  usage.rendered_tokens += admitted.prompt_tokens;
  usage.prompt_tokens += reported;
  usage.cached_tokens += std::min(admitted.cached_tokens, reported);
  sum_.admitted.prompt_tokens += admitted.prompt_tokens;
  sum_.admitted.cached_tokens += admitted.cached_tokens;
  sum_.admitted.matched_tokens += admitted.matched_tokens;
  sum_.admitted.copied_bytes += admitted.copied_bytes;
  sum_.admitted.fetched_bytes += admitted.fetched_bytes;
  sum_.admitted.limit = admitted.limit;  // of several prompts: the last one's
  sum_.admitted.resumed_idle = admitted.resumed_idle;
  if (++admitted_ < ended_.size() / choices_each_ || !job_.generation.stream || error_ || answered_) return;
  exchange_->begin_stream(200, "text/event-stream; charset=utf-8",
                          {{"Cache-Control", "no-cache"},
                           {"X-Msh-Usage-Prompt-Tokens", std::to_string(usage.prompt_tokens)},
                           {"X-Msh-Usage-Cached-Tokens", std::to_string(usage.cached_tokens)}});
  streaming_ = true;
  const std::string early = std::move(early_);
  send(job_.format.begin(state_) + early);
}

bool Answer::on_token(size_t choice, const GeneratedToken& token) {
  const Lock lock(mutex_);
  if (ended_[choice]) return false;
  pieces_.clear();
  const bool go_on = state_.choices[choice].push(token, pieces_);
  if (job_.generation.stream) {
    std::string frames;
    for (const Piece& piece : pieces_) frames += job_.format.piece(state_, choice, piece);
    send(frames);
  }
  return go_on;
}

void Answer::on_choice_end(size_t choice, EndReason reason) {
  const Lock lock(mutex_);
  if (ended_[choice]) return;
  ended_[choice] = true;
  pieces_.clear();
  state_.choices[choice].finish(reason, pieces_);
  abnormal_ = abnormal_ || !abnormal_finish(reason).empty();
  if (!job_.generation.stream) return;
  std::string frames;
  for (const Piece& piece : pieces_) frames += job_.format.piece(state_, choice, piece);
  send(frames + job_.format.end_choice(state_, choice));
}

void Answer::on_done(size_t request, const RequestSummary& summary) {
  const Lock lock(mutex_);
  if (summary.error && !error_) error_ = api_error(*summary.error);
  const EndReason rest = summary.error && summary.error->code == Code::deadline ? EndReason::deadline
                         : summary.error                                        ? EndReason::failed
                                                                                : EndReason::interrupted;
  if (streaming_) {
    for (size_t c = request * choices_each_; c < (request + 1) * choices_each_; ++c) on_choice_end(c, rest);
  }
  sum_.computed_tokens += summary.computed_tokens;
  sum_.generated_tokens += summary.generated_tokens;
  sum_.preemptions += summary.preemptions;
  sum_.queue_seconds = std::max(sum_.queue_seconds, summary.queue_seconds);
  ++done_;
  if (all_submitted_ && done_ == submitted_) all_done();
}

void Answer::fail_with(const ApiError& error) {
  http::Response response = error_response(error, job_.envelope);
  response.told = true;
  exchange_->respond(std::move(response));
  log_line(error.status);
}

void Answer::all_done() {
  context_->answers->remove(live_key_);
  if (std::exchange(answered_, true)) return;
  if (streaming_) {
    send(job_.format.end(state_, !abnormal_));
    exchange_->finish();
    return log_line(cancelled_ || exchange_->gone() ? 499 : 200);
  }
  if (cancelled_) return log_line(499);
  if (error_) return fail_with(*error_);
  for (size_t c = 0; c < ended_.size(); ++c) {
    const std::string& reason = state_.choices[c].finish_reason();
    if (ended_[c] && reason == "engine_overloaded") {
      return fail_with(api_error(fail(Code::deadline, "the request's deadline passed before its answer was complete")));
    }
    if (!ended_[c] || reason == "server_interrupted") return fail_with(status_error(503, "the server is stopping"));
  }
  http::Response response;
  response.headers = {{"X-Msh-Usage-Prompt-Tokens", std::to_string(state_.prompt_usage.prompt_tokens)},
                      {"X-Msh-Usage-Cached-Tokens", std::to_string(state_.prompt_usage.cached_tokens)}};
  response.body = job_.format.whole(state_);
  exchange_->respond(std::move(response));
  log_line(200);
}

void Answer::log_line(int status) {
  if (!context_->log) return;
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begun_).count();
  std::string reasons;
  for (size_t c = 0; c < ended_.size() && c < 4; ++c) {
    if (ended_[c]) reasons += (reasons.empty() ? "" : ",") + state_.choices[c].finish_reason();
  }
  const Admitted& a = sum_.admitted;
  const std::string_view limit = a.prompt_tokens == 0 ? "-" : a.resumed_idle ? "resumed" : cache::hit_limit_name(a.limit);
  int64_t warnings = 0;
  for (const ChoiceStream& choice : state_.choices) warnings += choice.warnings();
  context_->log(fmt::format(
      "{} {} {} {:.1f} ms: prompt {}, cached {}, matched {}, limit {}, copied {} B, fetched {} B, computed {}, generated {}, "
      "queued {:.1f} ms, preempted {}, repairs {}, finish {}",
      request_id_, job_.label, status, ms, a.prompt_tokens, a.cached_tokens, a.matched_tokens, limit, a.copied_bytes,
      a.fetched_bytes, sum_.computed_tokens, sum_.generated_tokens, sum_.queue_seconds * 1e3, sum_.preemptions, warnings, reasons.empty() ? "-" : reasons));
}

}  // namespace

Usage AnswerState::usage_of(size_t choice) const {
  Usage usage = prompt_usage;
  usage.completion_tokens = choices[choice].completion_tokens();
  usage.reasoning_tokens = choices[choice].reasoning_tokens();
  return usage;
}

Usage AnswerState::total() const {
  Usage usage = prompt_usage;
  for (const ChoiceStream& choice : choices) {
    usage.completion_tokens += choice.completion_tokens();
    usage.reasoning_tokens += choice.reasoning_tokens();
  }
  return usage;
}

std::string new_answer_id(int64_t created) {
  static const uint64_t kStart = random_seed();
  static std::atomic<uint64_t> next{0};
  return fmt::format("{:08x}{:08x}{:08x}", created & 0xffffffff, kStart & 0xffffffffU, next.fetch_add(1) & 0xffffffffU);
}

void start_answer(std::shared_ptr<const Context> context, std::shared_ptr<http::Exchange> exchange,
                  const http::RequestHead& head, AnswerJob job) {
  std::make_shared<Answer>(std::move(context), std::move(exchange), head, std::move(job))->start();
}

}  // namespace k3::server
