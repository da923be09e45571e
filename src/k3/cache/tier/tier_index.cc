#include "k3/cache/tier/tier_index.h"

#include <algorithm>

#include "k3/base/check.h"

namespace k3::cache {

namespace {

constexpr int kMostCopiesSeen = 8;  // of one block; others are found by their later blocks

}  // namespace

TierIndex::TierIndex(int64_t slots, int64_t page_blocks)
    : page_blocks_(page_blocks), entries_(static_cast<size_t>(slots)), taken_(static_cast<size_t>(slots)), index_(slots, page_blocks) {
  for (int64_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

int64_t TierIndex::blocks_held(std::span<const BlockKey> keys) const {
  for (size_t count = keys.size(); count > 0; --count) {
    if (find_page(keys.first(count)) != kNone) return static_cast<int64_t>(count);
  }
  return 0;
}

int32_t TierIndex::find_page(std::span<const BlockKey> keys) const {
  int32_t record = index_.find(keys.back());
  for (int seen = 0; seen < kMostCopiesSeen && record != BlockIndex::kNone; ++seen, record = index_.next(record)) {
    const auto name = static_cast<int32_t>(record / page_blocks_);
    const auto& held = at(name).keys;
    if (held.size() >= keys.size() && std::ranges::equal(keys, std::span(held).first(keys.size()))) return name;
  }
  return kNone;
}

int32_t TierIndex::find_checkpoint(const BlockKey& key) const {
  const auto found = checkpoints_.find(key);
  return found == checkpoints_.end() ? kNone : found->second;
}

int32_t TierIndex::find_contained(std::span<const BlockKey> keys) const {
  for (size_t count = 1; count < keys.size(); ++count) {
    const int32_t name = find_page(keys.first(count));
    if (name != kNone && at(name).keys.size() == count) return name;
  }
  return kNone;
}

std::vector<int32_t> TierIndex::take_slots(int64_t count) {
  K3_CHECK(count <= free_slots(), "{} slots of {}", count, free_slots());
  std::vector<int32_t> out(free_.end() - count, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(count));
  for (const int32_t slot : out) taken_[static_cast<size_t>(slot)] = true;
  used_slots_ += count;
  return out;
}

void TierIndex::give_slots(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) {
    K3_CHECK(taken_[static_cast<size_t>(slot)], "slot {} is free", slot);
    taken_[static_cast<size_t>(slot)] = false;
    free_.push_back(slot);
  }
  used_slots_ -= static_cast<int64_t>(slots.size());
}

bool TierIndex::claim_slots(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) {
    if (slot < 0 || slot >= static_cast<int32_t>(taken_.size()) || taken_[static_cast<size_t>(slot)]) return false;
    if (std::ranges::count(slots, slot) > 1) return false;
  }
  for (const int32_t slot : slots) taken_[static_cast<size_t>(slot)] = true;
  used_slots_ += static_cast<int64_t>(slots.size());
  return true;
}

void TierIndex::end_claims() {
  std::erase_if(free_, [&](int32_t slot) { return taken_[static_cast<size_t>(slot)]; });
}

int32_t TierIndex::insert(bool checkpoint, std::span<const BlockKey> keys, std::vector<int32_t> slots) {
  const int32_t name = slots.front();
  Entry& entry = entries_[static_cast<size_t>(name)];
  K3_CHECK(entry.slots.empty() && !keys.empty(), "slot {} has an entry", name);
  entry = {checkpoint, std::move(slots), {keys.begin(), keys.end()}, kNone, kNone};
  if (checkpoint) {
    checkpoints_[keys.front()] = name;
  } else {
    for (size_t block = 0; block < keys.size(); ++block) {
      index_.insert(static_cast<int32_t>(name * page_blocks_ + static_cast<int64_t>(block)), keys[block]);
    }
  }
  ++entry_count_;
  link_newest(name);
  return name;
}

std::vector<int32_t> TierIndex::erase(int32_t name) {
  K3_CHECK(has(name), "slot {} has no entry", name);
  unlink(name);
  Entry& entry = entries_[static_cast<size_t>(name)];
  if (entry.checkpoint) {
    const auto found = checkpoints_.find(entry.keys.front());
    if (found != checkpoints_.end() && found->second == name) checkpoints_.erase(found);
  } else {
    for (size_t block = 0; block < entry.keys.size(); ++block) {
      index_.erase(static_cast<int32_t>(name * page_blocks_ + static_cast<int64_t>(block)));
    }
  }
  --entry_count_;
  std::vector<int32_t> slots = std::move(entry.slots);
  entry = {};
  return slots;
}

bool TierIndex::touch_held(bool checkpoint, std::span<const BlockKey> keys) {
  const int32_t name = checkpoint ? find_checkpoint(keys.front()) : find_page(keys);
  if (name != kNone) touch(name);
  return name != kNone;
}

void TierIndex::touch(int32_t name) {
  unlink(name);
  link_newest(name);
}

void TierIndex::clear() {
  while (oldest_ != kNone) give_slots(erase(oldest_));
}

void TierIndex::link_newest(int32_t name) {
  Entry& entry = entries_[static_cast<size_t>(name)];
  entry.older = newest_;
  entry.newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[static_cast<size_t>(newest_)].newer) = name;
  newest_ = name;
}

void TierIndex::unlink(int32_t name) {
  const Entry& entry = at(name);
  (entry.older == kNone ? oldest_ : entries_[static_cast<size_t>(entry.older)].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[static_cast<size_t>(entry.newer)].older) = entry.older;
}

}  // namespace k3::cache
