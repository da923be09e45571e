#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/gemm/cuda/mma_train.h"

namespace k3::ops::cuda {
namespace {

constexpr int kDepth = 32, kStages = 3;

// A tile of kRows x kCols BF16, in rows of kCols + 8: eight rows that ldmatrix reads lie in different banks.
template <int kRows, int kCols, int kThreads>
struct Tile {
  static constexpr int kStride = kCols + 8, kBytes = kRows * kStride * 2;
  static constexpr int kAcross = kCols / 8, kChunks = kRows * kAcross, kPer = (kChunks + kThreads - 1) / kThreads;
  int32_t source[kPer];  // rows of the operand, -1: zeros

  __device__ void find(const int32_t* rows, int32_t first, int32_t end) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int c = threadIdx.x + j * kThreads, r = first + c / kAcross;
      source[j] = c < kChunks && r < end ? (rows != nullptr ? rows[r] : r) : -1;
    }
  }
  // Columns [col, col + kCols) of the rows found; zeros from `cols` on. Without `vectors` rows may begin anywhere.
  __device__ void load(uint32_t to, const __nv_bfloat16* from, int64_t stride, int32_t col, int32_t cols, bool vectors) const {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int c = threadIdx.x + j * kThreads;
      if (c >= kChunks) continue;
      const int at = col + c % kAcross * 8;
      const uint32_t place = to + (c / kAcross * kStride + c % kAcross * 8) * 2;
      const __nv_bfloat16* const row = from + (source[j] < 0 ? 0 : source[j]) * stride;
      if (vectors) {
        const bool take = source[j] >= 0 && at < cols;
        cp_async<16>(place, take ? row + at : from, take);
        continue;
      }
      uint32_t two[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto value = [&](int e) { return source[j] >= 0 && at + e < cols ? __bfloat162float(row[at + e]) : 0.0F; };
        two[i] = pack_bf16(value(2 * i), value(2 * i + 1));
      }
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(place), "r"(two[0]), "r"(two[1]), "r"(two[2]), "r"(two[3]) : "memory");
    }
  }
};

__device__ __forceinline__ bool vectors_of(const void* p, int64_t stride, int32_t cols) {
  return ((reinterpret_cast<uint64_t>(p) & 15) | (static_cast<uint64_t>(stride) & 7) | (static_cast<uint32_t>(cols) & 7)) == 0;
}

// kADeep: a is [depth, m]; kBDeep: b is [depth, n]. Warps kWarpsM x kWarpsN.
template <int kM, int kN, int kWarpsM, int kWarpsN, bool kADeep, bool kBDeep>
struct Kernel {
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN, kMi = kM / kWarpsM / 16, kNi = kN / kWarpsN / 8;
  static_assert(kNi % 2 == 0);
  using A = Tile<kADeep ? kDepth : kM, kADeep ? kM : kDepth, kThreads>;
  using B = Tile<kBDeep ? kDepth : kN, kBDeep ? kN : kDepth, kThreads>;
  static constexpr int kStageBytes = A::kBytes + B::kBytes, kSharedBytes = kStages * kStageBytes;

