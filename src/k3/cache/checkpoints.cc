// Which states a step exports, and what becomes of them once the step has landed.
#include <algorithm>

#include "k3/cache/state.h"

namespace k3::cache {

namespace {

int64_t last_multiple(int64_t value, int64_t of) { return value / of * of; }

}  // namespace

std::span<const CheckpointWrite> HybridCache::Impl::plan(Sequence& sequence, int64_t end) {
  K3_CHECK(!sequence.planned, "a plan is open");
  K3_CHECK(end > sequence.length, "a step from {} to {}", sequence.length, end);
  sequence.planned = true;
  if (groups == 0 || !options.enabled || !sequence.registers) return {};
  const auto add = [&](int64_t position, bool rolling) {
    if (position > sequence.length && position <= end) sequence.plan.push_back({position, {}, rolling});
  };
  const CheckpointPolicy& policy = options.policy;
  for (const int64_t position : sequence.kept) add(position, false);
  for (int64_t every = policy.every_tokens, at_ = every == 0 ? end + 1 : last_multiple(sequence.length, every) + every; at_ <= end;
       at_ += every) {
    add(at_, false);
  }
  // After the prompt the newest endpoint follows the sequence; where it stays behind at release is the end of the turn.
  const bool follow = end > sequence.prompt_tokens ? policy.turn_ends : end < sequence.prompt_tokens && policy.chunk_ends;
  if (follow) add(last_multiple(end, block_tokens), true);
  // Of one position the kept entry comes first and stays.
  std::ranges::stable_sort(sequence.plan, {}, &CheckpointWrite::position);
  // std::unique, not the one of ranges: clang 14, which builds the fuzz targets, cannot compile that of g++ 12's library.
  const auto same = [](const CheckpointWrite& a, const CheckpointWrite& b) { return a.position == b.position; };
  sequence.plan.erase(std::unique(sequence.plan.begin(), sequence.plan.end(), same), sequence.plan.end());
  // The latest are worth most: when there is no room the early ones go without.
  int64_t affordable = available_pages() / groups;
  for (size_t i = sequence.plan.size(); i-- > 0;) {
    if (affordable-- <= 0) {
      sequence.plan.erase(sequence.plan.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    for (int64_t g = 0; g < groups; ++g) sequence.plan[i].pages.push_back(take(PageUse::state));
  }
  return sequence.plan;
}

void HybridCache::Impl::commit(Sequence& sequence, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                               int64_t token_count) {
  K3_CHECK(token_count >= sequence.length && token_count <= static_cast<int64_t>(sequence.table.size()) * page_tokens,
           "{} tokens after {} with room in {} pages", token_count, sequence.length, sequence.table.size());
  sequence.length = token_count;
  if (!options.enabled || !sequence.registers) {
    close_plan(sequence, 0, {});
    return;
  }
  const int64_t blocks = token_count / block_tokens;
  K3_CHECK(static_cast<int64_t>(keys.size()) >= blocks, "{} keys for {} tokens", keys.size(), token_count);
  const bool store = token_store.data() != nullptr;
  K3_CHECK(!store || static_cast<int64_t>(tokens.size()) >= blocks * block_tokens, "no tokens to keep");
  for (int64_t block = sequence.registered_blocks; block < blocks; ++block) {
    const auto ids = store ? tokens.subspan(static_cast<size_t>(block * block_tokens), static_cast<size_t>(block_tokens))
                           : std::span<const int32_t>{};
    register_block(sequence, block, keys[static_cast<size_t>(block)], ids);
  }
  sequence.registered_blocks = std::max(sequence.registered_blocks, blocks);
  close_plan(sequence, token_count, keys);
}

// Attaches what was planned up to `landed` tokens, gives the rest back.
void HybridCache::Impl::close_plan(Sequence& sequence, int64_t landed, std::span<const BlockKey> keys) {
  for (const CheckpointWrite& write : sequence.plan) {
    if (write.position > landed) {
      std::ranges::for_each(write.pages, [&](int32_t page) { give(page); });
      continue;
    }
    // The one that followed the sequence so far is superseded, unless somebody else found it useful.
    if (const int32_t old = sequence.rolling; old >= 0) {
      const Checkpoint& last = checkpoint_at(old);
      if (last.record >= 0 && last.serial == sequence.rolling_serial && !last.hit) {
        sequence.last_checkpoint = last.position - last.saved_tokens;
        drop_checkpoint(old);
      }
      sequence.rolling = -1;
    }
    const int64_t block = write.position / block_tokens - 1;
    const int32_t head = index.find(keys[static_cast<size_t>(block)]);
    const int32_t existing = index.checkpoint(head);
    if (existing >= 0) {  // another sequence was first
      std::ranges::for_each(write.pages, [&](int32_t page) { give(page); });
      touch_checkpoint(existing);
    } else {
      const int32_t page = sequence.table[static_cast<size_t>(block / page_blocks)];
      const int32_t made = attach_checkpoint(record_of(page, block % page_blocks), write.position,
                                             write.position - sequence.last_checkpoint, write.pages);
      if (write.rolling) {
        sequence.rolling = made;
        sequence.rolling_serial = checkpoint_at(made).serial;
      }
    }
    sequence.last_checkpoint = write.position;
  }
  sequence.plan.clear();
  sequence.planned = false;
}

}  // namespace k3::cache
