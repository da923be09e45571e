// The products around absorbed decode, one matrix a head. Few rows, so that the weights are what is read: a block keeps a
// tile of columns of one head's matrix in registers and takes all rows 16 at a time past it.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 128, kHeadRows = kMlaNope + kMlaValue;

// After the weights were asked for; the kernel after may ask for its own at once.
__device__ __forceinline__ void meet_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  pdl_release();
  pdl_wait();
#endif
}

// The A fragments of 16 columns k of a [16, kWidth] tile in shared memory with rows of kPitch.
template <int kPitch>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t tile, int k, int lane) {
  ldmatrix_x4(a, tile + ((lane % 16) * kPitch + k + lane / 16 * 8) * 2);
}

// 16 rows of kWidth columns from global memory; rows from `rows` on are zeros.
template <int kWidth, int kPitch>
__device__ __forceinline__ void copy_rows(uint32_t tile, const __nv_bfloat16* from, int64_t stride, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < 16 * (kWidth / 8); i += kThreads) {
    const int row = i / (kWidth / 8), column = i % (kWidth / 8) * 8;
    cp_async<16>(tile + (row * kPitch + column) * 2, from + min(row, rows - 1) * stride + column, row < rows);
  }
}

// query[:, head, columns] = q[:, head, :128] W, W = the key rows of the head, [128, 512].
template <int kColumns>
__global__ void __launch_bounds__(kThreads) absorb(const MlaAbsorb p) {
  constexpr int kWPitch = kColumns + 8, kAPitch = kMlaNope + 8, kN = kColumns / 32;  // 8-column tiles a warp
  __shared__ __align__(16) __nv_bfloat16 w[kMlaNope * kWPitch];
  __shared__ __align__(16) __nv_bfloat16 a_tiles[2][16 * kAPitch];
  const int head = static_cast<int>(blockIdx.y), column0 = static_cast<int>(blockIdx.x) * kColumns,
            tokens = static_cast<int>(p.tokens);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto* weight =
      static_cast<const __nv_bfloat16*>(p.kv_b) + static_cast<int64_t>(head) * kHeadRows * kLatent + column0;
  for (int i = static_cast<int>(threadIdx.x); i < kMlaNope * (kColumns / 8); i += kThreads) {
    const int row = i / (kColumns / 8), column = i % (kColumns / 8) * 8;
    cp_async<16>(shared_address(w + row * kWPitch + column), weight + row * kLatent + column);
  }
  cp_async_commit();
  meet_the_kernel_before();  // the weights do not depend on the kernel before
  const auto* q = static_cast<const __nv_bfloat16*>(p.q) + head * kMlaKey;
  auto* out = static_cast<__nv_bfloat16*>(p.query) + static_cast<int64_t>(head) * kLatentRow;
  const int64_t out_stride = p.heads * kLatentRow;
  const int step = static_cast<int>(gridDim.z) * 16;
  int row0 = static_cast<int>(blockIdx.z) * 16;
  if (row0 < tokens)
    copy_rows<kMlaNope, kAPitch>(shared_address(a_tiles[0]), q + row0 * p.q_stride, p.q_stride, tokens - row0);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  uint32_t b[kMlaNope / 16][kN][2];
#pragma unroll
  for (int k = 0; k < kMlaNope / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      ldmatrix_x2_trans(b[k][n], shared_address(w + (16 * k + lane % 16) * kWPitch + (warp * kN + n) * 8));
    }
  }
  for (int turn = 0; row0 < tokens; row0 += step, turn ^= 1) {
    const int next = row0 + step;
    if (next < tokens)
      copy_rows<kMlaNope, kAPitch>(shared_address(a_tiles[turn ^ 1]), q + next * p.q_stride, p.q_stride, tokens - next);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    float d[kN][4] = {};
#pragma unroll
    for (int k = 0; k < kMlaNope / 16; ++k) {
      uint32_t a[4];
      load_a<kAPitch>(a, shared_address(a_tiles[turn]), 16 * k, lane);
#pragma unroll
      for (int n = 0; n < kN; ++n) mma_bf16(d[n], a, b[k][n]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + lane / 4 + 8 * h;
      if (row >= tokens) continue;
      auto* to = out + row * out_stride + column0 + warp * kN * 8 + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < kN; ++n) *reinterpret_cast<uint32_t*>(to + 8 * n) = pack_bf16(d[n][2 * h], d[n][2 * h + 1]);
    }
    if (blockIdx.x == 0 && row0 + static_cast<int>(threadIdx.x) / 8 < tokens) {
      const int row = row0 + static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8 * 8;
      *reinterpret_cast<uint4*>(out + row * out_stride + kLatent + column) =
          *reinterpret_cast<const uint4*>(q + row * p.q_stride + kMlaNope + column);
    }
    __syncthreads();
  }
}

