// Purpose:  routed experts of layers that do not fit a GPU: all of them in pinned host memory, in the form its kernels read, and as
//           many as there is room for in slots on the GPU, which every layer has its share of.
// Shapes:   a layer has `experts` experts of expert_bytes each (packed w1 and w3, then w2). Slots are numbered over all layers; the
//           last 2 * staged ones are two areas through which long steps read what is not on the GPU.
// Units:    bytes, experts.
// Memory:   owns host parts (one a layer), slots and tables. Nothing is allocated after finish().
// Threads:  loading: one thread. Steps take turns: hold step_mutex() from begin_step to end_step; the streams of different steppers
//           wait for each other.
// Errors:   exhausted: pinned or device memory, with the size; those of the device.
// Source:   docs/cuda.md. The tables are kept by the GPU (cuda/moe_fetch_cuda.h); short steps read experts without a slot where they
//           lie, over the bus, so that nothing waits for the host and graphs can be captured. Long steps want nearly every expert:
//           the copy engine brings them in parts while the part before is computed. Results are bit for bit those of experts that
//           are all on the GPU: the same kernels do the same sums.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "k3/tensor/device.h"
#include "k3/tensor/tensor.h"

namespace k3::ops {

struct ExpertStoreShape {
  int64_t layers = 0, experts = 0, expert_bytes = 0;
  int64_t slots = 0;   // of all layers; fewer than layers * experts
  int64_t staged = 1;  // of one staging area

  int64_t first_slot(int64_t layer) const { return slots * layer / layers; }
  int64_t slots_of(int64_t layer) const { return first_slot(layer + 1) - first_slot(layer); }
  int64_t device_bytes() const;  // slots, staging areas and tables
  int64_t host_bytes() const { return layers * experts * expert_bytes; }
};

struct ExpertStoreStats {
  int64_t wanted = 0, missing = 0, admitted = 0;  // experts of short steps: read; over the bus; of those, kept
  int64_t staged_bytes = 0, staged_wanted = 0;    // of long steps: copied; experts read
  int64_t expert_bytes = 0, slots = 0, experts = 0;
  int64_t bus_bytes() const { return missing * expert_bytes + staged_bytes; }
};

class ExpertStore {
 public:
  static Result<std::unique_ptr<ExpertStore>> create(Device device, const ExpertStoreShape& shape);

  // Loading: the experts of the layers in order, then slots and tables. The stream has run the copies into add_layer's memory.
  // scores: [layers, experts] to begin with (cuda/moe_fetch_cuda.h), or none; the highest of each layer have its slots at first.
  Result<std::byte*> add_layer();
  Status finish(Stream stream, std::span<const float> scores = {});

  std::mutex& step_mutex() { return mutex_; }
  // staged: the step's kernels take experts in parts (stage); waits for the GPU then, to see which are there.
  Status begin_step(bool staged, Stream stream);
  Status end_step(Stream stream);

  // What kernels see of a layer.
  struct Layer {
    const std::byte* host;
    std::byte* slots;  // slot 0 of all
    int32_t *slot, *owner, *list;
    float* score;
    uint64_t* uses;
    void *counts, *staged_counts;  // MoeFetchCounts
    int64_t first_slot, slot_count;
  };
  Layer layer(int64_t l) const;

  // The experts of a layer from `begin` on, as many as the next staging area holds of those without a slot: `end` is behind the
  // last, `first_slot` the area. Queues the copies and makes the stream wait for them; staged_done says that the kernels that read
  // them are queued.
  struct Part {
    int64_t begin = 0, end = 0, first_slot = 0;
  };
  Result<Part> stage(int64_t l, int64_t begin, Stream stream);
  Status staged_done(Stream stream);

  const ExpertStoreShape& shape() const { return shape_; }
  Result<ExpertStoreStats> stats();  // waits for the GPU
  Result<std::vector<uint64_t>> uses();  // [layers, experts] since the start: tokens that chose them; likewise

 private:
  ExpertStore(Device device, const ExpertStoreShape& shape) : device_(device), shape_(shape) {}
  std::byte* slot_at(int64_t slot) const { return slots_.data() + slot * shape_.expert_bytes; }

  std::mutex mutex_;
  Device device_;
  ExpertStoreShape shape_;
  std::vector<Storage> host_;
  Status fetch_tables(int64_t from, int64_t to);  // to the mirror
  Storage slots_, tables_;  // tables: slot, owner, score, list, uses, counts
  int64_t owner_at_ = 0, score_at_ = 0, list_at_ = 0, uses_at_ = 0, counts_at_ = 0;
  Storage mirror_;          // of the tables, pinned
  StreamHandle copies_;
  EventHandle last_step_;
  struct Area {
    EventHandle full, free;
  };
  Area areas_[2];
  int next_area_ = 0;
  int64_t staged_bytes_ = 0;
};

}  // namespace k3::ops
