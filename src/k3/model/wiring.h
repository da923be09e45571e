// Internal to model. Which tensors of a checkpoint make a layer, where their bytes go in an arena, and what is done to them
// once they are there. Used for layers that stay in memory and for those that are read every step.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "k3/base/disk_reader.h"
#include "k3/model/params.h"
#include "k3/model/weights.h"

namespace k3 {

// One read: stored bytes go to `target` as they are, or to `stored` and from there, widened to FP32, to the target.
struct ReadJob {
  std::string name;
  TensorInfo info;
  std::byte* target = nullptr;
  std::byte* stored = nullptr;  // null without widening, and where the arena keeps no room for it
  bool widen = false;
  bool scales = false;
  bool packed = false;       // MXFP4 codes, brought into the order of memory
  bool int8_scales = false;  // of an 8-bit trunk

  bool needs_widening() const { return widen && info.dtype != DType::f32; }
};

// What follows the read of a job: bytes in `stored` become the target, codes their order in memory, scales are checked.
Status finish_job(const Checkpoint& checkpoint, const ReadJob& job, const std::byte* stored);

// A read of the file and what follows it.
Status run_job(const Checkpoint& checkpoint, const ReadJob& job);

// Positions for byte ranges of files, with room for the slack of DiskReader around each run of ranges that lie behind each
// other in a file and keep the alignment. Such a run can be one read.
class SlackPlacer {
 public:
  // memory: 64-byte aligned, for vectors of FP32. file: as the offset in the file is aligned to a page, so that the disk
  // writes the bytes to where they belong and nobody moves them; the products read weights at any 8-byte alignment.
  enum class Align { memory, file };
  int64_t place(int32_t shard, int64_t offset, int64_t bytes, Align align);
  void end_run() { run_shard_ = -1; }  // the next range begins a read of its own
  int64_t place_memory(int64_t bytes);  // no read goes there
  int64_t used() const { return used_; }

 private:
  int64_t used_ = 0, run_at_ = 0, run_begin_ = 0, run_end_ = 0;
  int32_t run_shard_ = -1;
};

// The two halves of an AttnRes site: norm times projection is the query. After the reads it takes the place of the norm; in training
// it has one of its own.
struct Fold {
  Tensor norm, projection, query;
};

// What lies around the bytes of a read in an arena: nothing (pread), or the slack of a DiskReader, which reads each tensor
// by itself or runs of tensors at once.
enum class Slack { none, tensors, runs };

// Two passes over the same code: the first sizes an arena and checks shapes, the second places and wires views.
class ArenaPlan {
 public:
  ArenaPlan(const Checkpoint& checkpoint, const Config& config, Slack slack)
      : checkpoint_(checkpoint), config_(config), slack_(slack) {}

  Status matrix(ParamId id, int64_t layer, int64_t expert, ops::Weight& out);
  // A small parameter, widened to FP32; `dims` is the view the layers want.
  Status vector(ParamId id, int64_t layer, std::initializer_list<int64_t> dims, Tensor& out);
  // [heads], [head_dim] with zero padding, or [1, 1, heads, 1]: all are released shapes.
  Status a_log(int64_t layer, Tensor& out);
  // The two halves of an AttnRes site.
  Status res(ParamId norm, ParamId proj, int64_t layer, Tensor& query);

  // MXFP4 codes stay as the file has them: a GPU's kernels have an order of their own.
  void keep_stored_order() { stored_order_ = true; }

  // Vectors stay in the dtype they are stored in, and queries lie beside the parameters they are made of.
  void for_training() { training_ = true; }
  const std::vector<Fold>& folds() const { return folds_; }

  int64_t used() const { return placer_.used(); }
  void start_placing(std::byte* base);
  const std::vector<ReadJob>& jobs() const { return jobs_; }
  int64_t read_bytes() const;

  // After the jobs are finished: A_log padding is checked, AttnRes sites are folded.
  Status complete() const;

 private:
  std::byte* place(int64_t bytes);
  std::byte* place_read(const TensorInfo& info, SlackPlacer::Align align);
  Result<TensorInfo> find(const std::string& name, const std::vector<int64_t>& dims) const;
  Error dtype_error(const std::string& name, const TensorInfo& info) const;
  Status packed(const std::string& name, const std::vector<int64_t>& dims, ops::Weight& out);
  Status int8(const ParamFamily& family, const std::string& name, const TensorInfo& codes, ops::Weight& out);
  Status widened(const std::string& name, const TensorInfo& info, std::initializer_list<int64_t> dims, Tensor& out);

  const Checkpoint& checkpoint_;
  const Config& config_;
  Slack slack_;
  bool stored_order_ = false;
  bool training_ = false;
  std::byte* base_ = nullptr;
  SlackPlacer placer_;
  std::vector<ReadJob> jobs_;
  std::vector<Fold> folds_;
  std::vector<std::pair<std::string, Tensor>> a_logs_;
};

// Reads in parallel what a plan has placed; `done` goes up by the bytes read, the calling thread's share reports progress.
Status run_jobs(const Checkpoint& checkpoint, const std::vector<ReadJob>& jobs, ThreadPool& pool, std::atomic<int64_t>& done,
                int64_t total, const LoadProgress& progress);

// Gives the targets of jobs their values, in whatever way.
using FillJobs = std::function<Status(const std::vector<ReadJob>&)>;
// Weights in host memory, an arena a layer; exhausted when they do not fit.
Result<WeightSet> place_weights(const Checkpoint& checkpoint, const Config& config, const FillJobs& fill);

Status wire_trunk(ArenaPlan& plan, const Config& c, int64_t l, LayerWeights& w);  // everything but routed experts
Status wire_expert(ArenaPlan& plan, int64_t l, int64_t e, ops::ExpertWeights& w);
Status wire_final(ArenaPlan& plan, const Config& c, WeightSet& w);  // final norm and AttnRes site
Status wire_tables(ArenaPlan& plan, const Config& c, WeightSet& w);  // embedding and lm_head

}  // namespace k3
