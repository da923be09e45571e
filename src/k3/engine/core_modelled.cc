// Requests of a simulation: no token ids and no logits, lengths and keys of blocks alone.
#include <algorithm>

#include "k3/engine/core.h"
#include "k3/engine/core_state.h"

namespace k3 {

Status check_modelled(const CoreOptions& options, const Request& request) {
  const ModelledTokens& m = *request.modelled;
  const int64_t tokens = std::min(m.prompt_tokens + request.max_tokens, options.ctx_tokens);
  const auto keys = static_cast<int64_t>(m.keys.size());
  if (request.choices == 1 && request.max_tokens >= 1 && m.arrived_tokens >= 0 && m.arrived_tokens < m.prompt_tokens &&
      keys >= tokens / options.block_tokens && !request.grammar && !request.prompt_logprobs) {
    return {};
  }
  return fail(Code::invalid_argument,
              "a modelled request of {} tokens, {} of them there, {} to generate in {} choices, with {} keys",
              m.prompt_tokens, m.arrived_tokens, request.max_tokens, request.choices, keys);
}

bool EngineCore::begins_modelled(const Kept& kept, const Line& line) {
  const ModelledTokens& m = *line.job->request.modelled;
  return m.session >= 0 && kept.session == m.session && kept.size() <= m.continues_tokens;
}

// What another engine has computed and sent lies in the pages now; after a preemption it is gone, and computed here. An idle
// sequence that goes on has pages for its own tokens only; where there are no more, what was sent is computed here as well.
void EngineCore::receive(Line& line) {
  const int64_t arrived = line.job->request.modelled->arrived_tokens;
  if (line.resumed || arrived <= line.cached) return;
  while (!cache_.grow(*line.sequence, arrived).ok()) {
    if (!release_idle()) return;
  }
  const auto blocks = static_cast<size_t>(arrived / options_.block_tokens);
  cache_.plan_checkpoints(*line.sequence, arrived);
  cache_.commit(*line.sequence, line.block_keys().first(blocks), {}, arrived);
  line.cached = arrived;
  if (line.remaining() == 1) line.state = Line::State::decode;
}

int64_t EngineCore::decode_tokens(const Line& line, int64_t budget) {
  const Request& r = line.job->request;
  const int64_t room = std::min({budget, r.max_tokens - line.generated, options_.ctx_tokens - line.size()});
  return std::clamp<int64_t>(executor_.decode_tokens(line.job->id, line.generated, line.size()), 1, std::max<int64_t>(1, room));
}

// All but the last of the tokens of a decode step are in the cache; there are no logits to choose that one by.
void EngineCore::land_modelled(Line& line, int64_t reached) {
  if (line.state == Line::State::decode) count_generated(line, line.planned - 1);
  line.cached = reached;
  line.planned = 0;
  if (line.cached < line.size()) return;
  line.state = Line::State::decode;
  emit(line, 0, {});
}

// How many steps that follow the one of these lines can differ from it in nothing but lengths: everyone decodes one token,
// nobody reaches the end of a block (so that nothing is registered, exported or allocated) before the last of them, nobody
// ends before it, and who waits has been refused by the cache as it is.
int64_t EngineCore::repeats(const std::vector<Line*>& lines) const {
  const bool full = static_cast<int64_t>(running_.size()) >= options_.max_running;
  if (lines.size() != running_.size() || options_.deadline_seconds > 0 || (!waiting_.empty() && !full && !quiet_)) return 0;
  int64_t most = options_.block_tokens;
  for (const Line* line : lines) {
    const Request& r = line->job->request;
    if (!line->modelled() || line->state != Line::State::decode || line->planned != 1 || r.deadline_seconds > 0) return 0;
    const int64_t to_block = options_.block_tokens - 1 - line->cached % options_.block_tokens;
    most = std::min({most, to_block, r.max_tokens - line->generated, options_.ctx_tokens - line->size()});
  }
  if (std::any_of(waiting_.begin(), waiting_.end(),
                  [](const Line* line) { return line->job->request.deadline_seconds > 0; }))
    return 0;
  return std::max<int64_t>(0, most - 1);
}

void EngineCore::repeat_step(const std::vector<Line*>& lines, std::span<const StepItem> items) {
  if (!lines.front()->modelled()) return;
  const int64_t most = repeats(lines), more = most > 0 ? executor_.repeat(items, most) : 0;
  counters_.steps += more;
  for (Line* line : lines) {
    line->cached += more;
    if (more > 0) count_generated(*line, more);
  }
  // Whether the same step once more would find those that wait refused again.
  quiet_ = std::all_of(lines.begin(), lines.end(), [&](const Line* line) {
    return line->state == Line::State::decode && line->planned == 1 && line->cached % options_.block_tokens != 0 &&
           (line->cached + 1) % options_.block_tokens != 0 && line->generated + 1 < line->job->request.max_tokens &&
           line->size() + 1 < options_.ctx_tokens;
  });
}

}  // namespace k3
