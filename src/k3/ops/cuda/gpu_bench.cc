// The runner behind gpu_bench.h: k3_gpu_bench [--filter TEXT]. TEXT may name several, separated by commas; a case runs when its
// "kernel name" contains one of them.
#include "k3/ops/cuda/gpu_bench.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3::ops::cuda {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;
constexpr int kRepeats = 20;

struct Registered {
  std::string kernel;
  std::function<void(Bench&)> cases;
};
std::vector<Registered>& registry() {
  static std::vector<Registered> all;
  return all;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

}  // namespace

BenchRegistration::BenchRegistration(std::string_view kernel, std::function<void(Bench&)> cases) {
  registry().push_back({std::string(kernel), std::move(cases)});
}

Bench::Bench(std::string_view filter) : filter_(filter) {
  gpu_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  gpu_check(cudaMalloc(&flush_, kFlushBytes), "cudaMalloc");
  const Ceilings ceilings = measure_ceilings(stream_);
  copy_gbps_ = ceilings.copy_gbps;
  gemm_tflops_ = ceilings.gemm_tflops;
  cudaDeviceProp properties{};
  gpu_check(cudaGetDeviceProperties(&properties, 0), "device");
  fmt::print("{{\"device\":\"{}\",\"copy_gbps\":{:.1f},\"gemm_tflops\":{:.1f}}}\n", properties.name, copy_gbps_, gemm_tflops_);
}

bool Bench::wants(std::string_view kernel, std::string_view name) const {
  if (filter_.empty()) return true;
  const std::string whole = fmt::format("{} {}", kernel, name);
  for (size_t at = 0; at <= filter_.size();) {
    const size_t comma = std::min(filter_.find(',', at), filter_.size());
    if (comma > at && whole.find(filter_.substr(at, comma - at)) != std::string::npos) return true;
    at = comma + 1;
  }
  return false;
}

// Median of event times of single calls, L2 overwritten before each.
double Bench::time_us(const std::function<void()>& call, int calls) const {
  cudaEvent_t begin, end;
  gpu_check(cudaEventCreate(&begin), "event");
  gpu_check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  double total_ms = 0;
  for (int i = 0; i < kRepeats + 3 && total_ms < 2000; ++i) {
    gpu_check(cudaMemsetAsync(flush_, i, kFlushBytes, stream_), "memset");
    gpu_check(cudaEventRecord(begin, stream_), "event");
    call();
    gpu_check(cudaEventRecord(end, stream_), "event");
    gpu_check(cudaEventSynchronize(end), "kernel");
    float ms = 0;
    gpu_check(cudaEventElapsedTime(&ms, begin, end), "event");
    total_ms += static_cast<double>(ms);
    if (i >= 3) times.push_back(static_cast<double>(ms) * 1e3 / calls);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times.empty() ? std::nan("") : median(times);
}

void Bench::run(const BenchLine& line, const std::function<void(cudaStream_t, int)>& fn, int graph_calls) {
  if (!wants(line.kernel, line.name)) return;
  Row row{line};
  row.floor_us = std::max(line.bytes / copy_gbps_ * 1e-3, line.flops / gemm_tflops_ * 1e-6);
  int index = 0;
  row.eager_us = time_us([&] { fn(stream_, index++); }, 1);
  if (graph_calls > 0) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    gpu_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < graph_calls; ++i) fn(stream_, index++);
    gpu_check(cudaStreamEndCapture(stream_, &graph), "capture");
    gpu_check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    row.graph_us = time_us([&] { gpu_check(cudaGraphLaunch(exec, stream_), "graph"); }, graph_calls);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  const double best = row.graph_us > 0 ? std::min(row.graph_us, row.eager_us) : row.eager_us;
  fmt::print(
      "{{\"kernel\":\"{}\",\"case\":\"{}\",\"eager_us\":{:.2f},\"graph_us\":{:.2f},\"floor_us\":{:.3f},\"ratio\":{:.3f},\"gbps\":{:.0f},"
      "\"tflops\":{:.1f},\"must\":{},\"aim\":{},\"note\":\"{}\"}}\n",
      line.kernel, line.name, row.eager_us, row.graph_us, row.floor_us, best / row.floor_us, line.bytes / best * 1e-3,
      line.flops / best * 1e-6, line.must, line.aim, line.note);
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

void Bench::table() const {
  fmt::print("\n{:<14} {:<44} {:>10} {:>10} {:>10} {:>7} {:>6} {:>6}\n", "kernel", "case", "eager us", "graph us", "floor us", "ratio",
             "must", "aim");
  for (const Row& row : rows_) {
    const double best = row.graph_us > 0 ? std::min(row.graph_us, row.eager_us) : row.eager_us;
    const double ratio = best / row.floor_us;
    const char* mark = row.line.must == 0 ? "" : ratio <= row.line.aim ? "aim" : ratio <= row.line.must ? "ok" : "SLOW";
    fmt::print("{:<14} {:<44} {:>10.2f} {:>10.2f} {:>10.3f} {:>7.2f} {:>6} {:>6} {}\n", row.line.kernel, row.line.name, row.eager_us,
               row.graph_us, row.floor_us, ratio, row.line.must, row.line.aim, mark);
  }
}

}  // namespace k3::ops::cuda

int main(int argc, char** argv) {
  using namespace k3::ops::cuda;
  std::string_view filter;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--filter") filter = argv[i + 1];
  }
  if (!gpu_present()) {
    fmt::print(stderr, "no GPU\n");
    return 77;
  }
  Bench bench(filter);
  for (const Registered& r : registry()) r.cases(bench);
  bench.table();
  return 0;
}
