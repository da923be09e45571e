#include "k3/ops/cuda/roofline_gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "k3/ops/cuda/cublas_lt.h"
#include "k3/ops/cuda/fill_cuda.cuh"

namespace k3::ops::cuda {
namespace {

// Median time of a call in seconds; 0 when it cannot be timed.
template <class Call>
double seconds_of(cudaStream_t stream, int repeats, const Call& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) return 0;
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    cudaEventRecord(begin, stream);
    call();
    cudaEventRecord(end, stream);
    float ms = 0;
    if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) return 0;
    if (i >= 2) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return static_cast<double>(times[static_cast<size_t>(repeats / 2)]) * 1e-3;
}

double copy_rate(cudaStream_t stream) {
  for (size_t bytes = size_t{2} << 30; bytes >= size_t{64} << 20; bytes /= 2) {
    void *from = nullptr, *to = nullptr;
    double rate = 0;
    if (cudaMalloc(&from, bytes) == cudaSuccess && cudaMalloc(&to, bytes) == cudaSuccess) {
      fill_normal_bf16_launch(from, static_cast<int64_t>(bytes / 2), 1, 1, stream);
      const double s = seconds_of(stream, 15, [&] { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream); });
      if (s > 0) rate = 2 * static_cast<double>(bytes) / s * 1e-9;
    }
    cudaFree(from);
    cudaFree(to);
    cudaGetLastError();
    if (rate > 0) return rate;
  }
  return 0;
}

double gemm_rate(cudaStream_t stream) {
  constexpr int64_t n = 8192;
  constexpr size_t kWorkspace = size_t{64} << 20;
  const Result<const CublasLt*> library = cublas_lt();
  if (!library.ok()) return 0;
  const CublasLt& lt = **library;
  void *a = nullptr, *b = nullptr, *c = nullptr, *workspace = nullptr;
  const size_t bytes = 2 * n * n;
  double rate = 0;
  if (cudaMalloc(&a, bytes) == cudaSuccess && cudaMalloc(&b, bytes) == cudaSuccess && cudaMalloc(&c, bytes) == cudaSuccess &&
      cudaMalloc(&workspace, kWorkspace) == cudaSuccess) {
    fill_normal_bf16_launch(a, n * n, 2, 1, stream);
    fill_normal_bf16_launch(b, n * n, 3, 1, stream);
    const LtDesc desc = lt_desc(lt, CUBLAS_OP_T, CUBLAS_OP_N);
    const LtLayout layout = lt_layout(lt, CUDA_R_16BF, n, n, n);
    cublasLtMatmulPreference_t preference = nullptr;
    lt.preference_create(&preference);  // any algorithm, also those that lt_algorithms leaves out: it is a ceiling
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    lt.heuristic(lt.handle, desc.get(), layout.get(), layout.get(), layout.get(), layout.get(), preference, 1, &best, &found);
    const float one = 1, zero = 0;
    if (found > 0) {
      const double s = seconds_of(stream, 20, [&] {
        lt.matmul(lt.handle, desc.get(), &one, a, layout.get(), b, layout.get(), &zero, c, layout.get(), c, layout.get(), &best.algo, workspace,
                  kWorkspace, stream);
      });
      if (s > 0) rate = 2.0 * n * n * n / s * 1e-12;
    }
    lt.preference_destroy(preference);
  }
  for (void* p : {a, b, c, workspace}) cudaFree(p);
  return rate;
}

}  // namespace

Ceilings measure_ceilings(Stream stream) { return {copy_rate(stream), gemm_rate(stream)}; }

CudaStatus fill_normal_bf16(void* out, int64_t count, uint64_t seed, float scale, Stream stream) {
  return {fill_normal_bf16_launch(out, count, seed, scale, stream)};
}

CudaStatus fill_random_bytes(void* out, int64_t count, uint64_t seed, uint8_t first, int values, Stream stream) {
  return {fill_random_bytes_launch(out, count, seed, first, values, stream)};
}

}  // namespace k3::ops::cuda
