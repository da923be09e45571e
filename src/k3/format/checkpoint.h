// Purpose:  reads and writes checkpoints in the released layout: one safetensors file, or shards with
//           model.safetensors.index.json.
// Shapes:   as stored; row-major.
// Units:    offsets in bytes from the start of the shard file.
// Memory:   an open index keeps its names and 20 bytes each (497,220 names: about 50 MB); a shard header is
//           parsed when first needed and keeps about 40 bytes a tensor. Headers and tensor bytes are read by pread,
//           never mapped: a file cut short under us is an error, not a signal.
// Threads:  find() and read() may be called from many threads (lazy headers are locked inside).
// Errors:   every message names file, tensor and fact. not_found: no such tensor, missing shard. corrupt: any lie
//           of a header. unsupported: GGUF, PyTorch or other containers (with a hint), and find() of a tensor whose
//           dtype this program cannot hold. exhausted: no memory, disk full. K3_CHECK: a read outside the tensor,
//           an append that breaks the plan.
// Source:   model.md 2.1; the safetensors format (8-byte little-endian header length, JSON, data).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/tensor/dtype.h"

namespace k3 {

struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  int64_t offset = 0;  // absolute in its file
  int64_t size_bytes = 0;
  int32_t shard = 0;

  int64_t count() const {
    int64_t n = 1;
    for (const int64_t d : dims) n *= d;
    return n;
  }
};

struct TensorSpec;

class Checkpoint {
 public:
  // Tensors that are promised and not stored: find() describes them, reading one is a programmer error. For random models.
  static Checkpoint declare(const std::vector<TensorSpec>& tensors);
  // A folder, a single .safetensors file, or an index file. In a folder: model.safetensors.index.json, else
  // model.safetensors, else the only *.safetensors. Missing shards do not hinder opening.
  static Result<Checkpoint> open(const std::string& path);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  bool contains(std::string_view name) const;  // by the index, or by the headers of an unindexed file
  int64_t tensor_count() const;
  void for_each_name(const std::function<void(std::string_view name, int32_t shard)>& visit) const;

  // Parses (and checks whole) the header of the tensor's shard at first use.
  Result<TensorInfo> find(std::string_view name) const;

  // Reads all bytes of the tensor, or a byte range inside it.
  Status read(std::string_view name, const TensorInfo& info, std::span<std::byte> out) const;
  Status read_range(std::string_view name, const TensorInfo& info, int64_t begin_bytes, std::span<std::byte> out) const;

  int32_t shard_count() const;
  const std::string& shard_file(int32_t shard) const;  // file name inside the folder
  bool shard_present(int32_t shard) const;
  const std::string& folder() const;

  // Parses every header now and checks that each name of the index is in its shard and in no other (k3 inspect,
  // convert).
  Status verify_all() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// E8M0 scale bytes of MXFP4 weights: 253 and 254 overflow, 255 is NaN. Names the first offender; with
// groups_per_row (the last dimension of weight_scale) as row and group, without as a plain index.
Status check_scales(std::string_view file, std::string_view tensor, std::span<const std::byte> scales,
                    int64_t groups_per_row = 0);

// Writes tensors in the order given: shards are cut by plan, each file is written under a temporary name and
// renamed when whole; the index comes last, so a folder without an index is an unfinished one. Index and shards of an older
// checkpoint are removed from the folder first.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  int64_t size_bytes() const;
};

class CheckpointWriter {
 public:
  // shards[i] lists the tensors of shard i; file names follow the released pattern (model-00001-of-0000NN).
  // An index already in the folder is removed first. invalid_argument: a name that is empty, repeated or not UTF-8.
  static Result<CheckpointWriter> create(const std::string& folder, std::vector<std::vector<TensorSpec>> shards);
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) noexcept;
  ~CheckpointWriter();

  // The next tensor in order, whole or in pieces; the writer checks names and sizes (programmer errors). After an
  // error only destruction is useful: it removes the unfinished file.
  Status append(std::string_view name, std::span<const std::byte> bytes);
  Status finish();  // commits the last shard, writes the index

 private:
  struct Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
