// Purpose:  what a step's kernels read that the host decides: tokens, offsets, lengths, slots, block tables, exports, as arrays in
//           device memory at addresses that do not change, filled by one copy a step.
// Shapes:   those of Batch; tables [B, longest table].
// Units:    tokens.
// Memory:   owns a pinned and a device buffer of the same layout. stage() waits until the copy of the step before has been read.
// Threads:  one thread.
// Errors:   exhausted when a step needs more than create() was told; those of the device.
// Source:   ops/ctx.h (DeviceStep).
#pragma once

#include <span>
#include <vector>

#include "k3/model/batch.h"
#include "k3/ops/ctx.h"

namespace k3 {

struct DeviceStepLimits {
  int64_t tokens = 0, sequences = 0, table_pages = 0;  // of a step; pages: most of one sequence
  int64_t exports = 0, tables = 1, slot_groups = 1;     // different block tables and slot arrays among the layers
};

class DeviceStepBuffers {
 public:
  static Result<DeviceStepBuffers> create(Device device, const DeviceStepLimits& limits);

  // Fills the buffers from a Batch whose spans and tables lie on the host and whose caches lie on the device, and queues their copy.
  Status stage(const Batch& batch, Stream stream);

  const ops::DeviceStep& step() const { return step_; }
  std::span<const LayerCache> caches() const { return caches_; }  // with tables, slots and exports on the device

 private:
  // The next `count` ints of the buffers: where to write, and where kernels will read.
  struct Slice {
    int32_t* host = nullptr;
    const int32_t* device = nullptr;
  };
  Result<Slice> take(int64_t count);
  Result<const int32_t*> ints(std::span<const int64_t> values);
  Status stage_sequences(const Batch& batch);
  Status stage_state(const LayerCache& from, int64_t sequences, LayerCache& to);
  Status stage_pages(const LayerCache& from, LayerCache& to);

  DeviceStepLimits limits_;
  Storage host_, device_;
  int64_t used_ = 0;
  EventHandle copied_;
  bool in_flight_ = false;
  ops::DeviceStep step_;
  std::vector<LayerCache> caches_;
  std::vector<int64_t> lengths_;
  // What has been staged of this step already: layers share arrays.
  struct Staged {
    const void* from;
    const int32_t* to;
  };
  struct StagedExports {
    const void* from;
    ops::DeviceExports to;
  };
  std::vector<Staged> slots_, tables_;
  std::vector<StagedExports> exports_;
};

}  // namespace k3
