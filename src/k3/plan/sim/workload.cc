#include "k3/plan/sim/workload.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace k3::plan {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;   // of one request
constexpr uint64_t kAnswers = uint64_t{1} << 63;    // ids of answers that nobody meets again

// Finaliser of MurmurHash3: every bit of the input moves every bit of the output.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53;
  return value ^ (value >> 33);
}

// The content so far, as a chain of pieces.
struct Chain {
  uint64_t low = 0x6b33, high = 0x73696d;
  int64_t tokens = 0;

  cache::BlockKey key(uint64_t id, int64_t offset) const {
    const uint64_t place = mix(id * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(offset));
    return {mix(low + place), mix(high ^ place)};
  }
  void append(const PromptPiece& piece) {
    const cache::BlockKey end = key(piece.id, piece.tokens);
    low = end.low, high = end.high;
    tokens += piece.tokens;
  }
};

// Keys of the blocks that end behind `keys`' last one and at most at `tokens`.
Chain append_keys(std::span<const PromptPiece> pieces, int64_t block_tokens, int64_t tokens, std::vector<cache::BlockKey>* keys) {
  Chain chain;
  for (const PromptPiece& piece : pieces) {
    const int64_t end = std::min(chain.tokens + piece.tokens, tokens);
    for (;;) {
      const int64_t at = (static_cast<int64_t>(keys->size()) + 1) * block_tokens;
      if (at > end) break;
      keys->push_back(chain.key(piece.id, at - chain.tokens));
    }
    chain.append(piece);
  }
  return chain;
}

int64_t common_tokens(std::span<const PromptPiece> a, std::span<const PromptPiece> b) {
  int64_t tokens = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i].id == b[i].id; ++i) {
    tokens += std::min(a[i].tokens, b[i].tokens);
    if (a[i].tokens != b[i].tokens) break;
  }
  return tokens;
}

// The next turn begins with this turn's prompt and answer. The last piece of a prompt is the beginning of a block that has another
// id once it is complete.
bool continues(const Workload& workload, const SimRequest& request) {
  if (!workload.answers_continue || request.next < 0) return false;
  const SimRequest& next = workload.requests[static_cast<size_t>(request.next)];
  if (next.input_tokens < request.input_tokens + request.output_tokens || next.pieces < request.pieces) return false;
  const auto a = workload.prompt(request), b = workload.prompt(next);
  return std::equal(a.begin(), a.end() - 1, b.begin(), [](const auto& x, const auto& y) { return x.id == y.id && x.tokens == y.tokens; });
}

}  // namespace

Result<Workload> make_workload(const std::vector<PlannedRequest>& planned, bool answers_continue) {
  if (planned.empty()) return fail(Code::invalid_argument, "no requests");
  if (planned.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return fail(Code::invalid_argument, "{} requests are too many", planned.size());
  }
  Workload out;
  out.answers_continue = answers_continue;
  out.requests.reserve(planned.size());
  std::unordered_map<int64_t, int32_t> last;  // request of a session
  for (const PlannedRequest& p : planned) {
    const auto index = static_cast<int32_t>(out.requests.size());
    if (p.input_tokens > kMostTokens || p.output_tokens > kMostTokens) {
      return fail(Code::invalid_argument, "request {}: {} input and {} output tokens; at most {}", index, p.input_tokens, p.output_tokens,
                  kMostTokens);
    }
    SimRequest& r = out.requests.emplace_back();
    r.at_seconds = p.at_s;
    r.think_seconds = p.think_s;
    r.session = p.session;
    r.turn = static_cast<int32_t>(std::min<int64_t>(p.turn, std::numeric_limits<int32_t>::max()));
    r.not_before_at = p.not_before_at;
    r.input_tokens = static_cast<int32_t>(std::max<int64_t>(1, p.input_tokens));
    r.output_tokens = static_cast<int32_t>(std::max<int64_t>(1, p.output_tokens));
    r.first_piece = out.pieces.size();
    r.pieces = static_cast<uint32_t>(p.prompt.size());
    out.pieces.insert(out.pieces.end(), p.prompt.begin(), p.prompt.end());
    if (p.session < 0) continue;
    const auto [at, first] = last.try_emplace(p.session, index);
    if (first) continue;
    r.previous = at->second;
    out.requests[static_cast<size_t>(at->second)].next = index;
    at->second = index;
  }
  out.pieces.shrink_to_fit();
  for (size_t i = 0; i < out.requests.size(); ++i) {
    SimRequest& r = out.requests[i];
    const bool goes_on = r.previous >= 0 && continues(out, out.requests[static_cast<size_t>(r.previous)]);
    r.chain = goes_on ? out.requests[static_cast<size_t>(r.previous)].chain : static_cast<int32_t>(i);
  }
  return out;
}

std::vector<cache::BlockKey> block_keys(const Workload& workload, int32_t index, int64_t block_tokens, int64_t tokens) {
  const SimRequest& request = workload.requests[static_cast<size_t>(index)];
  std::vector<cache::BlockKey> keys;
  keys.reserve(static_cast<size_t>(tokens / block_tokens));
  Chain chain = append_keys(workload.prompt(request), block_tokens, std::min<int64_t>(tokens, request.input_tokens), &keys);
  if (continues(workload, request)) {
    append_keys(workload.prompt(workload.requests[static_cast<size_t>(request.next)]), block_tokens, tokens, &keys);
  }
  // The answer of the last turn, or of one that nobody repeats.
  for (int64_t at; (at = (static_cast<int64_t>(keys.size()) + 1) * block_tokens) <= tokens;) {
    keys.push_back(chain.key(kAnswers + static_cast<uint64_t>(index), at - chain.tokens));
  }
  return keys;
}

int64_t continued_tokens(const Workload& workload, int32_t index) {
  const SimRequest& request = workload.requests[static_cast<size_t>(index)];
  if (request.previous < 0) return 0;
  const SimRequest& before = workload.requests[static_cast<size_t>(request.previous)];
  if (continues(workload, before)) return before.input_tokens + before.output_tokens;
  return common_tokens(workload.prompt(before), workload.prompt(request));
}

}  // namespace k3::plan
