// Dense products of up to 16 tokens, BF16: the copy engine streams rows of the weights through a ring in shared memory.
//
// A block owns a run of rows of all parts together, so that every multiprocessor has the same bytes; it takes them in row blocks of
// up to 16 kRowTiles rows, in stages of 256 columns. One warp fills the ring: weights at once (also while the kernel before still
// runs: nothing of them depends on it), the tokens' columns of a stage as soon as that kernel has ended. Eight warps multiply: each
// takes one k-step of 32 columns of a stage with mma.m16n8k16, tokens as the N side. Inside a k-step the order of columns is free:
// lane (g, q) = (lane / 4, lane % 4) reads columns 8 q .. 8 q + 7 of its rows and of its token, 16 bytes each.
// Sums are those of gemm_rows with eight warps, bit for bit.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/gemm/cuda/gemm_config.h"
#include "k3/ops/gemm/cuda/gemm_stream.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kConsumers = 32 * kGemmWarps, kThreads = kConsumers + 32;

__device__ __forceinline__ int part_of(const Stream16& p, int row) {
  int index = 0;
#pragma unroll
  for (int i = 1; i < 6; ++i) index += i < p.part_count && row >= p.parts[i].row_begin;
  return index;
}

__device__ __forceinline__ uint4 shared_load_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

struct Walk {  // over row blocks and their stages; stage s of the ring, parity of its phase
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

template <int kRowTiles>
__device__ __forceinline__ void produce(const Stream16& p, int first_row, int rows, uint32_t ring, uint32_t full, uint32_t empty) {
  const int lane = threadIdx.x % 32;
  const int columns_bytes = p.in * 2, chunks = (p.in + kStreamColumns - 1) / kStreamColumns;
  const int row_blocks = (rows + p.block_rows - 1) / p.block_rows, total = row_blocks * chunks;
  const uint32_t stage_bytes = static_cast<uint32_t>((p.block_rows + p.tokens) * kStreamPitch);

  const uint8_t* from[(16 * kRowTiles + 31) / 32] = {};  // rows lane, lane + 32 of the row block
  int height = 0;
  const auto enter = [&](int row_block) {
    const int begin = row_block * p.block_rows;
    height = min(p.block_rows, rows - begin);
#pragma unroll
    for (int i = 0; i < (16 * kRowTiles + 31) / 32; ++i) {
      if (lane + 32 * i < height) {
        const int row = first_row + begin + lane + 32 * i;
        const StreamPart& part = p.parts[part_of(p, row)];
        from[i] = part.w + static_cast<int64_t>(row - part.row_begin) * columns_bytes;
      }
    }
  };
  const auto weights = [&](int chunk, int stage) {
    const int at = chunk * kStreamColumns * 2;
    const uint32_t bytes = static_cast<uint32_t>(min(kStreamColumns * 2, columns_bytes - at));
    const uint32_t bar = full + 8 * stage, to = ring + stage * stage_bytes + static_cast<uint32_t>(p.tokens * kStreamPitch);
    if (lane == 0) mbar_expect(bar, bytes * static_cast<uint32_t>(height + p.tokens));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < (16 * kRowTiles + 31) / 32; ++i) {
      if (lane + 32 * i < height) bulk_load(to + static_cast<uint32_t>((lane + 32 * i) * kStreamPitch), from[i] + at, bytes, bar);
    }
  };
  const auto tokens = [&](int chunk, int stage) {
    const int at = chunk * kStreamColumns * 2;
    const uint32_t bytes = static_cast<uint32_t>(min(kStreamColumns * 2, columns_bytes - at));
    if (lane < p.tokens) {
      bulk_load(ring + stage * stage_bytes + static_cast<uint32_t>(lane * kStreamPitch), p.x + lane * p.x_stride * 2 + at, bytes,
                full + 8 * stage);
    }
  };

  Walk walk;
  int block = 0, chunk = 0;
  const auto advance = [&] {
    walk.next(p.stages);
    if (++chunk == chunks) chunk = 0, ++block;
  };
  const int early = min(p.stages, total);
  for (int i = 0; i < early; ++i) {
    if (chunk == 0) enter(block);
    weights(chunk, walk.stage);
    advance();
  }
  pdl_wait();
  for (int i = 0; i < early; ++i) tokens(i % chunks, i);
  for (int i = early; i < total; ++i) {
    if (chunk == 0) enter(block);
    mbar_wait(empty + 8 * walk.stage, walk.parity ^ 1);
    weights(chunk, walk.stage);
    tokens(chunk, walk.stage);
    advance();
  }
}

__device__ __forceinline__ void store(const Stream16& p, int row, int token, float sum) {
  const StreamPart& part = p.parts[part_of(p, row)];
  const int64_t at = token * part.y_stride + row - part.row_begin;
  if (part.y_f32) {
    float* y = static_cast<float*>(part.y) + at;
    *y = part.accumulate ? __ldcg(y) + sum : sum;
  } else {
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(part.y) + at;
    *y = __float2bfloat16(part.accumulate ? __bfloat162float(__ldcg(y)) + sum : sum);
  }
}

