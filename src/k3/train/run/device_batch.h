// Purpose:  the numbers of a micro-batch in a GPU's memory, as kernels of training read them.
// Shapes:   those of TrainStep's fields.
// Units:    none.
// Memory:   one area on the device, a few pinned ones on the host that take turns: a copy may be under way while the next
//           micro-batch is prepared.
// Threads:  one.
// Errors:   exhausted: no memory; device_lost.
// Source:   the gradient of the embedding wants tokens sorted by id, which the host does while the GPU works on the micro-batch before.
#pragma once

#include <span>
#include <vector>

#include "k3/ops/train_step.h"
#include "k3/tensor/tensor.h"

namespace k3::train {

class DeviceBatch {
 public:
  explicit DeviceBatch(Device device) : device_(device) {}

  // Queues the copies. `targets` and `valid` may be empty; `nats` is where the loss goes.
  Status stage(std::span<const int32_t> tokens, std::span<const int32_t> targets, std::span<const int64_t> offsets, const uint8_t* valid,
               int64_t vocab, Stream stream);
  ops::TrainStep step;
  const uint8_t* valid = nullptr;  // [T] in the device's memory; null: every token counts

 private:
  static constexpr size_t kTurns = 3;
  struct Turn {
    Storage pinned;
    EventHandle copied;
  };
  Status grow(int64_t bytes);
  int64_t sort_by_id(std::span<const int32_t> tokens, int64_t vocab, int32_t* order, int32_t* starts, int32_t* ids);

  Device device_;
  Storage memory_;
  Turn turns_[kTurns];
  size_t next_ = 0;
  std::vector<int32_t> counts_;
};

}  // namespace k3::train
