// Running sequences: admission, growth, release, quarantine, fork.
#include <algorithm>

#include "k3/cache/state.h"

namespace k3::cache {

Sequence& HybridCache::Impl::live(SequenceId id) {
  const auto number = static_cast<size_t>(id);
  K3_CHECK(number < sequences.size() && sequences[number].live, "sequence {} is not running", number);
  return sequences[number];
}

SequenceId HybridCache::Impl::new_sequence() {
  if (free_sequences.empty()) {
    free_sequences.push_back(static_cast<int32_t>(sequences.size()));
    sequences.emplace_back();
  }
  const int32_t number = free_sequences.back();
  free_sequences.pop_back();
  Sequence& sequence = sequences[static_cast<size_t>(number)];
  sequence.live = true;
  return SequenceId{number};
}

// Vectors keep their capacity for the next user of the number.
void HybridCache::Impl::close(SequenceId id) {
  Sequence& sequence = live(id);
  sequence.table.clear();
  sequence.states.clear();
  sequence.kept.clear();
  sequence.plan.clear();
  sequence.live = sequence.planned = false;
  sequence.registers = true;
  sequence.length = sequence.prompt_tokens = sequence.registered_blocks = sequence.shared_pages = sequence.last_checkpoint = 0;
  sequence.rolling = -1;
  free_sequences.push_back(static_cast<int32_t>(id));
}

Status HybridCache::Impl::check_fits(int64_t tokens, const char* what) const {
  const int64_t usable = pool.count() - pool.quarantined_count();
  const int64_t needed = shape.pages_for(tokens) + groups;
  if (needed <= usable) return {};
  return fail(Code::invalid_argument, "{} of {} tokens needs {} pages of {} tokens and {} for states; the pool has {} of {} bytes",
              what, tokens, shape.pages_for(tokens), page_tokens, groups, usable, shape.page_bytes);
}

int64_t HybridCache::Impl::copy_latents(int32_t from, int32_t to, int64_t rows) {
  const int64_t bytes = rows * shape.latent_row_bytes();
  for (int64_t layer = 0; layer < shape.counts.mla_layers; ++layer) pool.memory().copy(from, to, layer * shape.latent_layer_bytes(), bytes);
  return bytes * shape.counts.mla_layers;
}

int64_t HybridCache::Impl::copy_states(std::span<const int32_t> from, std::span<const int32_t> to) {
  int64_t bytes = 0;
  for (size_t g = 0; g < from.size(); ++g) {
    const int64_t size = group_bytes(static_cast<int64_t>(g));
    pool.memory().copy(from[g], to[g], 0, size);
    bytes += size;
  }
  return bytes;
}

void HybridCache::Impl::plan_prompt(const CachePrompt& prompt, const Match& match, Sequence* sequence) const {
  sequence->prompt_tokens = prompt.token_count;
  if (groups == 0 || !prompt.use_cache) return;
  std::vector<int64_t>& kept = sequence->kept;
  const auto keep = [&](int64_t tokens) {
    const int64_t position = tokens / block_tokens * block_tokens;
    if (position > match.boundary && tokens <= prompt.token_count) kept.push_back(position);
  };
  const CheckpointPolicy& policy = options.policy;
  if (policy.prompt_end) keep(prompt.token_count);
  if (policy.turn_ends) {
    for (const int64_t end : prompt.turn_ends) keep(end);
  }
  if (policy.second_sighting) keep(match.matched);
  std::ranges::sort(kept);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
}

// With everything pinned that the hit needs, then the rest allocated; false, and all as before, when there is no room.
bool HybridCache::Impl::try_admit(const CachePrompt& prompt, int64_t reserve_tokens, const Match& match, Admission* admission) {
  const int64_t shared = match.boundary / page_tokens, rows = match.boundary % page_tokens;
  const int64_t slots = shape.pages_for(prompt.token_count + reserve_tokens);
  chain_of(match.boundary > 0 ? match.page : -1, &chain);
  for (const int32_t page : chain) reference(page);
  const bool resumed = match.checkpoint >= 0 && match.boundary > 0;
  if (resumed) pin_checkpoint(match.checkpoint, 1);
  const bool fits = slots - shared + groups <= available_pages();
  if (fits) {
    const SequenceId id = new_sequence();
    Sequence& sequence = live(id);
    sequence.table.assign(chain.begin(), chain.begin() + shared);
    for (int64_t g = 0; g < groups; ++g) sequence.states.push_back(take(PageUse::state));
    for (int64_t slot = shared; slot < slots; ++slot) sequence.table.push_back(take(PageUse::mla));
    sequence.registers = prompt.use_cache;
    sequence.length = match.boundary;
    sequence.shared_pages = shared;
    sequence.registered_blocks = shared * page_blocks;
    sequence.last_checkpoint = match.boundary;
    plan_prompt(prompt, match, &sequence);
    if (rows > 0) admission->copied_bytes += copy_latents(chain.back(), sequence.table[static_cast<size_t>(shared)], rows);
    if (resumed) {
      admission->copied_bytes += copy_states(pages_of(match.checkpoint), sequence.states);
      checkpoint_at(match.checkpoint).hit = true;
    } else {
      for (const int32_t page : sequence.states) pool.zero(page);
    }
    admission->sequence = id;
  }
  if (resumed) pin_checkpoint(match.checkpoint, -1);
  // What was only read, or on failure all, is let go: tails first.
  const size_t held = fits ? static_cast<size_t>(shared) : 0;
  while (chain.size() > held) {
    unreference(chain.back());
    chain.pop_back();
  }
  return fits;
}

Result<Admission> HybridCache::Impl::admit(const CachePrompt& prompt, int64_t reserve_tokens) {
  if (prompt.token_count < 1) return fail(Code::invalid_argument, "an empty prompt");
  K3_CHECK(reserve_tokens >= 0);
  K3_TRY(pool.memory().status());
  K3_TRY(check_fits(prompt.token_count + reserve_tokens, "a prompt"));
  const bool look_up = options.enabled && prompt.use_cache;
  if (look_up) {
    K3_CHECK(static_cast<int64_t>(prompt.keys.size()) >= prompt.token_count / block_tokens, "{} keys", prompt.keys.size());
    K3_CHECK(token_store.data() == nullptr || static_cast<int64_t>(prompt.tokens.size()) >= prompt.token_count, "no tokens to compare");
  }
  Admission admission;
  if (look_up && !tiers.empty()) fetch(prompt, reserve_tokens, &admission);
  Match match = look_up ? find(prompt) : Match{};
  if (match.collision) ++counts.key_collisions;
  bool admitted = try_admit(prompt, reserve_tokens, match, &admission);
  // A copy needs its source and its target at once. Where nobody runs, waiting would not bring the room for both.
  if (!admitted && match.boundary > 0 && free_sequences.size() == sequences.size()) {
    match.boundary = 0;
    match.limit = HitLimit::kda;
    admitted = try_admit(prompt, reserve_tokens, match, &admission);
  }
  if (!admitted) {
    return fail(Code::exhausted, "a prompt of {} tokens needs {} more pages; {} of {} can be had now", prompt.token_count,
                shape.pages_for(prompt.token_count + reserve_tokens) - match.boundary / page_tokens + groups, available_pages(),
                pool.count());
  }
  admission.cached_tokens = match.boundary;
  admission.matched_tokens = match.matched;
  admission.limit = match.limit;
  counts.prompt_tokens += prompt.token_count;
  counts.matched_tokens += match.matched;
  counts.hit_tokens += match.boundary;
  counts.copied_bytes += admission.copied_bytes;
  counts.no_match += match.matched == 0 ? 1 : 0;
  counts.limited_by_mla += match.limit == HitLimit::mla ? 1 : 0;
  counts.limited_by_kda += match.limit == HitLimit::kda ? 1 : 0;
  return admission;
}

Status HybridCache::Impl::grow(Sequence& sequence, int64_t tokens) {
  const int64_t more = shape.pages_for(tokens) - static_cast<int64_t>(sequence.table.size());
  if (more <= 0) return {};
  K3_TRY(check_fits(tokens, "a sequence"));
  if (more > available_pages()) {
    return fail(Code::exhausted, "{} tokens need {} more pages; {} of {} can be had now", tokens, more, available_pages(),
                pool.count());
  }
  for (int64_t i = 0; i < more; ++i) sequence.table.push_back(take(PageUse::mla));
  return {};
}

void HybridCache::Impl::release(SequenceId id) {
  Sequence& sequence = live(id);
  close_plan(sequence, 0, {});
  for (size_t slot = sequence.table.size(); slot-- > 0;) unreference(sequence.table[slot]);  // tails first
  for (const int32_t page : sequence.states) give(page);
  close(id);
}

void HybridCache::Impl::quarantine(SequenceId id) {
  Sequence& sequence = live(id);
  const auto lock_away = [&](int32_t page) {
    if (at(page).use == PageUse::mla) {
      --counts.pages_running_mla;
    } else {
      --counts.pages_running_kda;
    }
    at(page) = Page{};
    at(page).use = PageUse::quarantined;
    pool.quarantine(page);
  };
  // Nothing that others built on a page that this sequence wrote is better than the page.
  for (size_t slot = sequence.table.size(); slot-- > 0;) {
    const int32_t page = sequence.table[slot];
    const bool written = static_cast<int64_t>(slot) >= sequence.shared_pages;
    if (written) disown(page);
    if (written && at(page).references == 1) {
      lock_away(page);
    } else {
      unreference(page);
    }
  }
  for (const CheckpointWrite& write : sequence.plan) std::ranges::for_each(write.pages, lock_away);
  std::ranges::for_each(sequence.states, lock_away);
  close(id);
}

Result<SequenceId> HybridCache::Impl::fork(SequenceId id) {
  const Sequence& from = live(id);
  K3_CHECK(!from.planned, "a fork during a step");
  K3_TRY(pool.memory().status());
  const int64_t shared = from.length / page_tokens, rows = from.length % page_tokens;
  const int64_t needed = groups + (rows > 0 ? 1 : 0);
  if (needed > available_pages()) {
    return fail(Code::exhausted, "a fork needs {} pages; {} of {} can be had now", needed, available_pages(), pool.count());
  }
  const SequenceId copy_id = new_sequence();  // `from` stays where it is: a deque
  Sequence& copy = live(copy_id);
  copy.table.assign(from.table.begin(), from.table.begin() + shared);
  for (const int32_t page : copy.table) reference(page);
  if (rows > 0) {
    copy.table.push_back(take(PageUse::mla));
    counts.copied_bytes += copy_latents(from.table[static_cast<size_t>(shared)], copy.table.back(), rows);
  }
  for (int64_t g = 0; g < groups; ++g) copy.states.push_back(take(PageUse::state));
  counts.copied_bytes += copy_states(from.states, copy.states);
  copy.registers = from.registers;
  copy.length = from.length;
  copy.prompt_tokens = from.prompt_tokens;
  copy.kept = from.kept;
  copy.shared_pages = shared;
  copy.registered_blocks = std::min(from.registered_blocks, shared * page_blocks);
  copy.last_checkpoint = from.last_checkpoint;
  return copy_id;
}

}  // namespace k3::cache
