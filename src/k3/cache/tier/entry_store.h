// Purpose:  the persistent index of a disk tier: which slots hold which entry, with their checksums.
// Shapes:   one record an entry, named by its first slot.
// Units:    bytes.
// Memory:   an LMDB map whose address space is sized for all slots.
// Threads:  one thread, one process (the folder is locked by its owner).
// Errors:   internal for what LMDB reports, exhausted for a full disk, unavailable when a file that was there cannot be checked
//           (no process to be had): it is left alone. open never fails for a damaged file: it starts anew and says so by `damaged`. load skips records that are not what was written.
// Source:   serving.md 3.5. LMDB trusts the pages of its file; a damaged one can make it read anywhere. A file that was there
//           before is therefore first walked by a child process, and only when that ends well opened here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/cache/block_key.h"

namespace k3::cache {

struct StoredEntry {
  bool checkpoint = false;
  uint64_t stamp = 0;  // order of writing
  std::vector<int32_t> slots;
  std::vector<uint64_t> sums;  // of the bytes of each slot
  std::vector<BlockKey> keys;
};

class EntryStore {
 public:
  static Result<std::unique_ptr<EntryStore>> open(const std::string& path, int64_t map_bytes, bool* damaged);
  ~EntryStore();

  // Deletes and adds in one transaction, on the medium when it returns.
  Status change(std::span<const int32_t> remove, std::span<const StoredEntry> add);
  // All that is whole, oldest first; the others are counted, their names go to `broken`.
  Status load(std::vector<StoredEntry>* out, std::vector<int32_t>* broken);

 private:
  struct Environment;
  explicit EntryStore(std::unique_ptr<Environment> environment);
  std::unique_ptr<Environment> environment_;
};

}  // namespace k3::cache
