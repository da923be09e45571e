#include "k3/server/loadgen/load_run.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>

#include "k3/base/json_writer.h"
#include "k3/server/loadgen/openai_stream.h"
#include "k3/server/loadgen/sse_parser.h"

namespace k3::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostErrorBytes = 64 << 10;
constexpr int64_t kMostAnswerBytes = int64_t{64} << 20;

int64_t header_integer(const std::string& text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

Outcome outcome_of(HttpEnd end) {
  switch (end) {
    case HttpEnd::done: return Outcome::ok;
    case HttpEnd::refused: return Outcome::refused;
    case HttpEnd::timed_out: return Outcome::timed_out;
    case HttpEnd::cut: return Outcome::cut;
    case HttpEnd::broken: return Outcome::broken;
    case HttpEnd::cancelled: return Outcome::cancelled;
  }
  return Outcome::broken;
}

// Ends that a model has; others say that the server gave up.
bool is_normal_end(const std::string& reason) {
  for (const char* known : {"stop", "length", "tool_calls", "function_call", "content_filter", "eos", "abort_by_stop"}) {
    if (reason == known) return true;
  }
  return false;
}

// One answer as it arrives.
struct Answer {
  RequestResult result;
  SseParser sse;
  HttpHead head;
  std::string body;  // of errors and of answers that are no stream
  bool done_frame = false;
  int64_t header_cached = -1, header_prompt = -1;
  std::vector<float> gaps_s;

  bool streaming() const { return head.status == 200 && head.content_type.starts_with("text/event-stream"); }
};

class Run {
 public:
  Run(const std::vector<PlannedRequest>& requests, const LoadOptions& options, const std::atomic<bool>& stop,
      const std::function<void(int64_t)>& progress, std::unique_ptr<HttpClient> client)
      : requests_(requests), options_(options), stop_(stop), progress_(progress), client_(std::move(client)) {
    out_.planned = static_cast<int64_t>(requests.size());
    make_chains();
  }

  LoadResult run() {
    start_ = Clock::now();
    plan();
    tick();
    client_->run();
    out_.duration_s = 0;
    for (const RequestResult& result : out_.requests) out_.duration_s = std::max(out_.duration_s, result.end_s);
    out_.connections = client_->connections_made();
    out_.interrupted = stopped_;
    return std::move(out_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Requests that follow each other: those of a session, or one that stands alone, or (sequential) all.
  void make_chains() {
    if (options_.pacing == Pacing::sequential) {
      chains_.emplace_back();
      for (size_t i = 0; i < requests_.size(); ++i) chains_[0].push_back(i);
      return;
    }
    std::map<int64_t, size_t> chain_of;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const int64_t session = requests_[i].session;
      if (session < 0) {
        chains_.push_back({i});
        continue;
      }
      const auto [at, added] = chain_of.try_emplace(session, chains_.size());
      if (added) chains_.emplace_back();
      chains_[at->second].push_back(i);
    }
  }

  void plan() {
    switch (options_.pacing) {
      case Pacing::trace:
        for (size_t c = 0; c < chains_.size(); ++c) start_at(requests_[chains_[c][0]].at_s / options_.speed, c, 0);
        break;
      case Pacing::poisson: {
        const Rng rng(options_.seed, 2);
        double at = 0;
        for (size_t c = 0; c < chains_.size(); ++c) {
          start_at(at, c, 0);
          at += -std::log1p(-rng.uniform(c)) / options_.rate_per_s;
        }
        break;
      }
      case Pacing::sequential:
      case Pacing::users:
        for (int64_t user = 0; user < (options_.pacing == Pacing::users ? options_.users : 1); ++user) next_chain(0);
        break;
    }
  }

  void next_chain(double wait_s) {
    if (next_chain_ < chains_.size()) start_at(now() + wait_s, next_chain_++, 0);
  }

  void start_at(double at_s, size_t chain, size_t place) {
    if (options_.duration_s > 0 && at_s > options_.duration_s) return;
    ++waiting_;
    client_->after(at_s - now(), [this, at_s, chain, place] {
      --waiting_;
      begin(at_s, chain, place);
    });
  }

  void begin(double planned_s, size_t chain, size_t place) {
    const size_t index = chains_[chain][place];
    const PlannedRequest& request = requests_[index];
    const auto answer = std::make_shared<Answer>();
    RequestResult& result = answer->result;
    result.index = static_cast<int64_t>(index);
    result.session = request.session;
    result.turn = request.turn;
    result.input_tokens = request.input_tokens;
    result.asked_tokens = request.output_tokens;
    result.planned_s = planned_s;
    ++running_;
    // The body is made before the clock starts: a long prompt takes the client some milliseconds.
    send(answer, chain, place, request_body(request, options_));
  }

  void send(const std::shared_ptr<Answer>& answer, size_t chain, size_t place, std::string body) {
    HttpRequest http;
    http.method = "POST";
    http.target = options_.url.target(options_.chat ? "/chat/completions" : "/completions");
    http.body = std::move(body);
    http.headers = {{"Accept", "text/event-stream"}};
    if (!options_.api_key.empty()) http.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
    if (answer->result.retries == 0) answer->result.start_s = now();
    HttpHandlers handlers;
    handlers.on_head = [this, answer](const HttpHead& head) {
      answer->head = head;
      answer->result.status = head.status;
      answer->header_cached = header_integer(head.cached_tokens);
      answer->header_prompt = header_integer(head.prompt_tokens);
    };
    handlers.on_body = [this, answer](std::string_view bytes) { read(*answer, bytes); };
    handlers.on_end = [this, answer, chain, place](HttpEnd end, const std::string& message) {
      finish(answer, chain, place, end, message);
    };
    client_->send(std::move(http), std::move(handlers));
  }

  void read(Answer& answer, std::string_view bytes) {
    if (!answer.streaming()) {
      const int64_t most = answer.head.status == 200 ? kMostAnswerBytes : kMostErrorBytes;
      if (static_cast<int64_t>(answer.body.size() + bytes.size()) <= most) answer.body += bytes;
      return;
    }
    const Status status = answer.sse.push(bytes, [&](std::string_view data) { read_event(answer, data); });
    if (!status.ok()) complain(answer, status.error().message);
  }

  void complain(Answer& answer, const std::string& message) {
    if (answer.result.error.empty()) answer.result.error = message;
  }

  void read_event(Answer& answer, std::string_view data) {
    const auto part = parse_answer_part(data);
    if (!part.ok()) return complain(answer, "a frame that is no JSON object: " + part.error().message);
    if (!part->error.empty()) complain(answer, part->error);
    answer.done_frame = answer.done_frame || part->done;
    take(answer, *part);
    RequestResult& result = answer.result;
    const bool first_at_end = result.first_token_s < 0 && !part->finish_reason.empty();  // an answer without any text
    if (!part->text && !part->progress && !first_at_end) return;
    const double at = now();
    if (result.first_token_s < 0) {
      result.first_token_s = at;
    } else {
      answer.gaps_s.push_back(static_cast<float>(at - result.last_token_s));
    }
    result.last_token_s = at;
    ++result.frames;
  }

  void take(Answer& answer, const AnswerPart& part) {
    RequestResult& result = answer.result;
    if (!part.finish_reason.empty()) result.finish_reason = part.finish_reason;
    if (part.prompt_tokens >= 0) result.prompt_tokens = part.prompt_tokens;
    if (part.cached_tokens >= 0) result.cached_tokens = part.cached_tokens;
    if (part.completion_tokens >= 0) result.output_tokens = part.completion_tokens;
  }

  void finish(const std::shared_ptr<Answer>& answer, size_t chain, size_t place, HttpEnd end, const std::string& message) {
    RequestResult& result = answer->result;
    if (end == HttpEnd::done && result.status == 429 && options_.retry_429 && result.retries < kMostRetries && !stopped_) {
      const double wait = std::clamp(static_cast<double>(header_integer(answer->head.retry_after)), 1.0, 600.0);
      const auto again = std::make_shared<Answer>();
      again->result = result;
      again->result.status = 0;
      ++again->result.retries;
      retrying_.push_back(again);
      client_->after(wait, [this, again, chain, place] {
        std::erase(retrying_, again);
        send(again, chain, place, request_body(requests_[chains_[chain][place]], options_));
      });
      return;
    }
    result.end_s = now();
    result.outcome = outcome_of(end);
    if (end == HttpEnd::done) {
      judge(*answer);
    } else if (result.error.empty()) {
      result.error = message;
    }
    keep(*answer);
    if (!stopped_) go_on(chain, place);
  }

  // A complete HTTP exchange: was it a good answer?
  void judge(Answer& answer) {
    RequestResult& result = answer.result;
    if (result.status != 200) {
      result.outcome = Outcome::http_error;
      result.error = error_message(answer.body);
      return;
    }
    if (!answer.streaming()) {
      const auto part = parse_answer_part(answer.body);
      if (part.ok()) take(answer, *part);
      if (!part.ok() || !part->error.empty()) complain(answer, part.ok() ? part->error : "an answer that is no JSON object");
      result.first_token_s = result.last_token_s = result.end_s;
      result.frames = 1;
    } else if (!answer.done_frame && result.finish_reason.empty()) {
      result.outcome = Outcome::cut;
      return complain(answer, "the stream ended without a finish_reason");
    }
    if (!result.finish_reason.empty() && !is_normal_end(result.finish_reason)) {
      complain(answer, "finish_reason " + result.finish_reason);
    }
    if (result.error.empty() && result.first_token_s < 0) complain(answer, "a stream without any token");
    if (!result.error.empty()) result.outcome = Outcome::bad_answer;
  }

  void keep(Answer& answer) {
    RequestResult& result = answer.result;
    if (result.prompt_tokens < 0) result.prompt_tokens = answer.header_prompt;
    if (result.cached_tokens < 0) result.cached_tokens = answer.header_cached;
    if (result.output_tokens < 0 && result.ok()) result.output_tokens = result.frames;
    if (result.ok()) out_.gaps_s.insert(out_.gaps_s.end(), answer.gaps_s.begin(), answer.gaps_s.end());
    out_.requests.push_back(std::move(result));
    --running_;
  }

  void go_on(size_t chain, size_t place) {
    if (place + 1 < chains_[chain].size()) {
      const PlannedRequest& next = requests_[chains_[chain][place + 1]];
      double at = now();
      if (options_.pacing == Pacing::users && next.think_s == 0) at += options_.think_s / options_.speed;
      if (options_.pacing != Pacing::sequential) at += next.think_s / options_.speed;
      if (options_.pacing == Pacing::trace && next.not_before_at) at = std::max(at, next.at_s / options_.speed);
      start_at(at, chain, place + 1);
    } else if (options_.pacing == Pacing::users) {
      next_chain(options_.think_s / options_.speed);
    }
  }

  void tick() {
    if (progress_) progress_(static_cast<int64_t>(out_.requests.size()));
    if (stop_.load()) {
      stopped_ = true;
      client_->cancel_all();
      for (const auto& answer : retrying_) {
        answer->result.end_s = now();
        answer->result.error = "cancelled";
        keep(*answer);
      }
      retrying_.clear();
      return;
    }
    if (running_ > 0 || waiting_ > 0) client_->after(0.05, [this] { tick(); });
  }

  const std::vector<PlannedRequest>& requests_;
  const LoadOptions& options_;
  const std::atomic<bool>& stop_;
  const std::function<void(int64_t)>& progress_;
  std::unique_ptr<HttpClient> client_;
  Clock::time_point start_;
  std::vector<std::vector<size_t>> chains_;
  size_t next_chain_ = 0;
  int64_t running_ = 0, waiting_ = 0;
  std::vector<std::shared_ptr<Answer>> retrying_;
  bool stopped_ = false;
  LoadResult out_;
};

}  // namespace

std::string request_body(const PlannedRequest& request, const LoadOptions& options) {
  std::string body = "{\"model\":";
  append_json_string(body, options.model);
  if (options.chat) {
    body += ",\"messages\":[{\"role\":\"user\",\"content\":";
    append_json_string(body, prompt_words(request.prompt));
    body += "}]";
  } else {
    body += ",\"prompt\":";
    append_token_ids(body, request.prompt, options.vocab);
  }
  body += fmt::format(",\"max_tokens\":{},\"temperature\":{},\"stream\":true,\"stream_options\":{{\"include_usage\":true}}",
                      request.output_tokens, options.temperature);
  if (options.ignore_eos) body += ",\"ignore_eos\":true";
  if (!options.extra_body.empty()) body += "," + options.extra_body;
  return body + "}";
}

Result<LoadResult> run_load(const std::vector<PlannedRequest>& requests, const LoadOptions& options,
                            const std::atomic<bool>& stop, const std::function<void(int64_t done)>& progress) {
  K3_TRY_ASSIGN(auto client, HttpClient::create(options.url, options.timeouts));
  Run run(requests, options, stop, progress, std::move(client));
  return run.run();
}

}  // namespace k3::server
