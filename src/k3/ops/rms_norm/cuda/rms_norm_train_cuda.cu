#include "k3/ops/cuda/row_team.cuh"
#include "k3/ops/cuda/train_rows.h"

namespace k3::ops::cuda {
namespace {

static_assert(kPartialRows == kTeamGrid);

__device__ __forceinline__ const __nv_bfloat16* row_of(const void* p, int64_t stride, int64_t row) {
  return static_cast<const __nv_bfloat16*>(p) + stride * row;
}
__device__ __forceinline__ __nv_bfloat16* row_of(void* p, int64_t stride, int64_t row) { return static_cast<__nv_bfloat16*>(p) + stride * row; }

template <class T>
__global__ void __launch_bounds__(kTeamBlock) norm_train(const NormTrain a) {
  const int width = static_cast<int>(a.width);
  float2 w[T::kPairs], x[T::kPairs];
  T::load_f32(a.weight, width, w);
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * T::kPerBlock + T::index(); r < a.rows; r += static_cast<int64_t>(gridDim.x) * T::kPerBlock) {
    T::load(row_of(a.x, a.x_stride, r), width, x);
    const float scale = rsqrtf(T::dot(x, x) / static_cast<float>(width) + a.eps);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) x[i].x *= scale * w[i].x, x[i].y *= scale * w[i].y;
    T::store(row_of(a.out, a.out_stride, r), width, x);
  }
}

template <class T>
__global__ void __launch_bounds__(kTeamBlock) norm_vjp(const NormVjp a) {
  const int width = static_cast<int>(a.width);
  float2 w[T::kPairs], x[T::kPairs], d[T::kPairs], dw[T::kPairs] = {};
  T::load_f32(a.weight, width, w);
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * T::kPerBlock + T::index(); r < a.rows; r += static_cast<int64_t>(gridDim.x) * T::kPerBlock) {
    T::load(row_of(a.x, a.x_stride, r), width, x);
    T::load(row_of(a.dout, a.dout_stride, r), width, d);
    const float scale = rsqrtf(T::dot(x, x) / static_cast<float>(width) + a.eps);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) {
      dw[i].x += x[i].x * scale * d[i].x, dw[i].y += x[i].y * scale * d[i].y;
      d[i].x *= w[i].x, d[i].y *= w[i].y;
    }
    const float shared = T::dot(x, d) * scale * scale / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < T::kPairs; ++i) d[i].x = scale * (d[i].x - x[i].x * shared), d[i].y = scale * (d[i].y - x[i].y * shared);
    __nv_bfloat16* const to = row_of(a.dx, a.dx_stride, r);
    if (a.accumulate) {
      T::load(to, width, x);
#pragma unroll
      for (int i = 0; i < T::kPairs; ++i) d[i].x += x[i].x, d[i].y += x[i].y;
    }
    T::store(to, width, d);
  }
  if (a.partial != nullptr) T::put_partial(dw, width, a.partial);
}

// Threads of a block: 32 columns, 8 parts of the rows.
__global__ void sum_rows(const float* partial, int64_t rows, int64_t width, float* total) {
  __shared__ float parts[8][32];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < width) {
    for (int64_t r = threadIdx.y; r < rows; r += 8) sum += partial[r * width + column];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][threadIdx.x];
  total[column] += sum;
}

__global__ void fold(const float* norm, const float* projection, float* query, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) query[i] = norm[i] * projection[i];
}

__global__ void fold_vjp(const float* norm, const float* projection, const float* dquery, float* dnorm, float* dprojection, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if (dnorm != nullptr) dnorm[i] += dquery[i] * projection[i];
  if (dprojection != nullptr) dprojection[i] += dquery[i] * norm[i];
}

unsigned blocks_of(int64_t count) { return static_cast<unsigned>((count + 255) / 256); }

}  // namespace

int norm_train_launch(const NormTrain& a, void* stream) {
  if (a.rows == 0) return 0;
  return with_team(a.width, [&](auto team) {
    using T = decltype(team);
    const auto blocks = static_cast<unsigned>((a.rows + T::kPerBlock - 1) / T::kPerBlock);
    return launch(norm_train<T>, {.grid = dim3(blocks < 1056 ? blocks : 1056), .block = dim3(kTeamBlock)}, static_cast<cudaStream_t>(stream), a);
  });
}

int norm_vjp_launch(const NormVjp& a, void* stream) {
  return with_team(a.width, [&](auto team) {
    using T = decltype(team);
    // All blocks: each writes its row of the partial sums.
    return launch(norm_vjp<T>, {.grid = dim3(kTeamGrid), .block = dim3(kTeamBlock)}, static_cast<cudaStream_t>(stream), a);
  });
}

int sum_rows_launch(const float* partial, int64_t rows, int64_t width, float* total, void* stream) {
  if (width == 0) return 0;
  return launch(sum_rows, {.grid = dim3(static_cast<unsigned>((width + 31) / 32)), .block = dim3(32, 8)}, static_cast<cudaStream_t>(stream), partial,
                rows, width, total);
}

int fold_launch(const float* norm, const float* projection, float* query, int64_t count, void* stream) {
  return launch(fold, {.grid = dim3(blocks_of(count)), .block = dim3(256)}, static_cast<cudaStream_t>(stream), norm, projection, query, count);
}

int fold_vjp_launch(const float* norm, const float* projection, const float* dquery, float* dnorm, float* dprojection, int64_t count, void* stream) {
  return launch(fold_vjp, {.grid = dim3(blocks_of(count)), .block = dim3(256)}, static_cast<cudaStream_t>(stream), norm, projection, dquery, dnorm,
                dprojection, count);
}

}  // namespace k3::ops::cuda
