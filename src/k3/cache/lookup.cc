// The longest boundary that both kinds of layers can resume at.
#include <algorithm>

#include "k3/cache/state.h"

namespace k3::cache {

// A registered block vouches for those before it, so the walk ends at the first miss. The last token is always computed.
Match HybridCache::Impl::find(const CachePrompt& prompt) const {
  Match match;
  const int64_t usable = std::min((prompt.token_count - 1) / block_tokens, static_cast<int64_t>(prompt.keys.size()));
  int64_t blocks = 0, boundary = 0;
  int32_t boundary_record = BlockIndex::kNone;
  for (; blocks < usable; ++blocks) {
    const int32_t record = index.find(prompt.keys[static_cast<size_t>(blocks)]);
    if (record == BlockIndex::kNone) break;
    if (groups > 0 && index.checkpoint(record) < 0) continue;
    boundary = blocks + 1;
    boundary_record = record;
  }
  if (boundary > 0) {
    match.page = page_of(boundary_record);
    match.checkpoint = index.checkpoint(boundary_record);
    match.boundary = boundary * block_tokens;
  }
  match.matched = blocks * block_tokens;
  if (boundary > 0 && !verify(prompt, match)) {
    match = Match{};
    match.collision = true;
    return match;
  }
  if (boundary < blocks) {
    match.limit = HitLimit::kda;
  } else if (blocks == usable) {
    const bool one_more = static_cast<int64_t>(prompt.keys.size()) > usable &&
                          index.find(prompt.keys[static_cast<size_t>(usable)]) != BlockIndex::kNone;
    match.limit = usable == 0 || one_more ? HitLimit::prompt_length : HitLimit::none;
  } else {
    match.limit = blocks == 0 ? HitLimit::nothing_cached : HitLimit::mla;
  }
  return match;
}

// Keys are hashes: the pages that would be used must hold the very keys and token ids of the prompt.
bool HybridCache::Impl::verify(const CachePrompt& prompt, const Match& match) const {
  const int64_t blocks = match.boundary / block_tokens;
  int32_t page = match.page;
  for (int64_t slot = (blocks - 1) / page_blocks; slot >= 0; --slot, page = at(page).parent) {
    if (page < 0 || at(page).slot != slot) return false;
    const int64_t first = slot * page_blocks, count = std::min(page_blocks, blocks - first);
    if (at(page).blocks < count) return false;
    for (int64_t block = 0; block < count; ++block) {
      if (!(index.key(record_of(page, block)) == prompt.keys[static_cast<size_t>(first + block)])) return false;
    }
    if (token_store.data() == nullptr) continue;
    const auto wanted = prompt.tokens.subspan(static_cast<size_t>(first * block_tokens), static_cast<size_t>(count * block_tokens));
    if (!std::ranges::equal(wanted, tokens_of(page).first(wanted.size()))) return false;
  }
  return true;
}

void HybridCache::Impl::chain_of(int32_t page, std::vector<int32_t>* out) const {
  out->clear();
  for (; page >= 0; page = at(page).parent) out->push_back(page);
  std::ranges::reverse(*out);
}

}  // namespace k3::cache
