// Purpose:  slots of one size in files of a folder.
// Shapes:   slot i lies in file slab-<i / slots_per_file> at a multiple of slot_bytes.
// Units:    bytes, slots.
// Memory:   none but the descriptors.
// Threads:  one thread.
// Errors:   write: exhausted for a full disk, internal for other failures; read: corrupt for a file that is cut short.
// Source:   serving.md 3.5. Files grow as slots are written; sync waits until what was written is on the medium.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::cache {

class SlabStore {
 public:
  SlabStore(std::string folder, int64_t slot_bytes, int64_t slots);
  SlabStore(const SlabStore&) = delete;
  ~SlabStore();

  int64_t slot_bytes() const { return slot_bytes_; }
  Status write(int32_t slot, int64_t offset, std::span<const std::byte> bytes);
  Status read(int32_t slot, int64_t offset, std::span<std::byte> bytes);
  Status sync();
  size_t file_count() const { return files_.size(); }
  void remove_files(size_t first = 0);  // those from this number on, whatever their size
  static bool is_slab(std::string_view name);

 private:
  struct FileState {
    int descriptor = -1;
    bool dirty = false;
  };
  Result<FileState*> file_of(int32_t slot);
  std::string path_of(size_t file) const;

  std::string folder_;
  int64_t slot_bytes_, slots_per_file_;
  std::vector<FileState> files_;
};

}  // namespace k3::cache
