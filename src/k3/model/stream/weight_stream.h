// Purpose:  the weights of a model that is larger than its memory: resident layers, layers read every step into two buffers
//           while others compute, lm_head in blocks of rows, embedding rows on demand, routed experts in a cache.
// Shapes:   as in weights.h and forward.h.
// Units:    bytes, seconds.
// Memory:   what the MemoryPlan promises, taken at open (the expert cache as it fills). A layer's weights are valid until
//           the next call of layer().
// Threads:  one step at a time: hold step_mutex() from begin_step to the end of the step. The reader has threads of its own.
// Errors:   a read that fails, a file that changed, a scale byte that is no scale: the step has failed, the stream stays
//           usable. Messages name file, offset and tensor.
// Source:   docs/larger-than-memory.md.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/disk_reader.h"
#include "k3/model/stream/expert_cache.h"
#include "k3/model/stream/memory_plan.h"
#include "k3/model/stream/row_cache.h"
#include "k3/model/stream/stream_stats.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"

namespace k3 {

struct StreamOptions {
  std::string expert_stats;  // read at open if the file is there, written by save_expert_stats; empty: none
  DiskOptions disk;
};

class WeightStream {
 public:
  static Result<std::unique_ptr<WeightStream>> open(Checkpoint checkpoint, const Config& config, ExpertTable experts,
                                                    const MemoryPlan& plan, const StreamOptions& options, ThreadPool& pool,
                                                    const LoadProgress& progress);

  std::mutex& step_mutex() { return mutex_; }
  void begin_step(int64_t tokens);
  Status embedding(std::span<const int32_t> ids, const Tensor& out);
  Result<const LayerWeights*> layer(int64_t l);
  Status lm_head(const ops::Ctx& ctx, const Tensor& x, const Tensor& logits);
  ExpertCache& experts() { return *experts_; }
  // Guesses from a layer's MoE input what the next layer will route to, and reads some of it ahead.
  void predict_next(const ops::Ctx& ctx, int64_t l, const Tensor& x);
  const WeightSet& resident() const { return set_; }  // no experts, no embedding, streamed layers empty

  StreamStats stats() const;
  const DiskReader& reader() const { return *reader_; }
  Status save_expert_stats() const;

 private:
  // The trunk of a layer on its way into memory.
  struct Load {
    int64_t layer = -1;
    bool ready = false;
    LayerWeights weights;
    std::unique_ptr<ArenaPlan> plan;
    std::vector<DiskTicket> tickets;  // of each job
  };

  WeightStream(Checkpoint checkpoint, const Config& config, const MemoryPlan& plan)
      : checkpoint_(std::move(checkpoint)), config_(config), plan_(plan) {}
  Status open_files(const StreamOptions& options);
  Status load_resident(const LoadProgress& progress);
  Status load_final();
  Status load_head();
  Result<std::vector<ReadJob>> table_jobs(ParamId id, ops::Weight& weight);
  Status load_head_scales(ReadJob job);
  std::vector<DiskTicket> start_jobs(const ArenaPlan& plan, DiskPriority priority);
  Status finish_jobs(const ArenaPlan& plan, std::vector<DiskTicket>& tickets);
  Status start_layer(Load& load, int64_t l, std::byte* at, DiskPriority priority);
  Status finish_layer(Load& load);
  Status read_ahead(int64_t l);
  int64_t head_pitch() const;  // bytes from one buffer of lm_head rows to the next
  void start_head_block();

  std::mutex mutex_;
  Checkpoint checkpoint_;
  Config config_;
  MemoryPlan plan_;
  std::string stats_path_;
  std::optional<DiskReader> reader_;
  std::vector<int32_t> files_;  // of the reader, by shard
  WeightSet set_;
  Storage buffers_[2];
  Load loads_[2];
  std::vector<int64_t> streamed_;  // layers
  int64_t current_ = -1;           // layer whose weights are in use

  TensorInfo head_info_;
  std::string head_name_;
  Storage head_memory_, head_buffers_, head_scales_;
  std::vector<DiskTicket> head_tickets_;      // of each buffer
  int64_t head_started_ = 0, head_done_ = 0;  // blocks, counted over all steps
  int64_t head_blocks_ = 0;

  std::optional<RowCache> rows_;
  std::optional<ExpertCache> experts_;
  StreamStats stats_;
};

// Where forward() gets weights: all in memory, or a stream.
struct WeightSource {
  const WeightSet* all = nullptr;
  WeightStream* stream = nullptr;

  const WeightSet& globals() const { return stream != nullptr ? stream->resident() : *all; }
  Status embedding(const ops::Ctx& ctx, std::span<const int32_t> ids, const Tensor& out) const;
  Result<const LayerWeights*> layer(int64_t l) const;
  Status lm_head(const ops::Ctx& ctx, const Tensor& x, const Tensor& logits) const;
};

}  // namespace k3