template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void consume(const Stream16& p, int first_row, int rows, uint32_t ring, uint32_t full, uint32_t empty,
                                        float* sums) {
  constexpr int kRows = 16 * kRowTiles, kPitch = kRows + 4;  // pitch of sums: lanes (g, q) hit 32 banks
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int steps = p.in / kGemmKStep, chunks = (p.in + kStreamColumns - 1) / kStreamColumns;
  const uint32_t stage_bytes = static_cast<uint32_t>((p.block_rows + p.tokens) * kStreamPitch);
  const uint32_t mine = ring + static_cast<uint32_t>(warp * kGemmKStep * 2 + q * 16);
  uint32_t x_at[kTokenTiles];
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) x_at[j] = static_cast<uint32_t>(min(8 * j + g, p.tokens - 1) * kStreamPitch);
  const int row_blocks = (rows + p.block_rows - 1) / p.block_rows;

  Walk walk;
  for (int block = 0; block < row_blocks; ++block) {
    const int begin = block * p.block_rows, height = min(p.block_rows, rows - begin);
    uint32_t w_at[kRowTiles][2];  // rows and tokens beyond the last repeat it, not stored
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) w_at[m][h] = static_cast<uint32_t>((p.tokens + min(16 * m + 8 * h + g, height - 1)) * kStreamPitch);
    }
    float acc[2][kRowTiles][kTokenTiles][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      mbar_wait(full + 8 * walk.stage, walk.parity);
      if (chunk * kGemmWarps + warp < steps) {
        const uint32_t base = mine + walk.stage * stage_bytes;
        uint4 x[kTokenTiles], w[kRowTiles][2];
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) x[j] = shared_load_16(base + x_at[j]);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          w[m][0] = shared_load_16(base + w_at[m][0]);
          w[m][1] = shared_load_16(base + w_at[m][1]);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int j = 0; j < kTokenTiles; ++j) {
            mma_bf16(acc[0][m][j], {w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y}, {x[j].x, x[j].y});
            mma_bf16(acc[1][m][j], {w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w}, {x[j].z, x[j].w});
          }
        }
      }
      __syncwarp();
      if (lane == 0) mbar_arrive(empty + 8 * walk.stage);
      walk.next(p.stages);
    }
    if (block > 0) named_barrier(1, kConsumers);  // the sums of the row block before have been read
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[(warp * 8 * kTokenTiles + 8 * j + 2 * q + i % 2) * kPitch + 16 * m + g + i / 2 * 8] = acc[0][m][j][i] + acc[1][m][j][i];
        }
      }
    }
    named_barrier(1, kConsumers);
    for (int i = threadIdx.x; i < p.tokens * kRows; i += kConsumers) {
      const int token = i / kRows, row = i % kRows;
      if (row >= height) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kGemmWarps; ++w) sum += sums[(w * 8 * kTokenTiles + token) * kPitch + row];
      store(p, first_row + begin + row, token, sum);
    }
  }
}

template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kThreads, kRowTiles * kTokenTiles <= 2 ? 2 : 1) stream_kernel(const __grid_constant__ Stream16 p) {
  extern __shared__ __align__(128) uint8_t shared[];
  // Barriers, sums, ring.
  const uint32_t full = shared_address(shared), empty = full + 8 * kStreamMostStages;
  float* sums = reinterpret_cast<float*>(shared + 16 * kStreamMostStages);
  const uint32_t ring = shared_address(shared) + stream_head_bytes(kRowTiles, kTokenTiles);
  const int first_row = static_cast<int>(static_cast<int64_t>(blockIdx.x) * p.rows / gridDim.x);
  const int rows = static_cast<int>(static_cast<int64_t>(blockIdx.x + 1) * p.rows / gridDim.x) - first_row;
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < p.stages; ++i) mbar_init(full + 8 * i, 1), mbar_init(empty + 8 * i, kGemmWarps);
    mbar_init_fence();
  }
  __syncthreads();
  pdl_release();
  if (threadIdx.x >= kConsumers) {
    produce<kRowTiles>(p, first_row, rows, ring, full, empty);
  } else {
    pdl_wait();
    consume<kRowTiles, kTokenTiles>(p, first_row, rows, ring, full, empty, sums);
  }
}

}  // namespace

int gemm_stream_launch(const Stream16& args, int row_tiles, int token_tiles, int blocks, int shared_bytes, bool dependent,
                       cudaStream_t stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .shared_bytes = shared_bytes, .dependent = dependent};
  switch (row_tiles * 10 + token_tiles) {
    case 11: return launch(stream_kernel<1, 1>, options, stream, args);
    case 12: return launch(stream_kernel<1, 2>, options, stream, args);
    case 21: return launch(stream_kernel<2, 1>, options, stream, args);
    case 22: return launch(stream_kernel<2, 2>, options, stream, args);
    case 41: return launch(stream_kernel<4, 1>, options, stream, args);
    case 42: return launch(stream_kernel<4, 2>, options, stream, args);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace k3::ops::cuda
