#include "k3/format/trace/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace k3 {
namespace {

// Streams of tokens: block ids of a trace are their own, what is made up here lies far above them.
constexpr uint64_t kOwnContent = uint64_t{1} << 62;
constexpr uint64_t kWarmup = uint64_t{3} << 61;
constexpr double kMostLength = 1e9;
constexpr double kMostScale = 1e6;  // as far as products stay whole numbers of 64 bits

int64_t scaled(int64_t tokens, double scale) {
  return static_cast<int64_t>(std::floor(static_cast<double>(tokens) * scale + 1e-9));
}

// Block b covers the tokens from scaled(b * block_tokens) on: as its place in the prompt belongs to its id, so does its
// scaled length.
PromptPieces prompt_of(const TraceRecord& record, int64_t input_tokens, double scale, uint64_t index) {
  if (record.block_ids.empty()) return {{kOwnContent + index, input_tokens}};
  PromptPieces prompt;
  int64_t done = 0;
  for (size_t b = 0; b < record.block_ids.size() && done < input_tokens; ++b) {
    const int64_t end = std::min(input_tokens, scaled((static_cast<int64_t>(b) + 1) * record.block_tokens, scale));
    if (end > done) prompt.push_back({static_cast<uint64_t>(record.block_ids[b]), end - done});
    done = std::max(done, end);
  }
  // A length below one token is lifted to one, past the end of its block.
  if (done < input_tokens) prompt.push_back({static_cast<uint64_t>(record.block_ids.back()), input_tokens - done});
  return prompt;
}

Result<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0) || value > kMostLength) {
    return fail(Code::invalid_argument, "'{}' is no number from 0 to 1e9", text);
  }
  return value;
}

}  // namespace

int64_t prompt_tokens(const PromptPieces& prompt) {
  int64_t sum = 0;
  for (const PromptPiece& piece : prompt) sum += piece.tokens;
  return sum;
}

Result<SessionRange> parse_sessions(std::string_view text) {
  const size_t dash = text.find('-');
  SessionRange range;
  const auto read = [](std::string_view part, int64_t& out) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    return error == std::errc() && end == part.data() + part.size() && out >= 0;
  };
  const bool good =
      read(text.substr(0, dash), range.first) &&
      (dash == std::string_view::npos ? (range.last = range.first, true) : read(text.substr(dash + 1), range.last));
  if (!good || range.last < range.first) return fail(Code::invalid_argument, "'{}' is no range of sessions like 0-11", text);
  return range;
}

Result<std::vector<PlannedRequest>> workload_from_trace(TraceReader& reader, const TraceWorkload& options) {
  if (!(options.scale > 0 && options.scale <= kMostScale)) {
    return fail(Code::invalid_argument, "lengths times {}: a factor above 0, {} at most, is wanted", options.scale, kMostScale);
  }
  std::vector<PlannedRequest> out;
  double first_s = 0;
  uint64_t index = 0;
  for (; options.limit == 0 || static_cast<int64_t>(out.size()) < options.limit; ++index) {
    K3_TRY_ASSIGN(const std::optional<TraceRecord> record, reader.next());
    if (!record) break;
    if (options.sessions && (record->session < options.sessions->first || record->session > options.sessions->last))
      continue;
    PlannedRequest request;
    request.input_tokens = std::max<int64_t>(1, scaled(record->input_tokens, options.scale));
    if (options.max_input > 0 && request.input_tokens > options.max_input) continue;
    request.output_tokens = std::max<int64_t>(1, scaled(record->output_tokens, options.scale));
    if (options.max_output > 0) request.output_tokens = std::min(request.output_tokens, options.max_output);
    request.prompt = prompt_of(*record, request.input_tokens, options.scale, index);
    request.session = record->session;
    request.turn = record->turn;
    request.think_s = static_cast<double>(record->think_ms) / 1e3;
    request.not_before_at = record->turn_end < 0;
    if (out.empty()) first_s = record->timestamp_s;
    request.at_s = record->timestamp_s - first_s;
    out.push_back(std::move(request));
  }
  if (index == 0) return fail(Code::invalid_argument, "the trace has no records, only a header");
  if (out.empty()) return fail(Code::invalid_argument, "no record of the trace is left to send (sessions, lengths)");
  return out;
}

Result<LengthDistribution> LengthDistribution::parse(std::string_view text) {
  LengthDistribution out;
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t colon = std::min(text.find(':', at), text.size());
    parts.push_back(text.substr(at, colon - at));
    at = colon + 1;
  }
  const bool uniform = parts[0] == "uniform", lognormal = parts[0] == "lognormal";
  if (parts.size() != (uniform || lognormal ? 3 : 1)) {
    return fail(Code::invalid_argument, "'{}' is none of N, uniform:LEAST:MOST, lognormal:MEDIAN:SIGMA", text);
  }
  K3_TRY_ASSIGN(out.a_, number(parts[uniform || lognormal ? 1 : 0]));
  if (uniform || lognormal) {
    out.kind_ = uniform ? Kind::uniform : Kind::lognormal;
    K3_TRY_ASSIGN(out.b_, number(parts[2]));
  }
  if (out.a_ < 1) return fail(Code::invalid_argument, "'{}': lengths begin at 1 token", text);
  if (uniform && out.b_ < out.a_) return fail(Code::invalid_argument, "'{}': the most is below the least", text);
  if (lognormal && out.b_ > 10) return fail(Code::invalid_argument, "'{}': a sigma above 10 is no length of a text", text);
  return out;
}

int64_t LengthDistribution::draw(const Rng& rng, uint64_t counter) const {
  switch (kind_) {
    case Kind::fixed: return static_cast<int64_t>(a_);
    case Kind::uniform:
      return static_cast<int64_t>(std::floor(a_) + std::floor(rng.uniform(counter) * (std::floor(b_) - std::floor(a_) + 1)));
    case Kind::lognormal: {
      const double value = std::round(a_ * std::exp(b_ * rng.normal(counter)));
      return static_cast<int64_t>(std::clamp(value, 1.0, kMostLength));
    }
  }
  return 1;
}

std::vector<PlannedRequest> synthetic_workload(const SyntheticWorkload& options) {
  const Rng inputs(options.seed, 0), outputs(options.seed, 1);
  const uint64_t content = kOwnContent + (options.seed << 40 & (kOwnContent - 1));
  std::vector<PlannedRequest> out;
  PromptPieces history;
  for (int64_t i = 0; i < options.requests; ++i) {
    const auto index = static_cast<uint64_t>(i);
    PlannedRequest request;
    request.turn = i % options.turns;
    if (options.turns > 1) request.session = i / options.turns;
    request.think_s = request.turn > 0 ? options.think_s : 0;
    if (request.turn == 0) {
      history.clear();
      if (options.shared_prefix_tokens > 0) history.push_back({content, options.shared_prefix_tokens});
    }
    request.output_tokens = options.output.draw(outputs, index);
    history.push_back({content + 2 * index + 1, options.input.draw(inputs, index)});
    request.prompt = history;
    request.input_tokens = prompt_tokens(history);
    history.push_back({content + 2 * index + 2, request.output_tokens});  // in the place of the answer
    out.push_back(std::move(request));
  }
  return out;
}

std::vector<PlannedRequest> warmup_workload(int64_t requests, int64_t input_tokens) {
  std::vector<PlannedRequest> out;
  for (int64_t i = 0; i < requests; ++i) {
    PlannedRequest request;
    request.input_tokens = input_tokens;
    request.output_tokens = 4;
    request.prompt = {{kWarmup + static_cast<uint64_t>(i), input_tokens}};
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace k3
