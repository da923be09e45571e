// Internal to ops/cuda. Benches of kernels on a GPU: CUDA events, medians, L2 overwritten before each timed call, ceilings and
// floors of the same process; a JSON line a case. bench/gpu/README.md says how to read it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace k3::ops::cuda {

// Everything a case reports about one timed call.
struct BenchLine {
  std::string kernel;   // "kda_decode"
  std::string name;     // "H=96 B=128 f32"
  double bytes = 0;     // each input read once, each output written once
  double flops = 0;     // of the matrix units
  double must = 0;      // ratio to the floor that is release quality (kernels.md 9); 0: none
  double aim = 0;
  std::string note;     // what the figure includes
};

class Bench {
 public:
  explicit Bench(std::string_view filter);

  double copy_gbps() const { return copy_gbps_; }    // read + written
  double gemm_tflops() const { return gemm_tflops_; }  // BF16, 8192^3, random data

  bool wants(std::string_view kernel, std::string_view name) const;
  // Times fn as a call of its own (events around it) and as replay of a captured graph of `graph_calls` calls (0: not
  // captured); fn(i) is given a running index to rotate among buffers. Prints the line.
  void run(const BenchLine& line, const std::function<void(cudaStream_t, int)>& fn, int graph_calls = 8);

  cudaStream_t stream() const { return stream_; }
  void table() const;  // all lines so far, as a short table

 private:
  struct Row {
    BenchLine line;
    double eager_us = 0, graph_us = 0, floor_us = 0;
  };
  double time_us(const std::function<void()>& call, int calls) const;

  std::string filter_;
  cudaStream_t stream_ = nullptr;
  void* flush_ = nullptr;
  double copy_gbps_ = 0, gemm_tflops_ = 0;
  std::vector<Row> rows_;
};

// Each *_gpu_bench.cc registers its cases: static const BenchRegistration kda("kda_decode", [](Bench& bench) { ... });
struct BenchRegistration {
  BenchRegistration(std::string_view kernel, std::function<void(Bench&)> cases);
};

}  // namespace k3::ops::cuda