  static __device__ void step(uint32_t a, uint32_t b, float (&sum)[kMi][kNi][4]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int m0 = warp / kWarpsN * (kM / kWarpsM), n0 = warp % kWarpsN * (kN / kWarpsN);
    const int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t left[kMi][4];
#pragma unroll
      for (int i = 0; i < kMi; ++i) {
        const int m = m0 + i * 16;
        if constexpr (kADeep) {
          ldmatrix_x4_trans(left[i], a + ((k + bit4 * 8 + low) * A::kStride + m + bit3 * 8) * 2);
        } else {
          ldmatrix_x4(left[i], a + ((m + bit3 * 8 + low) * A::kStride + k + bit4 * 8) * 2);
        }
      }
#pragma unroll
      for (int j = 0; j < kNi; j += 2) {
        const int n = n0 + j * 8;
        uint32_t right[4];
        if constexpr (kBDeep) {
          ldmatrix_x4_trans(right, b + ((k + bit3 * 8 + low) * B::kStride + n + bit4 * 8) * 2);
        } else {
          ldmatrix_x4(right, b + ((n + bit4 * 8 + low) * B::kStride + k + bit3 * 8) * 2);
        }
        const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
#pragma unroll
        for (int i = 0; i < kMi; ++i) {
          mma_bf16(sum[i][j], left[i], first);
          mma_bf16(sum[i][j + 1], left[i], second);
        }
      }
    }
  }

  static __device__ void store(const MmaTrain& p, void* c, int32_t row0, int32_t rows, int32_t col0, const float (&sum)[kMi][kNi][4]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int m0 = row0 + warp / kWarpsN * (kM / kWarpsM) + lane / 4, n0 = col0 + warp % kWarpsN * (kN / kWarpsN) + lane % 4 * 2;
    const bool pairs = (p.c_stride & 1) == 0 && (reinterpret_cast<uint64_t>(c) & 7) == 0;
#pragma unroll
    for (int i = 0; i < kMi; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m0 + i * 16 + half * 8;
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < kNi; ++j) {
          const int col = n0 + j * 8;
          const int64_t at = row * p.c_stride + col;
          float x = sum[i][j][2 * half], y = sum[i][j][2 * half + 1];
          if (pairs && col + 1 < p.n) {
            if (p.c_f32) {
              float2* const to = reinterpret_cast<float2*>(static_cast<float*>(c) + at);
              if (p.accumulate) x += to->x, y += to->y;
              *to = {x, y};
            } else {
              uint32_t* const to = reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(c) + at);
              if (p.accumulate) x += low_bf16(*to), y += high_bf16(*to);
              *to = pack_bf16(x, y);
            }
            continue;
          }
          for (int e = 0; e < 2 && col + e < p.n; ++e) {
            const float value = e == 0 ? x : y;
            if (p.c_f32) {
              float* const to = static_cast<float*>(c) + at + e;
              *to = p.accumulate ? *to + value : value;
            } else {
              __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(c) + at + e;
              *to = __float2bfloat16(p.accumulate ? __bfloat162float(*to) + value : value);
            }
          }
        }
      }
    }
  }

  // Rows of a tile (group, begin, end) of the product, columns from col0.
  static __device__ void rows(const MmaTrain& p, const RowTile& tile, int32_t col0, int product, uint32_t shared) {
    const int passes = (p.k + kDepth - 1) / kDepth, total = passes * p.terms;
    A left;
    B right;
    left.find(p.a_rows[product], tile.begin, tile.end);
    if constexpr (!kBDeep) right.find(nullptr, col0, p.n);
    const auto issue = [&](int i) {
      if (i < total) {
        const MmaPair& pair = p.operands[product + i / passes];
        const int32_t k = i % passes * kDepth;
        const uint32_t a = shared + i % kStages * kStageBytes;
        const __nv_bfloat16* const b = static_cast<const __nv_bfloat16*>(pair.b) + tile.group * p.b_group;
        left.load(a, static_cast<const __nv_bfloat16*>(pair.a), p.a_stride, k, p.k, vectors_of(pair.a, p.a_stride, p.k));
        if constexpr (kBDeep) {
          right.find(nullptr, k, p.k);
          right.load(a + A::kBytes, b, p.b_stride, col0, p.n, vectors_of(b, p.b_stride, p.n));
        } else {
          right.load(a + A::kBytes, b, p.b_stride, k, p.k, vectors_of(b, p.b_stride, p.k));
        }
      }
      cp_async_commit();
    };
    float sum[kMi][kNi][4] = {};
    run(issue, total, shared, sum);
    store(p, p.c[product], tile.begin, tile.end, col0, sum);
  }

  // Rows [begin, end) are the depth.
  static __device__ void depth(const MmaTrain& p, int32_t begin, int32_t end, int32_t row0, int32_t col0, int32_t group, int product,
                               uint32_t shared) {
    const int total = (end - begin + kDepth - 1) / kDepth;
    A left;
    B right;
    left.find(p.a_rows[product], begin, end);
    right.find(p.b_rows[product], begin, end);
    const auto* const a = static_cast<const __nv_bfloat16*>(p.operands[product].a);
    const auto* const b = static_cast<const __nv_bfloat16*>(p.operands[product].b);
    const bool a_vectors = vectors_of(a, p.a_stride, p.m), b_vectors = vectors_of(b, p.b_stride, p.n);
    const auto issue = [&](int i) {
      if (i < total) {
        const uint32_t at = shared + i % kStages * kStageBytes;
        left.load(at, a, p.a_stride, row0, p.m, a_vectors);
        right.load(at + A::kBytes, b, p.b_stride, col0, p.n, b_vectors);
        left.find(p.a_rows[product], begin + (i + 1) * kDepth, end);
        right.find(p.b_rows[product], begin + (i + 1) * kDepth, end);
      }
      cp_async_commit();
    };
    float sum[kMi][kNi][4] = {};
    run(issue, total, shared, sum);
    const int64_t c = group * p.c_group;
    void* const to = p.c_f32 ? static_cast<void*>(static_cast<float*>(p.c[product]) + c)
                             : static_cast<void*>(static_cast<__nv_bfloat16*>(p.c[product]) + c);
    store(p, to, row0, p.m, col0, sum);
  }

  template <class Issue>
  static __device__ void run(const Issue& issue, int total, uint32_t shared, float (&sum)[kMi][kNi][4]) {
    for (int i = 0; i < kStages - 1; ++i) issue(i);
    for (int i = 0; i < total; ++i) {
      cp_async_wait<kStages - 2>();
      __syncthreads();
      issue(i + kStages - 1);
      const uint32_t at = shared + i % kStages * kStageBytes;
      step(at, at + A::kBytes, sum);
    }
    cp_async_wait<0>();
  }
};

