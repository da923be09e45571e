// Purpose:  evicted pages and checkpoints in host memory; what does not fit goes on to the next tier.
// Shapes:   slots of one page; the token ids of a page beside it.
// Units:    bytes.
// Memory:   two reservations, committed as they are used: pages (none when the pool is not backed) and token ids.
// Threads:  one thread.
// Errors:   create: exhausted when the address space cannot be had, invalid_argument for more blocks than an index holds.
// Source:   serving.md 3.5; least recently used leaves first.
#pragma once

#include <memory>

#include "k3/cache/shape.h"
#include "k3/cache/tier/cache_tier.h"
#include "k3/cache/tier/tier_index.h"
#include "k3/tensor/tensor.h"

namespace k3::cache {

class HostTier : public CacheTier {
 public:
  // next: null, or where evicted entries go; must outlive this.
  static Result<std::unique_ptr<HostTier>> create(const CacheShape& shape, int64_t bytes, bool backed, CacheTier* next);

  int64_t blocks_held(std::span<const BlockKey> keys) const override { return index_.blocks_held(keys); }
  bool holds_checkpoint(const BlockKey& key) const override { return index_.find_checkpoint(key) != TierIndex::kNone; }
  bool touch(bool checkpoint, std::span<const BlockKey> keys) override { return index_.touch_held(checkpoint, keys); }
  void put(const TierEntry& entry) override;
  bool get_page(std::span<const BlockKey> keys, std::span<const int32_t> tokens, std::byte* page) override;
  bool get_checkpoint(const BlockKey& key, std::span<std::byte* const> parts) override;
  void clear() override { index_.clear(); }
  Status flush() override;  // everything to the next tier, which is flushed by its owner
  TierStats stats() const override;

 private:
  HostTier(const CacheShape& shape, int64_t slots, CacheTier* next);
  std::byte* page(int32_t slot) { return data_.data() == nullptr ? nullptr : data_.data() + slot * page_bytes_; }
  std::span<int32_t> tokens(int32_t slot, size_t count) {
    return {reinterpret_cast<int32_t*>(tokens_.data()) + slot * page_tokens_, count};
  }
  void copy(std::byte* to, const std::byte* from) const;
  void pass_on(int32_t name);
  void remove(int32_t name) { index_.give_slots(index_.erase(name)); }

  int64_t page_bytes_, page_tokens_, groups_;
  TierIndex index_;
  CacheTier* next_;
  Storage data_, tokens_;
  std::vector<size_t> token_counts_;  // by slot: ids that came with a page
  TierStats stats_;
};

}  // namespace k3::cache
