// Internal to model. Rows of the embedding table, read when their token comes and kept while there is room.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "k3/base/disk_reader.h"
#include "k3/format/checkpoint.h"
#include "k3/tensor/tensor.h"

namespace k3 {

class RowCache {
 public:
  static Result<RowCache> create(DiskReader& reader, int32_t file, std::string name, const TensorInfo& info, int64_t rows);

  // out [T, hidden] f32: the widened rows of the ids.
  Status read(std::span<const int32_t> ids, const Tensor& out);

 private:
  RowCache(DiskReader& reader, int32_t file, std::string name, const TensorInfo& info)
      : reader_(&reader), file_(file), name_(std::move(name)), info_(info) {}
  Status load(std::span<const int32_t> ids);
  int64_t row_bytes() const { return info_.size_bytes / info_.dims[0]; }
  int64_t pitch() const { return (row_bytes() + 2 * kDiskSlack + 63) / 64 * 64; }
  std::byte* row_of(int32_t slot) { return memory_.data() + slot * pitch() + kDiskSlack; }

  DiskReader* reader_;
  int32_t file_;
  std::string name_;
  TensorInfo info_;
  Storage memory_;
  std::vector<int32_t> slot_of_;  // by token, -1: not here
  std::vector<int32_t> token_of_;  // by slot
  std::vector<int64_t> used_;      // by slot: when last
  int64_t time_ = 0;
  size_t hand_ = 0;
};

}  // namespace k3