template <bool kBDeep>
using RowsKernel = Kernel<kMmaRows, 96, 4, 2, false, kBDeep>;
using DepthKernel = Kernel<96, 96, 2, 2, true, true>;

template <bool kBDeep>
__global__ void __launch_bounds__(RowsKernel<kBDeep>::kThreads, 2) mma_rows(const __grid_constant__ MmaTrain p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kMmaRows;
  const RowTile tile = p.tiles != nullptr ? p.tiles[blockIdx.x] : RowTile{0, first, min(p.m, first + kMmaRows)};
  if (tile.begin < 0) return;
  RowsKernel<kBDeep>::rows(p, tile, static_cast<int32_t>(blockIdx.y) * 96, static_cast<int>(blockIdx.z), shared_address(memory));
}

__global__ void __launch_bounds__(DepthKernel::kThreads, 3) mma_depth(const __grid_constant__ MmaTrain p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const int across = (p.n + 95) / 96, group = static_cast<int>(blockIdx.y) / across;
  const int32_t begin = p.offsets != nullptr ? p.offsets[group] : 0, end = p.offsets != nullptr ? p.offsets[group + 1] : p.k;
  if (begin == end && p.accumulate) return;
  DepthKernel::depth(p, begin, end, static_cast<int32_t>(blockIdx.x) * 96, static_cast<int32_t>(blockIdx.y) % across * 96, group,
                     static_cast<int>(blockIdx.z), shared_address(memory));
}

// One block; each group's first tile from a running sum over the groups.
__global__ void row_tiles(const int32_t* offsets, int32_t groups, RowTile* tiles, int32_t most) {
  __shared__ int32_t first[1025];
  for (int g = threadIdx.x; g < groups; g += blockDim.x) first[g] = (offsets[g + 1] - offsets[g] + kMmaRows - 1) / kMmaRows;
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t sum = 0;
    for (int g = 0; g < groups; ++g) {
      const int32_t count = first[g];
      first[g] = sum;
      sum += count;
    }
    first[groups] = sum;
  }
  __syncthreads();
  for (int g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
    for (int t = first[g] + (threadIdx.x & 31); t < first[g + 1]; t += 32) {
      const int32_t begin = offsets[g] + (t - first[g]) * kMmaRows;
      tiles[t] = {g, begin, min(begin + kMmaRows, offsets[g + 1])};
    }
  }
  for (int t = first[groups] + threadIdx.x; t < most; t += blockDim.x) tiles[t] = {0, -1, -1};
}

unsigned parts(int32_t n, int32_t of) { return static_cast<unsigned>((n + of - 1) / of); }

}  // namespace

int mma_rows_launch(const MmaTrain& p, void* stream) {
  const unsigned down = p.tiles != nullptr ? static_cast<unsigned>(p.tile_count) : parts(p.m, kMmaRows);
  LaunchOptions options{.grid = dim3(down, parts(p.n, 96), static_cast<unsigned>(p.products)), .block = dim3(RowsKernel<false>::kThreads)};
  if (options.grid.x == 0 || options.grid.y == 0) return 0;
  auto* const on = static_cast<cudaStream_t>(stream);
  if (p.b_plain) {
    options.shared_bytes = RowsKernel<true>::kSharedBytes;
    return launch(mma_rows<true>, options, on, p);
  }
  options.shared_bytes = RowsKernel<false>::kSharedBytes;
  return launch(mma_rows<false>, options, on, p);
}

int mma_depth_launch(const MmaTrain& p, void* stream) {
  const LaunchOptions options{.grid = dim3(parts(p.m, 96), parts(p.n, 96) * static_cast<unsigned>(p.groups), static_cast<unsigned>(p.products)),
                              .block = dim3(DepthKernel::kThreads),
                              .shared_bytes = DepthKernel::kSharedBytes};
  if (options.grid.x == 0 || options.grid.y == 0) return 0;
  return launch(mma_depth, options, static_cast<cudaStream_t>(stream), p);
}

int row_tiles_launch(const int32_t* offsets, int32_t groups, RowTile* tiles, int32_t most, void* stream) {
  return launch(row_tiles, {.grid = dim3(1), .block = dim3(1024)}, static_cast<cudaStream_t>(stream), offsets, groups, tiles, most);
}

}  // namespace k3::ops::cuda
