// Purpose:  the numbers of a micro-batch in a GPU's memory, as kernels of training read them.
// Shapes:   those of TrainStep's fields.
// Units:    none.
// Memory:   one area on the device; on the host pinned ones, of which several may be filled or copied at a time. They grow to the largest
//           micro-batch.
// Threads:  a PinnedBatch: one at a time, but that may be another thread than the one that uploads. DeviceBatch: one.
// Errors:   exhausted: no memory; device_lost; invalid_argument: an id beyond the vocabulary.
// Source:   the gradient of the embedding wants tokens sorted by id, which the host does while the GPU works on the micro-batch before.
#pragma once

#include <span>
#include <vector>

#include "k3/ops/train_step.h"
#include "k3/tensor/tensor.h"

namespace k3::train {

class PinnedBatch;

struct MicroBatch {
  std::span<const int32_t> tokens, targets;  // targets may be empty
  std::span<const int64_t> offsets;
  const uint8_t* valid = nullptr;  // [T], 0: padding, not counted for the router's balance; null: every token counts
  PinnedBatch* pinned = nullptr;   // for a GPU: the same, filled already
};

// A micro-batch as it goes to a GPU.
class PinnedBatch {
 public:
  // Waits until the last upload of it has been made.
  Status fill(const MicroBatch& batch, int64_t vocab);

 private:
  friend class DeviceBatch;
  int64_t sort_by_id(std::span<const int32_t> tokens, int64_t vocab, int32_t* order, int32_t* starts, int32_t* ids);

  Storage memory_;
  EventHandle copied_;
  std::vector<int32_t> counts_;
  int64_t row_bytes_ = 0, valid_at_ = 0, offsets_at_ = 0, bytes_ = 0;
  int64_t distinct_ = 0, sequences_ = 0, longest_ = 0;
  bool has_valid_ = false;
};

class DeviceBatch {
 public:
  explicit DeviceBatch(Device device) : device_(device) {}

  // Queues the copies; fills a pinned area of its own when the batch has none.
  Status stage(const MicroBatch& batch, int64_t vocab, Stream stream);

  ops::TrainStep step;
  const uint8_t* valid = nullptr;  // [T] in the device's memory; null: every token counts

 private:
  static constexpr size_t kTurns = 3;
  Status upload(PinnedBatch& from, Stream stream);

  Device device_;
  Storage memory_;
  PinnedBatch turns_[kTurns];
  size_t next_ = 0;
};

}  // namespace k3::train
