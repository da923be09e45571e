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

  double tokens_per_second(double time) const { return static_cast<double>(test.total_tokens()) / time; }
};

struct BenchHeading {
  std::string model, isa;
  int64_t parameters = 0, active_bytes = 0;
  double step_bytes = 0, step_flops = 0;  // of one decoded token of one sequence
  bool deterministic = false;
  std::string lossy;  // "int8 trunk, int8 act"; empty when nothing is
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
  static std::vector<Cell> all_cells(const BenchOptions& options, const std::vector<BenchCase>& cases);
  void write_result(JsonWriter& writer, const BenchResult& result) const;
  void print_json(const CeilingMeter* ceilings) const;

  std::string output_;
  BenchHeading heading_;
  std::vector<Cell> cells_;
  std::string heading_text_, dropped_;
  TextTable table_;
  std::vector<BenchResult> results_;
};

}  // namespace k3::cli
