#include "k3/cache/tier/host_tier.h"

#include <algorithm>
#include <cstring>

namespace k3::cache {

HostTier::HostTier(const CacheShape& shape, int64_t slots, CacheTier* next)
    : page_bytes_(shape.page_bytes),
      page_tokens_(shape.page_tokens),
      groups_(shape.groups()),
      index_(slots, shape.blocks_per_page()),
      next_(next),
      token_counts_(static_cast<size_t>(slots)) {}

Result<std::unique_ptr<HostTier>> HostTier::create(const CacheShape& shape, int64_t bytes, bool backed, CacheTier* next) {
  const int64_t slots = bytes / shape.page_bytes;
  if (slots * shape.blocks_per_page() >= int64_t{1} << 31) {
    return fail(Code::invalid_argument, "cache: {} pages of {} blocks in host memory are too many", slots, shape.blocks_per_page());
  }
  std::unique_ptr<HostTier> tier(new HostTier(shape, slots, next));
  K3_TRY_ASSIGN(tier->data_, Storage::reserve(backed ? slots * shape.page_bytes : 0));
  K3_TRY_ASSIGN(tier->tokens_, Storage::reserve(slots * shape.page_tokens * static_cast<int64_t>(sizeof(int32_t))));
  return tier;
}

void HostTier::copy(std::byte* to, const std::byte* from) const {
  if (to != nullptr && from != nullptr) std::memcpy(to, from, static_cast<size_t>(page_bytes_));
}

void HostTier::put(const TierEntry& entry) {
  if (index_.touch_held(entry.checkpoint, entry.keys)) return;
  for (int32_t part = TierIndex::kNone; !entry.checkpoint && (part = index_.find_contained(entry.keys)) != TierIndex::kNone;) remove(part);
  const auto needed = static_cast<int64_t>(entry.parts.size());
  while (index_.free_slots() < needed && index_.oldest() != TierIndex::kNone) {
    pass_on(index_.oldest());
    remove(index_.oldest());
  }
  if (index_.free_slots() < needed) {  // larger than the whole tier
    if (next_ != nullptr) next_->put(entry);
    return;
  }
  const int32_t name = index_.insert(entry.checkpoint, entry.keys, index_.take_slots(needed));
  for (size_t part = 0; part < entry.parts.size(); ++part) copy(page(index_.at(name).slots[part]), entry.parts[part]);
  token_counts_[static_cast<size_t>(name)] = entry.tokens.size();
  std::ranges::copy(entry.tokens, tokens(name, entry.tokens.size()).begin());
}

void HostTier::pass_on(int32_t name) {
  if (next_ == nullptr) return;
  const TierIndex::Entry& entry = index_.at(name);
  std::vector<const std::byte*> parts;
  for (const int32_t slot : entry.slots) parts.push_back(page(slot));
  next_->put({entry.checkpoint, entry.keys, tokens(name, token_counts_[static_cast<size_t>(name)]), parts});
}

bool HostTier::get_page(std::span<const BlockKey> keys, std::span<const int32_t> wanted, std::byte* to) {
  const int32_t name = index_.find_page(keys);
  if (name == TierIndex::kNone) return false;
  const auto held = tokens(name, token_counts_[static_cast<size_t>(name)]);
  if (!wanted.empty() && (held.size() < wanted.size() || !std::ranges::equal(wanted, held.first(wanted.size())))) {
    ++stats_.errors;
    remove(name);
    return false;
  }
  copy(to, page(name));
  index_.touch(name);
  ++stats_.hits;
  return true;
}

bool HostTier::get_checkpoint(const BlockKey& key, std::span<std::byte* const> parts) {
  const int32_t name = index_.find_checkpoint(key);
  if (name == TierIndex::kNone) return false;
  for (size_t part = 0; part < parts.size(); ++part) copy(parts[part], page(index_.at(name).slots[part]));
  index_.touch(name);
  ++stats_.hits;
  return true;
}

Status HostTier::flush() {
  for (int32_t name = index_.oldest(); next_ != nullptr && name != TierIndex::kNone; name = index_.at(name).newer) pass_on(name);
  return {};
}

TierStats HostTier::stats() const {
  TierStats out = stats_;
  out.entries = index_.entries();
  out.bytes = index_.used_slots() * page_bytes_;
  return out;
}

}  // namespace k3::cache
