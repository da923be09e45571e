// Muon around its products: momentum and sums of squares, the iterate in BF16, weights from it; and a plain product for machines
// without cuBLASLt. Tall units lie transposed in the iterate: tiles of 32 x 32 turn in shared memory.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/optim/cuda/optim_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256, kTile = 32;
constexpr float kEps = 1e-7F;

__device__ __forceinline__ const MuonOne& owner(const MuonLaunch& a, int unit) {
  int low = 0, high = a.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (unit >= a.tensors[middle].first_unit ? low : high) = middle;
  }
  return a.tensors[low];
}

// U from the gradient and the momentum of this step.
__device__ __forceinline__ float direction(const MuonLaunch& a, float g, float m) { return a.nesterov ? fmaf(a.mu, m, g) : m; }

__global__ void __launch_bounds__(kThreads) momentum_kernel(const __grid_constant__ MuonLaunch a) {
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  if (isnan(scale)) return;
  const auto unit = static_cast<int>(blockIdx.y);
  const MuonOne& t = owner(a, unit);
  const int64_t at = (unit - t.first_unit) * t.stride, size = static_cast<int64_t>(t.rows) * t.cols;
  const int64_t begin = blockIdx.x * kMuonPart, end = begin + kMuonPart < size ? begin + kMuonPart : size;
  double sum = 0;
  const auto number = [&](float raw, float& m) {
    const float g = raw * scale;
    m = fmaf(a.mu, m, g);
    const float u = direction(a, g, m);
    sum += static_cast<double>(u) * u;
  };
  int64_t i = begin + 4 * threadIdx.x;
  const auto bits = reinterpret_cast<uintptr_t>(t.grad + at) | reinterpret_cast<uintptr_t>(t.momentum);
  if (t.momentum == nullptr) {
    for (i = begin + threadIdx.x; i < end; i += kThreads) sum += static_cast<double>(t.grad[at + i] * scale) * (t.grad[at + i] * scale);
  } else if ((bits & 15) == 0 && at % 4 == 0) {
    for (; i + 4 <= end; i += 4 * kThreads) {
      const float4 g = *reinterpret_cast<const float4*>(t.grad + at + i);
      float4 m = *reinterpret_cast<float4*>(t.momentum + at + i);
      number(g.x, m.x);
      number(g.y, m.y);
      number(g.z, m.z);
      number(g.w, m.w);
      *reinterpret_cast<float4*>(t.momentum + at + i) = m;
    }
  }
  for (; i < end && t.momentum != nullptr; i += 4 * kThreads) {
    for (int64_t j = i; j < i + 4 && j < end; ++j) number(t.grad[at + j], t.momentum[at + j]);
  }
  __shared__ double parts[kThreads / 32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(0xFFFFFFFFU, sum, k);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += parts[w];
  a.squares[static_cast<int64_t>(unit) * gridDim.x + blockIdx.x] = sum;
}

// Tile blockIdx.x of X, and what of the unit belongs there.
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ MuonLaunch a, int tiles_across, int parts) {
  __shared__ __nv_bfloat16 tile[kTile][kTile + 2];
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  if (isnan(scale)) return;
  const auto unit = static_cast<int>(blockIdx.y);
  const MuonOne& t = owner(a, unit);
  const int64_t at = (unit - t.first_unit) * t.stride;
  double squares = 0;
  for (int p = 0; p < parts; ++p) squares += a.squares[static_cast<int64_t>(unit) * parts + p];
  const float inverse = 1 / (static_cast<float>(sqrt(squares)) + kEps);
  const bool tall = t.rows > t.cols;
  const int x_row0 = static_cast<int>(blockIdx.x) / tiles_across * kTile, x_col0 = static_cast<int>(blockIdx.x) % tiles_across * kTile;
  const int row0 = tall ? x_col0 : x_row0, col0 = tall ? x_row0 : x_col0, lane = static_cast<int>(threadIdx.x) % kTile;
  auto* const x = static_cast<__nv_bfloat16*>(a.x) + static_cast<int64_t>(unit) * a.r * a.c;
  for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
    const int row = row0 + i, col = col0 + lane;
    float u = 0;
    if (row < t.rows && col < t.cols) {
      const int64_t j = at + static_cast<int64_t>(row) * t.cols + col;
      const float g = t.grad[j] * scale;
      u = (t.momentum == nullptr ? g : direction(a, g, t.momentum[j])) * inverse;
    }
    if (tall) {
      tile[i][lane] = __float2bfloat16(u);
    } else if (row < a.r && col < a.c) {
      x[static_cast<int64_t>(row) * a.c + col] = __float2bfloat16(u);
    }
  }
  if (!tall) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
    const int row = x_row0 + i, col = x_col0 + lane;
    if (row < a.r && col < a.c) x[static_cast<int64_t>(row) * a.c + col] = tile[lane][i];
  }
}

