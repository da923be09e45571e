// The ceilings of the machine as `k3 bench` measures and prints them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "k3/base/json_writer.h"
#include "k3/cli/bench/samples.h"
#include "k3/cli/options.h"
#include "k3/ops/roofline/roofline.h"

namespace k3::cli {

// One line of the answer: reading, or an arithmetic unit at an instruction set.
struct CeilingKind {
  bool read = false;
  ops::Unit unit = ops::Unit::fp32_fma;
  ops::Isa isa = ops::Isa::scalar;

  std::string label() const;  // "read", "fp32 avx512", "bf16 dot", "amx"
};

// What this machine has, up to a level.
std::vector<CeilingKind> ceiling_kinds(ops::Isa isa);

// A moment's ceilings for the tests around it.
struct CeilingMoment {
  double read_bytes_per_second = 0, flops_per_second = 0;
};

// Owns the read buffer and collects every sample of a run, by thread count.
class CeilingMeter {
 public:
  // Takes the memory of the read buffer. exhausted when it is not there.
  static Result<CeilingMeter> create(ThreadPool& pool, ops::Isa isa);

  // About 60 ms: reading and the given unit.
  CeilingMoment moment(ThreadPool& pool, ops::Unit unit);
  // Every kind, `samples` times in turn.
  void survey(ThreadPool& pool, int samples);

  ops::Isa isa() const { return isa_; }
  int64_t buffer_bytes() const { return buffer_.size_bytes(); }
  std::vector<int> threads() const;
  const Samples* find(int threads, const std::string& label) const;  // null: not measured

  std::string table() const;
  std::string markdown() const;
  void write_json(JsonWriter& writer) const;  // an array, an object a thread count
  std::string summary() const;                // lines for people: "1 thread: read 20.1 GB/s, amx 1.9 TFLOP/s"

 private:
  CeilingMeter(Storage buffer, ops::Isa isa) : buffer_(std::move(buffer)), isa_(isa) {}
  double sample(ThreadPool& pool, const CeilingKind& kind);

  Storage buffer_;
  ops::Isa isa_;
  std::map<int, std::map<std::string, Samples>> samples_;
};

// `k3 bench ceiling`.
Status ceiling_command(const BenchOptions& options);

}  // namespace k3::cli