// out[:, head, columns] = ol[:, head, :] W^T * sigmoid(gate), W = the value rows of the head, [128, 512]. 32 columns a
// block.
__global__ void __launch_bounds__(kThreads) values(const MlaValues p) {
  constexpr int kColumns = 32, kPitch = kLatent + 8;
  extern __shared__ __align__(16) __nv_bfloat16 memory[];
  const uint32_t w = shared_address(memory), a_tiles[2] = {w + kColumns * kPitch * 2, w + (kColumns + 16) * kPitch * 2};
  const int head = static_cast<int>(blockIdx.y), column0 = static_cast<int>(blockIdx.x) * kColumns,
            tokens = static_cast<int>(p.tokens);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto* weight =
      static_cast<const __nv_bfloat16*>(p.kv_b) + (static_cast<int64_t>(head) * kHeadRows + kMlaNope + column0) * kLatent;
  copy_rows<kLatent, kPitch>(w, weight, kLatent, 16);
  copy_rows<kLatent, kPitch>(w + 16 * kPitch * 2, weight + 16 * kLatent, kLatent, 16);
  cp_async_commit();
  meet_the_kernel_before();
  const int64_t ol_stride = p.heads * kLatent;
  const auto* ol = static_cast<const __nv_bfloat16*>(p.ol) + static_cast<int64_t>(head) * kLatent;
  const int step = static_cast<int>(gridDim.z) * 16;
  int row0 = static_cast<int>(blockIdx.z) * 16;
  if (row0 < tokens) copy_rows<kLatent, kPitch>(a_tiles[0], ol + row0 * ol_stride, ol_stride, tokens - row0);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  uint32_t b[kLatent / 32][4];  // two steps of 16 of K each
#pragma unroll
  for (int k = 0; k < kLatent / 32; ++k) ldmatrix_x4(b[k], w + ((warp * 8 + lane % 8) * kPitch + 32 * k + lane / 8 * 8) * 2);
  for (int turn = 0; row0 < tokens; row0 += step, turn ^= 1) {
    const int next = row0 + step;
    if (next < tokens) copy_rows<kLatent, kPitch>(a_tiles[turn ^ 1], ol + next * ol_stride, ol_stride, tokens - next);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    float d[2][4] = {};  // two chains
#pragma unroll
    for (int k = 0; k < kLatent / 32; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        load_a<kPitch>(a, a_tiles[turn], 32 * k + 16 * i, lane);
        const uint32_t pair[2] = {b[k][2 * i], b[k][2 * i + 1]};
        mma_bf16(d[i], a, pair);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + lane / 4 + 8 * h, column = head * kMlaValue + column0 + warp * 8 + 2 * (lane % 4);
      if (row >= tokens) continue;
      float x = d[0][2 * h] + d[1][2 * h], y = d[0][2 * h + 1] + d[1][2 * h + 1];
      if (p.gate != nullptr) {
        const uint32_t g =
            *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(p.gate) + row * p.gate_stride + column);
        x /= 1 + exp2f(-low_bf16(g) * kLog2e);
        y /= 1 + exp2f(-high_bf16(g) * kLog2e);
      }
      const uint32_t out = pack_bf16(x, y);
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride + column) = out;
      if (p.out_rest != nullptr) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out_rest) + row * p.out_stride + column) =
            pack_bf16(x - low_bf16(out), y - high_bf16(out));
      }
    }
    __syncthreads();
  }
}

// Blocks over the rows where the heads alone leave multiprocessors idle.
unsigned row_blocks(int64_t blocks, int64_t tokens) {
  const int64_t tiles = (tokens + 15) / 16, wanted = (264 + blocks - 1) / blocks;
  return static_cast<unsigned>(tiles < wanted ? tiles : wanted);
}

}  // namespace

int mla_absorb_launch(const MlaAbsorb& p, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(p.heads);
  const unsigned columns = p.heads >= 48 ? 128 : 32, tiles = kLatent / columns;
  const LaunchOptions options{
      .grid = dim3(tiles, heads, row_blocks(tiles * p.heads, p.tokens)), .block = dim3(kThreads), .dependent = true};
  return columns == 128 ? launch(absorb<128>, options, stream, p) : launch(absorb<32>, options, stream, p);
}

int mla_values_launch(const MlaValues& p, cudaStream_t stream) {
  constexpr int kShared = (32 + 2 * 16) * (kLatent + 8) * 2;
  const LaunchOptions options{
      .grid = dim3(kMlaValue / 32, static_cast<unsigned>(p.heads), row_blocks(4 * p.heads, p.tokens)),
      .block = dim3(kThreads),
      .shared_bytes = kShared,
      .dependent = true};
  return launch(values, options, stream, p);
}

}  // namespace k3::ops::cuda
