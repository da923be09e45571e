// Purpose:  routed experts in a fixed number of slots of memory, read from the checkpoint when they are wanted: the whole
//           top-k of a layer in flight at once, computed in groups as they arrive.
// Shapes:   ids [T, topk] i32.
// Units:    bytes, seconds.
// Memory:   owns the slots (memory is taken as they fill). A step's experts are protected until their group is computed.
// Threads:  one step at a time.
// Errors:   visit: what a read or the check of scales says, with the name of the expert; the cache stays usable.
// Source:   docs/larger-than-memory.md. Eviction: use counts that halve every kHalfLife steps, so an expert's place in the
//           order depends on how often and how lately it was used; predictions never change results, only when bytes come.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "k3/base/disk_reader.h"
#include "k3/format/checkpoint.h"
#include "k3/model/stream/expert_table.h"
#include "k3/model/stream/stream_stats.h"
#include "k3/ops/ctx.h"
#include "k3/tensor/tensor.h"

namespace k3 {

class ExpertCache {
 public:
  static Result<ExpertCache> create(const Checkpoint& checkpoint, const Config& config, ExpertTable table, DiskReader& reader,
                                    std::vector<int32_t> files, int64_t slots);

  // Tokens of every expert so far, [layers * experts]; dense layers have zeros.
  const std::vector<uint64_t>& counts() const { return counts_; }
  // Counts of an earlier run: the hottest experts are read now and half of the slots kept for them.
  Status warm(const std::vector<uint64_t>& counts, ThreadPool& pool);

  // Names what a layer wants; reads of what is missing begin.
  void begin(int64_t layer, const Tensor& ids);
  // Calls body(subset, experts) for groups of begin()'s experts until each was in one group.
  using Body = std::function<void(std::span<const int32_t> subset, std::span<const ops::ExpertWeights> experts)>;
  Status visit(ThreadPool& pool, const Body& body);

  // Experts that `layer` is expected to want, likeliest first: some are read ahead when the disk is free.
  void predict(int64_t layer, std::span<const int32_t> ids);
  bool wants_predictions() const;

  void add_to(StreamStats& stats) const;
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }

 private:
  struct Slot {
    int64_t layer = -1, expert = -1;
    DiskTicket ticket;        // reading
    bool ready = false;       // read, checked, in the order of memory
    bool wanted = false;      // by the layer between begin() and its group
    bool pinned = false;      // hot in an earlier run
    bool prefetched = false;  // on a prediction, and not wanted yet
    double score = 0;
    ops::ExpertWeights weights;
  };
  enum class Choice { any, idle };  // idle: not one that the prediction would have to wait for

  ExpertCache(const Checkpoint& checkpoint, const Config& config, ExpertTable table, DiskReader& reader,
              std::vector<int32_t> files)
      : checkpoint_(&checkpoint),
        config_(&config),
        table_(std::move(table)),
        reader_(&reader),
        files_(std::move(files)) {}

  size_t key(int64_t layer, int64_t expert) const { return static_cast<size_t>(layer * table_.experts() + expert); }
  std::byte* memory_of(int32_t slot) { return memory_.data() + slot * table_.slot_bytes(); }
  int32_t victim(Choice choice);
  void drop(Slot& slot);
  void read_into(int32_t slot, int64_t layer, int64_t expert, DiskPriority priority);
  void touch(int32_t slot);
  void start_misses();
  Status take(int32_t slot, ThreadPool& pool);
  void judge_prediction();
  void end_visit();

  const Checkpoint* checkpoint_;
  const Config* config_;
  ExpertTable table_;
  DiskReader* reader_;
  std::vector<int32_t> files_;  // of the reader, by shard
  Storage memory_;
  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;       // by key, -1: not here
  std::vector<uint64_t> counts_;       // by key
  std::vector<float> heat_;            // by key: decayed uses
  std::vector<double> heat_time_;      // by key: time of the last use
  std::vector<ops::ExpertWeights> view_;  // [experts], what visit() shows
  std::vector<DiskRequest> reads_;

  // Of the layer at work.
  int64_t layer_ = -1, tokens_ = 0;
  std::vector<int32_t> missing_;  // not started yet, from next_missing_
  size_t next_missing_ = 0;
  std::vector<int32_t> pending_;  // slots that wait to be computed, in the order of their reads

  // Of predictions.
  int64_t predicted_layer_ = -1;
  std::vector<int32_t> predicted_;
  int64_t prefetch_limit_ = 2;
  double usefulness_ = 1;

  double time_ = 0;  // in steps; a layer is a fraction of one
  int64_t visits_ = 0;
  StreamStats stats_;
};

}  // namespace k3