__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ MuonLaunch a, int tiles_across) {
  __shared__ float tile[kTile][kTile + 1];
  if (a.scale != nullptr && isnan(*a.scale)) return;
  const auto unit = static_cast<int>(blockIdx.y);
  const MuonOne& t = owner(a, unit);
  const int64_t at = (unit - t.first_unit) * t.stride;
  const bool tall = t.rows > t.cols;
  const int x_row0 = static_cast<int>(blockIdx.x) / tiles_across * kTile, x_col0 = static_cast<int>(blockIdx.x) % tiles_across * kTile;
  const int row0 = tall ? x_col0 : x_row0, col0 = tall ? x_row0 : x_col0, lane = static_cast<int>(threadIdx.x) % kTile;
  const auto* const x = static_cast<const __nv_bfloat16*>(a.x) + static_cast<int64_t>(unit) * a.r * a.c;
  if (tall) {
    for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
      const int row = x_row0 + i, col = x_col0 + lane;
      if (row < a.r && col < a.c) tile[lane][i] = __bfloat162float(x[static_cast<int64_t>(row) * a.c + col]);
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
    const int row = row0 + i, col = col0 + lane;
    if (row >= t.rows || col >= t.cols) continue;
    const int64_t j = at + static_cast<int64_t>(row) * t.cols + col;
    const float o = tall ? tile[i][lane] : __bfloat162float(x[static_cast<int64_t>(row) * a.c + col]);
    const float w = t.momentum == nullptr ? o : fmaf(-t.step, o, t.weight[j] * t.keep);
    t.weight[j] = w;
    if (t.bf16 != nullptr) static_cast<__nv_bfloat16*>(t.bf16)[j] = __float2bfloat16(w);
  }
}

// A block 32 x 32 of a unit's result, four sums a thread in the order of k.
__global__ void __launch_bounds__(kThreads) product_kernel(const __grid_constant__ NsProductLaunch a) {
  __shared__ float left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int lane = static_cast<int>(threadIdx.x) % kTile, first = static_cast<int>(threadIdx.x) / kTile;
  const int across = (a.cols + kTile - 1) / kTile;
  const int row0 = static_cast<int>(blockIdx.x) / across * kTile, col0 = static_cast<int>(blockIdx.x) % across * kTile;
  const auto unit = static_cast<int64_t>(blockIdx.y);
  const auto* l = static_cast<const __nv_bfloat16*>(a.left) + unit * a.left_unit;
  const auto* r = static_cast<const __nv_bfloat16*>(a.right) + unit * a.right_unit;
  constexpr int kRows = kTile / (kThreads / kTile);
  float sum[kRows] = {};
  for (int k0 = 0; k0 < a.depth; k0 += kTile) {
    for (int i = first; i < kTile; i += kThreads / kTile) {
      const int row = row0 + i, k = k0 + lane, col = col0 + lane, down = k0 + i;
      left[i][lane] = row < a.rows && k < a.depth ? __bfloat162float(l[row * a.left_row + k * a.left_col]) : 0;
      right[i][lane] = down < a.depth && col < a.cols ? __bfloat162float(r[down * a.right_row + col * a.right_col]) : 0;
    }
    __syncthreads();
    for (int k = 0; k < kTile; ++k) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] = fmaf(left[first + i * (kThreads / kTile)][k], right[k][lane], sum[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = row0 + first + i * (kThreads / kTile), col = col0 + lane;
    if (row >= a.rows || col >= a.cols) continue;
    const int64_t at = unit * a.out_unit + row * a.out_row + col;
    float y = a.alpha * sum[i];
    if (a.old != nullptr) y = fmaf(a.beta, __bfloat162float(static_cast<const __nv_bfloat16*>(a.old)[at]), y);
    static_cast<__nv_bfloat16*>(a.out)[at] = __float2bfloat16(y);
  }
}

int tiles(int n) { return (n + kTile - 1) / kTile; }

dim3 grid_of(int64_t parts, int units) { return {static_cast<unsigned>(parts), static_cast<unsigned>(units)}; }

}  // namespace

int muon_momentum_launch(const MuonLaunch& a, void* stream) {
  momentum_kernel<<<grid_of(muon_parts(a.longest), a.units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return launch_code();
}

int muon_gather_launch(const MuonLaunch& a, void* stream) {
  const int across = tiles(a.c);
  gather_kernel<<<grid_of(across * tiles(a.r), a.units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      a, across, static_cast<int>(muon_parts(a.longest)));
  return launch_code();
}

int muon_update_launch(const MuonLaunch& a, void* stream) {
  const int across = tiles(a.c);
  update_kernel<<<grid_of(across * tiles(a.r), a.units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a, across);
  return launch_code();
}

int ns_product_launch(const NsProductLaunch& a, void* stream) {
  product_kernel<<<grid_of(tiles(a.rows) * tiles(a.cols), a.units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return launch_code();
}

}  // namespace k3::ops::cuda
