// Purpose:  which slot of a tier holds which entry, and which entry was not used for longest.
// Shapes:   slots 0 .. count - 1 of one page each; an MLA page takes one, a checkpoint one for each KDA group. An entry is
//           named by its first slot.
// Units:    slots, blocks.
// Memory:   64 bytes a slot and the keys of each entry; for each block of a slot what block_index.h says.
// Threads:  one thread.
// Errors:   CHECKs for slots that are not free or entries that are not there.
// Source:   serving.md 3.5. A page is found by the key of its last wanted block; a page that a longer one contains is not kept.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "k3/cache/block_index.h"

namespace k3::cache {

class TierIndex {
 public:
  static constexpr int32_t kNone = -1;

  struct Entry {
    bool checkpoint = false;
    std::vector<int32_t> slots;  // empty: none
    std::vector<BlockKey> keys;
    int32_t older = kNone, newer = kNone;
  };

  TierIndex(int64_t slots, int64_t page_blocks);

  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }
  int64_t entries() const { return entry_count_; }
  int64_t used_slots() const { return used_slots_; }
  int32_t oldest() const { return oldest_; }
  bool has(int32_t name) const { return !entries_[static_cast<size_t>(name)].slots.empty(); }
  const Entry& at(int32_t name) const { return entries_[static_cast<size_t>(name)]; }

  int64_t blocks_held(std::span<const BlockKey> keys) const;    // the most first blocks that one entry holds
  int32_t find_page(std::span<const BlockKey> keys) const;      // an entry that holds all of them
  int32_t find_checkpoint(const BlockKey& key) const;
  // A page that ends inside the one of these keys and holds nothing else.
  int32_t find_contained(std::span<const BlockKey> keys) const;

  std::vector<int32_t> take_slots(int64_t count);  // there must be so many
  void give_slots(std::span<const int32_t> slots);
  // These ones, when all are free: to start from a saved index. After the last claim, before anything else: end_claims.
  bool claim_slots(std::span<const int32_t> slots);
  void end_claims();
  int32_t insert(bool checkpoint, std::span<const BlockKey> keys, std::vector<int32_t> slots);  // taken before; the newest
  std::vector<int32_t> erase(int32_t name);  // the slots it had, which stay taken
  void touch(int32_t name);
  bool touch_held(bool checkpoint, std::span<const BlockKey> keys);  // true: an entry has it already
  void clear();

 private:
  void link_newest(int32_t name);
  void unlink(int32_t name);

  int64_t page_blocks_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::vector<bool> taken_;
  BlockIndex index_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> checkpoints_;
  int32_t oldest_ = kNone, newest_ = kNone;
  int64_t entry_count_ = 0, used_slots_ = 0;
};

}  // namespace k3::cache
