// What `k3 bench` prints: rows as they are ready for people, one document at the end for programs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "k3/cli/bench/bench_cases.h"
#include "k3/cli/bench/ceilings.h"
#include "k3/cli/bench/samples.h"
#include "k3/cli/bench/stream_meter.h"
#include "k3/cli/bench/text_table.h"
#include "k3/cli/perplexity.h"
#include "k3/model/step_cost.h"

namespace k3::cli {

// What only a GPU's tests have. Times are by the GPU's clock: from the copy of a step's arrays to its last kernel.
struct GpuFigures {
  Samples steps;               // seconds of every step
  Samples wall;                // the same by the host's clock, with the fetch of logits
  double floor_seconds = 0;    // of a repetition
  double experts = 0;          // that a layer's tokens chose in a step, of those that are here; counted on the device
  int64_t local_experts = 0;
};

// One kind of layer of one test, all its layers together.
struct LayerFigure {
  std::string kind;
  int64_t layers = 0;
  double seconds = 0, floor_seconds = 0, experts = 0;
  bool read_bound = false;
};

// What a GPU can do, measured in the same run.
struct GpuCeilings {
  double copy_bytes_per_second = 0;  // read and written
  double gemm_flops_per_second = 0;  // BF16
  double pinned_bytes_per_second = 0;  // from pinned host memory; 0: nothing was loaded
  int64_t weight_bytes = 0;            // of the model, and the seconds until they were there
  double load_seconds = 0;
};

struct BenchResult {
  BenchCase test;
  std::string settings;  // "bf16", "exact deterministic", "bf16, int8 trunk, int8 act": what a row is labelled with
  StepCost cost;         // of one repetition
  Samples seconds;
  Samples share;  // of the floor, by the ceilings around each repetition; empty without ceilings
  Samples read_ceiling, flops_ceiling;
  std::string unit;         // of the floor's arithmetic: "amx", "bf16 dot", "fp32"
  bool read_bound = false;  // which side sets the floor
  std::optional<PerplexityResult> quality;
  std::optional<StreamFigures> streaming;
  std::optional<GpuFigures> gpu;
  std::vector<LayerFigure> layers;  // with --layers

  double tokens_per_second(double time) const { return static_cast<double>(test.total_tokens()) / time; }
};

struct BenchHeading {
  std::string model, isa;
  int64_t parameters = 0, active_bytes = 0;
  double step_bytes = 0, step_flops = 0;  // of one decoded token of one sequence
  bool deterministic = false;
  std::string lossy;  // "int8 trunk, int8 act"; empty when nothing is
  std::optional<GpuCeilings> gpu;
};

class BenchReport {
 public:
  // `cases` (at least one) settle which columns a table needs; `terminal_width` 0: no limit.
  BenchReport(const BenchOptions& options, BenchHeading heading, const std::vector<BenchCase>& cases, int terminal_width);

  void begin() const;
  void add(BenchResult result);
  void finish(const CeilingMeter* ceilings) const;

 private:
  struct Cell {
    Column column;
    std::string (*text)(const BenchResult&);
    int drop = 0;  // dropped from a narrow terminal, largest first; 0: never
  };
  static std::vector<Cell> gpu_cells(const std::vector<BenchCase>& cases);
  static std::vector<Cell> all_cells(const BenchOptions& options, const std::vector<BenchCase>& cases);
  void write_result(JsonWriter& writer, const BenchResult& result) const;
  void print_layers() const;
  void write_gpu(JsonWriter& writer) const;
  void print_json(const CeilingMeter* ceilings) const;

  std::string output_;
  BenchHeading heading_;
  std::vector<Cell> cells_;
  std::string heading_text_, dropped_;
  TextTable table_;
  std::vector<BenchResult> results_;
};

}  // namespace k3::cli
