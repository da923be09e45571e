// Purpose:  evicted pages and checkpoints in a folder; they survive the process.
// Shapes:   slots of one page and the token ids of its blocks, in slab files; an index of entries.
// Units:    bytes.
// Memory:   the index is held in memory as well; a buffer of token ids.
// Threads:  one thread; one process a folder (lock).
// Errors:   create: unavailable when another process has the folder (named in the message), invalid_argument for a size that
//           holds no entry and for a folder with files that are not ours, what the file system says. After that nothing
//           fails: a disk that is full or broken drops entries.
// Source:   serving.md 3.5. Order of writing: the slot is complete and on the medium before the index names it; the index has
//           forgotten an entry before its slots are written again. So the process may end at any time. What is read is
//           compared with its checksum (XXH3-64, seeded by key and part) and with the token ids of the request.
//           A folder of another identity (model, dtypes, shape) is emptied, and so is one whose files cannot be read.
#pragma once

#include <memory>
#include <string>

#include "k3/cache/shape.h"
#include "k3/cache/tier/cache_tier.h"
#include "k3/cache/tier/entry_store.h"
#include "k3/cache/tier/slab_store.h"
#include "k3/cache/tier/tier_index.h"

namespace k3::cache {

class DiskTier : public CacheTier {
 public:
  static Result<std::unique_ptr<DiskTier>> create(const CacheShape& shape, const std::string& folder, int64_t bytes,
                                                  const std::string& identity);
  ~DiskTier() override;

  uint64_t key_seed() const { return key_seed_; }

  int64_t blocks_held(std::span<const BlockKey> keys) const override { return index_.blocks_held(keys); }
  bool holds_checkpoint(const BlockKey& key) const override { return index_.find_checkpoint(key) != TierIndex::kNone; }
  bool touch(bool checkpoint, std::span<const BlockKey> keys) override { return index_.touch_held(checkpoint, keys); }
  void put(const TierEntry& entry) override;
  bool get_page(std::span<const BlockKey> keys, std::span<const int32_t> tokens, std::byte* page) override;
  bool get_checkpoint(const BlockKey& key, std::span<std::byte* const> parts) override;
  void clear() override;
  Status flush() override;
  TierStats stats() const override;

 private:
  DiskTier(const CacheShape& shape, const std::string& folder, int64_t slots);
  Status lock();
  Status open_index(int64_t slots);
  bool make_room(int64_t slots);
  Status settle();  // writes what is pending in both directions
  void forget(int32_t name);
  bool count_read(int32_t name, bool sound);  // returns sound
  bool read_part(const BlockKey& key, int32_t name, size_t part, std::byte* page, std::span<int32_t> tokens);
  uint64_t sum_of(const BlockKey& key, size_t part, const std::byte* page, std::span<const int32_t> tokens) const;

  std::string folder_;
  int64_t page_bytes_, page_blocks_, block_tokens_, groups_;
  int lock_ = -1;
  uint64_t key_seed_ = 0, next_stamp_ = 1;
  TierIndex index_;
  SlabStore slabs_;
  std::unique_ptr<EntryStore> entries_;
  std::vector<std::vector<uint64_t>> sums_;  // by name: of each slot
  std::vector<int32_t> unsaved_;             // names whose record is not in the store yet
  std::vector<std::vector<int32_t>> doomed_;  // slots of entries whose record is still in the store
  std::vector<int32_t> token_buffer_;
  TierStats stats_;
};

}  // namespace k3::cache
