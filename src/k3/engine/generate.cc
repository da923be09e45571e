#include "k3/engine/generate.h"

#include <algorithm>
#include <chrono>

namespace k3 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

std::string_view stop_reason_text(StopReason reason) {
  switch (reason) {
    case StopReason::stop_token: return "end of message";
    case StopReason::stop_string: return "stop string";
    case StopReason::length: return "token limit";
    case StopReason::context: return "context full";
    case StopReason::cancelled: return "stopped";
  }
  return "?";
}

Result<GenerateResult> generate(Runner& runner, int32_t sequence, std::span<const int32_t> history,
                                std::span<const int32_t> prompt, const GenerateOptions& options, const TokenSink& sink) {
  const int64_t vocab = runner.model().config().vocab_size;
  K3_TRY(options.sampling.validate(vocab));
  GenerateResult result;
  const auto stopped = [&] { return options.stop != nullptr && options.stop->load(std::memory_order_relaxed); };
  std::vector<int32_t> seen(history.begin(), history.end());
  seen.insert(seen.end(), prompt.begin(), prompt.end());

  ops::Sampler sampler(options.sampling, vocab);
  // On a GPU the next token is chosen where the logits are, if that needs nothing but the filters.
  const auto choice = [&] { return runner.can_choose() ? sampler.plain_row(result.ids.size()) : RowChoice(); };
  const auto next = [&](std::span<const float> logits) {
    return runner.chosen().empty() ? sampler.sample(logits, seen, result.ids) : ops::chosen_id(runner.chosen().back());
  };

  const Clock::time_point prefill_start = Clock::now();
  auto fed = runner.feed(sequence, prompt, [&](int64_t done) {
    result.prompt_tokens_fed = done;
    if (options.on_prefill) options.on_prefill(done, static_cast<int64_t>(prompt.size()));
    return !stopped();
  }, choice());
  result.prefill_seconds = seconds_since(prefill_start);
  if (!fed.ok() && fed.error().code != Code::cancelled) return std::move(fed).take_error();
  if (!fed.ok()) {
    result.reason = StopReason::cancelled;
    return result;
  }

  std::span<const float> logits = *fed;
  const Clock::time_point decode_start = Clock::now();
  while (true) {
    // The token just sampled must still fit when it is fed, so the last place is kept for it.
    if (stopped()) {
      result.reason = StopReason::cancelled;
      break;
    }
    K3_TRY_ASSIGN(const int32_t id, next(logits));
    result.ids.push_back(id);
    result.last_id_unfed = true;
    const bool end = std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
    const bool go_on = sink(id);
    if (end && !options.ignore_eos) {
      result.reason = StopReason::stop_token;
      break;
    }
    if (!go_on) {
      result.reason = StopReason::stop_string;
      break;
    }
    if (options.max_tokens > 0 && static_cast<int64_t>(result.ids.size()) >= options.max_tokens) {
      result.reason = StopReason::length;
      break;
    }
    if (runner.room(sequence) < 1) {
      result.reason = StopReason::context;
      break;
    }
    K3_TRY_ASSIGN(logits, runner.feed(sequence, std::span(&id, 1), {}, choice()));
    result.last_id_unfed = false;
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

std::string StopMatcher::push(std::string_view text) {
  // Byte by byte: the stop string that is complete first wins, so that the result does not depend on the pieces.
  for (const char c : text) {
    if (matched()) break;
    held_.push_back(c);
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop) && stop.size() > matched_stop_.size()) matched_stop_ = stop;
    }
    if (matched()) {
      held_.resize(held_.size() - matched_stop_.size());
      return std::exchange(held_, {});
    }
  }
  if (matched()) return {};
  // Hold back the longest suffix that begins some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return matched() ? std::string() : std::exchange(held_, {}); }

}  // namespace k3
