#include "k3/ops/gemm/cuda/gemm_plans.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <tuple>
#include <vector>

#include "k3/ops/cuda/cublas_lt.h"
#include "k3/ops/cuda/fill_cuda.cuh"
#include "k3/ops/gemm/cuda/gemm_config.h"

namespace k3::ops::cuda {
namespace {

constexpr int kCandidates = 12, kTimed = 3;
constexpr int64_t kLargeBucket = 4096;  // from here on more tokens only repeat the tiles
constexpr size_t kFlushBytes = size_t{128} << 20;  // more than the L2 of any GPU we build for

// rows, in, f32, accumulate, bucket: plans of one product lie side by side, by bucket.
using Key = std::tuple<int64_t, int64_t, bool, bool, int64_t>;
Key key_of(const GemmShape& s, int64_t bucket) { return {s.rows, s.in, s.out == DType::f32, s.accumulate, bucket}; }

struct Plan {
  cublasLtMatmulAlgo_t algo{};
  double us = 0;
};

// Device memory of a measurement.
class Scratch {
 public:
  explicit Scratch(size_t bytes) { status_ = cudaMalloc(&data_, bytes); }
  ~Scratch() { cudaFree(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }
  bool ok() const { return status_ == cudaSuccess; }

 private:
  void* data_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

// The layouts of y^T = W x^T in the library's column-major terms: three views of row-major memory as it is.
struct Layouts {
  LtLayout w, x, y;
  Layouts(const CublasLt& lt, const GemmShape& s, int64_t x_stride, int64_t y_stride)
      : w(lt_layout(lt, CUDA_R_16BF, s.in, s.rows, s.in)),
        x(lt_layout(lt, CUDA_R_16BF, s.in, s.tokens, x_stride)),
        y(lt_layout(lt, s.out == DType::f32 ? CUDA_R_32F : CUDA_R_16BF, s.rows, s.tokens, y_stride)) {}
};

}  // namespace

struct GemmPlans::Impl {
  const CublasLt* lt = nullptr;
  LtDesc desc;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  std::map<Key, Plan> plans;

