// Internal to model. Where every routed expert of a checkpoint lies in its files, 100 bytes an expert, and how one is laid
// out in a slot of memory: tensors that lie behind each other in a file stay together and are one read.
#pragma once

#include <array>
#include <vector>

#include "k3/base/disk_reader.h"
#include "k3/base/threads.h"
#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/ops/moe/moe.h"

namespace k3 {

class ExpertTable {
 public:
  // Checks name, shape and dtype of every expert tensor.
  static Result<ExpertTable> build(const Checkpoint& checkpoint, const Config& config);

  int64_t slot_bytes() const { return slot_bytes_; }  // of the largest expert
  int64_t read_bytes() const { return read_bytes_; }
  int64_t experts() const { return experts_per_layer_; }
  int64_t layers() const { return static_cast<int64_t>(first_.size()); }
  bool is_moe(int64_t layer) const { return first_[static_cast<size_t>(layer)] >= 0; }

  // Appends the reads of an expert into `slot` and says where its weights will be. files: of each shard.
  ops::ExpertWeights place(int64_t layer, int64_t expert, std::byte* slot, std::span<const int32_t> files,
                           std::vector<DiskRequest>& reads) const;

  // After the reads: codes into the order of memory, scales checked. Parallel on the pool.
  Status finish(const Checkpoint& checkpoint, const Config& config, int64_t layer, int64_t expert,
                const ops::ExpertWeights& weights, ThreadPool& pool) const;

 private:
  struct Part {
    int64_t offset = 0;
    int32_t shard = 0;
  };
  struct Place {
    std::array<Part, 3> data, scales;  // w1, w2, w3
    std::array<ops::Scheme, 3> schemes{};
  };
  struct Dims {
    int64_t rows = 0, cols = 0;
  };
  const Place& place_of(int64_t layer, int64_t expert) const {
    return places_[static_cast<size_t>(first_[static_cast<size_t>(layer)] + expert)];
  }

  std::vector<Place> places_;
  std::vector<int64_t> first_;  // [layers] index of expert 0, -1 for dense layers
  std::array<Dims, 3> dims_{};
  int64_t experts_per_layer_ = 0, slot_bytes_ = 0, read_bytes_ = 0;
};

}  // namespace k3
