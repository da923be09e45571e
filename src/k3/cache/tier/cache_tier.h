// Purpose:  a place for evicted pages and checkpoints beside the pool.
// Shapes:   an entry is an MLA page (the keys of its first blocks, their token ids, one page of bytes) or a checkpoint (the
//           key of its boundary, one page of bytes for each KDA group).
// Units:    bytes; blocks.
// Memory:   put copies. get writes into pages of the caller, which hold anything after a failure.
// Threads:  one thread.
// Errors:   none of a request: an entry that cannot be taken, or is not what it should be when read, is dropped and counted.
// Source:   serving.md 3.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "k3/base/result.h"
#include "k3/cache/block_key.h"

namespace k3::cache {

struct TierEntry {
  bool checkpoint = false;
  std::span<const BlockKey> keys;             // a checkpoint has one
  std::span<const int32_t> tokens;            // of a page's blocks; empty when tokens are not compared
  std::span<const std::byte* const> parts;    // pages; null pointers when the pool is not backed
};

struct TierStats {
  int64_t entries = 0, bytes = 0, hits = 0, errors = 0, dropped = 0;
};

class CacheTier {
 public:
  virtual ~CacheTier() = default;

  // How many of a page's first blocks, whose keys these are, one entry holds (the longest).
  virtual int64_t blocks_held(std::span<const BlockKey> keys) const = 0;
  virtual bool holds_checkpoint(const BlockKey& key) const = 0;

  // True: an entry holds all of it already and is now the newest, so that nothing needs to be put.
  virtual bool touch(bool checkpoint, std::span<const BlockKey> keys) = 0;
  virtual void put(const TierEntry& entry) = 0;
  // Reads the blocks of these keys; false when that fails or the entry's tokens are others.
  virtual bool get_page(std::span<const BlockKey> keys, std::span<const int32_t> tokens, std::byte* page) = 0;
  virtual bool get_checkpoint(const BlockKey& key, std::span<std::byte* const> parts) = 0;

  virtual void clear() = 0;
  virtual Status flush() = 0;  // what a restart should find is on its medium
  virtual TierStats stats() const = 0;
};

}  // namespace k3::cache