  Impl() = default;
  ~Impl() { cudaFree(workspace); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Plan* find(const GemmShape& s) const {
    const Key from = key_of(s, gemm_token_bucket(s.tokens));
    const auto of_this_product = [&](const Key& key) { return key == key_of(s, std::get<4>(key)); };
    auto it = plans.lower_bound(from);
    if (it != plans.end() && of_this_product(it->first)) return &it->second;
    // More tokens than were ever measured: the most that were, if those were many.
    if (it == plans.begin() || !of_this_product((--it)->first) || std::get<4>(it->first) < kLargeBucket) return nullptr;
    return &it->second;
  }

  cublasStatus_t matmul(const Layouts& at, const cublasLtMatmulAlgo_t& algo, bool accumulate, const void* x, const void* w,
                        void* y, Stream stream) const {
    const float one = 1, beta = accumulate ? 1 : 0;
    return lt->matmul(lt->handle, desc.get(), &one, w, at.w.get(), x, at.x.get(), &beta, y, at.y.get(), y, at.y.get(), &algo, workspace,
                      workspace_bytes, stream);
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Layouts& at) const {
    return lt_algorithms(*lt, desc, at.w, at.x, at.y, {workspace_bytes, {{16, 16, 16, 16}}, kCandidates});
  }

  // Median time of an algorithm, L2 overwritten before each call; 0 when it does not run.
  template <class Call>
  static double measure_us(const Call& call, void* flush, cudaEvent_t begin, cudaEvent_t end, Stream stream) {
    std::vector<float> times;
    for (int i = 0; i <= kTimed; ++i) {  // the first warms up
      cudaMemsetAsync(flush, i, kFlushBytes, stream);
      cudaEventRecord(begin, stream);
      if (call() != CUBLAS_STATUS_SUCCESS) return 0;
      cudaEventRecord(end, stream);
      float ms = 0;
      if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) return 0;
      if (i > 0) times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + kTimed / 2, times.end());
    return static_cast<double>(times[kTimed / 2]) * 1e3;
  }
};

GemmPlans::GemmPlans(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmPlans::GemmPlans(GemmPlans&&) noexcept = default;
GemmPlans& GemmPlans::operator=(GemmPlans&&) noexcept = default;
GemmPlans::~GemmPlans() = default;

Result<GemmPlans> GemmPlans::create(int64_t workspace_bytes) {
  auto impl = std::make_unique<Impl>();
  K3_TRY_ASSIGN(impl->lt, cublas_lt());
  impl->desc = lt_desc(*impl->lt, CUBLAS_OP_T, CUBLAS_OP_N);
  if (!impl->desc) {
    return fail(Code::unsupported, "cuBLASLt refuses a BF16 product with FP32 sums");
  }
  K3_TRY(to_status({static_cast<int>(cudaMalloc(&impl->workspace, static_cast<size_t>(workspace_bytes)))},
                   "workspace of cuBLASLt"));
  impl->workspace_bytes = static_cast<size_t>(workspace_bytes);
  return GemmPlans(std::move(impl));
}

Status GemmPlans::prepare(const GemmShape& wanted, Stream stream) {
  GemmShape s = wanted;
  s.tokens = gemm_token_bucket(s.tokens);
  if (impl_->plans.contains(key_of(s, s.tokens))) return {};
  const int64_t y_bytes = s.tokens * s.rows * dtype_bytes(s.out);
  const Scratch x(static_cast<size_t>(s.tokens * s.in * 2)), w(static_cast<size_t>(s.rows * s.in * 2)),
      y(static_cast<size_t>(y_bytes)), flush(kFlushBytes);
  if (!x.ok() || !w.ok() || !y.ok() || !flush.ok()) {
    cudaGetLastError();
    return fail(Code::exhausted, "no device memory to measure a product of {} tokens, {} x {}", s.tokens, s.rows, s.in);
  }
  fill_normal_bf16_launch(x.data(), s.tokens * s.in, 1, 1, stream);
  fill_normal_bf16_launch(w.data(), s.rows * s.in, 2, 1, stream);
  cudaMemsetAsync(y.data(), 0, static_cast<size_t>(y_bytes), stream);
  const Layouts layouts(*impl_->lt, s, s.in, s.rows);
  cudaEvent_t begin = nullptr, end = nullptr;
  K3_TRY(to_status({static_cast<int>(cudaEventCreate(&begin))}, "event"));
  K3_TRY(to_status({static_cast<int>(cudaEventCreate(&end))}, "event"));
  Plan best;
  for (const cublasLtMatmulHeuristicResult_t& candidate : impl_->candidates(layouts)) {
    const double us = Impl::measure_us(
        [&] { return impl_->matmul(layouts, candidate.algo, s.accumulate, x.data(), w.data(), y.data(), stream); },
        flush.data(), begin, end, stream);
    if (us > 0 && (best.us == 0 || us < best.us)) best = {candidate.algo, us};
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  if (best.us > 0) impl_->plans[key_of(s, s.tokens)] = best;
  return to_status({static_cast<int>(cudaStreamSynchronize(stream))}, "measuring cuBLASLt");
}

bool GemmPlans::has(const GemmShape& shape) const { return impl_->find(shape) != nullptr; }

double GemmPlans::measured_us(const GemmShape& shape) const {
  const Plan* plan = impl_->find(shape);
  return plan == nullptr ? 0 : plan->us;
}

CudaStatus GemmPlans::run(const GemmShape& s, const void* x, int64_t x_stride, const void* w, void* y, int64_t y_stride,
                          Stream stream) const {
  const Plan* plan = impl_->find(s);
  const auto bits = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(w) | reinterpret_cast<uintptr_t>(y) |
                    static_cast<uintptr_t>(x_stride * 2) | static_cast<uintptr_t>(s.in * 2) |
                    static_cast<uintptr_t>(y_stride * dtype_bytes(s.out));
  if (plan == nullptr || (bits & 15) != 0) return {cudaErrorNotSupported};  // plans suppose 16-byte alignment
  const Layouts layouts(*impl_->lt, s, x_stride, y_stride);
  const cublasStatus_t status = impl_->matmul(layouts, plan->algo, s.accumulate, x, w, y, stream);
  return {status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorNotSupported};
}

// First line: version of the library. Then a line a plan: rows in f32 accumulate bucket us, and the algorithm's words in
// hex.
std::string GemmPlans::save() const {
  std::string out = fmt::format("cublaslt {}\n", impl_->lt->version());
  for (const auto& [key, plan] : impl_->plans) {
    const auto& [rows, in, f32, accumulate, bucket] = key;
    out +=
        fmt::format("{} {} {} {} {} {:.3f}", rows, in, static_cast<int>(f32), static_cast<int>(accumulate), bucket, plan.us);
    for (const uint64_t word : plan.algo.data) out += fmt::format(" {:x}", word);
    out += '\n';
  }
  return out;
}

Status GemmPlans::load(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line != fmt::format("cublaslt {}", impl_->lt->version())) {
    return fail(Code::corrupt, "plans of another cuBLASLt ('{}', here version {})", line, impl_->lt->version());
  }
  std::map<Key, Plan> read;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    int64_t rows = 0, in = 0, bucket = 0;
    int f32 = 0, accumulate = 0;
    Plan plan;
    fields >> rows >> in >> f32 >> accumulate >> bucket >> plan.us >> std::hex;
    for (uint64_t& word : plan.algo.data) fields >> word;
    if (fields.fail() || bucket != gemm_token_bucket(bucket)) return fail(Code::corrupt, "not a plan: '{}'", line);
    read[{rows, in, f32 != 0, accumulate != 0, bucket}] = plan;
  }
  for (const auto& [key, plan] : read) impl_->plans[key] = plan;
  return {};
}

}  // namespace k3::ops::cuda
