// Purpose:  which page holds which block: a hash table from block key to the records of the pages that hold it.
// Shapes:   one record for each (slot, block in slot); record = slot * blocks_per_slot + block. A slot is a page of the pool
//           or of a tier.
// Units:    32 bytes a record; the table takes 8 to 16 bytes a key (at most half full, 4 KiB at least) and never shrinks.
// Memory:   records are allocated once; the table grows by doubling (at most half full). No allocation in find.
// Threads:  one thread.
// Errors:   CHECKs for a record inserted twice or erased while empty.
// Source:   serving.md 3.1. Several slots may hold the same block (two sequences computed it, or copied a page in part):
//           their records form a list, so that losing one copy keeps the others. A checkpoint number is kept at the head of
//           the list, where find sees it without a walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "k3/cache/block_key.h"

namespace k3::cache {

class BlockIndex {
 public:
  static constexpr int32_t kNone = -1;

  BlockIndex(int64_t slots, int64_t blocks_per_slot);

  int32_t find(const BlockKey& key) const;  // the head of the list, or kNone
  void insert(int32_t record, const BlockKey& key);
  void erase(int32_t record);
  void promote(int32_t record);  // to the head of its list

  bool used(int32_t record) const { return at(record).prev != kUnused; }
  int32_t next(int32_t record) const { return at(record).next; }
  bool alone(int32_t record) const { return at(record).next == kNone && at(record).prev == kNone; }
  const BlockKey& key(int32_t record) const { return at(record).key; }
  int32_t checkpoint(int32_t record) const { return at(record).checkpoint; }
  void set_checkpoint(int32_t record, int32_t checkpoint) { at(record).checkpoint = checkpoint; }

  int64_t records_used() const { return records_used_; }
  int64_t keys() const { return keys_; }
  // Invariants of lists and table; an empty text when they hold.
  const char* check() const;

 private:
  static constexpr int32_t kUnused = -2;
  struct Record {
    BlockKey key;
    int32_t next = kNone, prev = kUnused;
    int32_t checkpoint = kNone;
  };
  static_assert(sizeof(Record) == 32);

  const Record& at(int32_t record) const { return records_[static_cast<size_t>(record)]; }
  Record& at(int32_t record) { return records_[static_cast<size_t>(record)]; }
  size_t home(const BlockKey& key) const;
  size_t place(const BlockKey& key) const;  // where the key is, or the empty place where it would go
  void grow();
  void remove_place(size_t hole);

  std::vector<Record> records_;
  std::vector<int32_t> table_;  // a power of two of heads
  int shift_ = 0;
  int64_t keys_ = 0, records_used_ = 0;
};

}  // namespace k3::cache
