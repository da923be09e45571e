// Small kernels of kda_train's vjp: the map of blocks, gradients of inputs whose convolution reaches into the next block, and the sums
// over blocks (each in one order: strips of blocks, then the strips).
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/train/cuda/kda_train_params.h"

namespace k3::ops::cuda {
namespace {

constexpr int kMapThreads = 128, kSumThreads = 1024;

__global__ void map_blocks(KdaTrainBlock* blocks, const int32_t* offsets, int sequences) {
  const int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (s >= sequences) return;
  const int begin = offsets[s], end = offsets[s + 1], row = begin / kTrainRows + s, next = end / kTrainRows + s + 1;
  for (int i = row; i < next; ++i) {
    const int first = begin + (i - row) * kTrainRows;
    const int count = first < end ? (end - first < kTrainRows ? end - first : kTrainRows) : 0;
    blocks[i] = {first, count, s, first + kTrainRows >= end ? 1 : 0};
  }
}

// A thread block a sequence. kept null: no states. `values`: BF16 numbers of a row of kept, a multiple of 8.
__global__ void set_slots(KdaTrainSlots slots, void* kept, int64_t values, const int32_t* offsets) {
  const int s = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) slots.slot[s] = s, slots.fresh[s] = 1, slots.none[s] = -1;
  if (kept == nullptr) return;
  auto* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(kept) + (offsets[s] / kTrainRows + s) * values);
  for (int64_t i = threadIdx.x; i < values / 8; i += blockDim.x) to[i] = uint4{0, 0, 0, 0};
}

template <int D>
__global__ void join(const __grid_constant__ KdaTrainCudaArgs a) {  // a thread a channel
  const int head = static_cast<int>(blockIdx.x) % a.pass_heads, row = static_cast<int>(blockIdx.x) / a.pass_heads;
  const KdaTrainBlock block = a.blocks[row];
  if (block.count == 0 || block.last != 0) return;
  const int channel = static_cast<int>(threadIdx.x), column = (a.first_head + head) * D + channel;
  const auto at = [&](int slot_row, int which, int part, int i) {  // which: 0 first rows of d_pre, 1 last rows of dx
    const int64_t slot = static_cast<int64_t>(slot_row) * a.pass_heads + head;
    return a.halo[slot * KdaTrainScratch<D>::kHalo + ((which * 3 + part) * kTrainHalo + i) * D + channel];
  };
  for (int part = 0; part < 3; ++part) {
    for (int i = 0; i < kTrainHalo; ++i) {
      float d = at(row, 1, part, i);
      for (int m = kTrainHalo - i; m < kTrainTaps; ++m) {
        d += a.taps[part][column * kTrainTaps + kTrainTaps - 1 - m] * at(row + 1, 0, part, i + m - kTrainHalo);
      }
      const int64_t token = block.first + kTrainRows - kTrainHalo + i;
      static_cast<__nv_bfloat16*>(a.d_in[part])[token * a.heads * D + column] = __float2bfloat16(d);
    }
  }
}

// Block (kind, head): D columns of KdaTrainScratch::kSums; strips of rows.
template <int D>
__global__ void __launch_bounds__(kSumThreads) add_up(const __grid_constant__ KdaTrainCudaArgs a) {
  constexpr int kKinds = KdaTrainScratch<D>::kSums / D, kStrips = kSumThreads / D;
  __shared__ float strips[kStrips][D];
  const int kind = static_cast<int>(blockIdx.x) % kKinds, head = static_cast<int>(blockIdx.x) / kKinds;
  const int channel = static_cast<int>(threadIdx.x) % D, strip = static_cast<int>(threadIdx.x) / D;
  float sum = 0;
#pragma unroll 4
  for (int row = strip; row < a.rows; row += kStrips) {
    const float* x = a.sums + (static_cast<int64_t>(row) * a.pass_heads + head) * KdaTrainScratch<D>::kSums + kind * D + channel;
    if (a.blocks[row].count > 0) sum += *x;
  }
  strips[strip][channel] = sum;
  __syncthreads();
  if (strip > 0) return;
  for (int i = 1; i < kStrips; ++i) sum += strips[i][channel];
  const int column = (a.first_head + head) * D + channel;
  if (kind < 3 * kTrainTaps) {
    a.d_taps[kind / kTrainTaps][column * kTrainTaps + kind % kTrainTaps] += sum;
  } else if (kind == 3 * kTrainTaps) {
    a.d_dt_bias[column] += sum;
  } else {
    a.edges[((kind - 3 * kTrainTaps - 1) * a.pass_heads + head) * D + channel] = sum;  // which nobody reads any more
  }
}

template <int D>
__global__ void add_heads(const __grid_constant__ KdaTrainCudaArgs a) {  // D threads
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int head = 0; head < a.pass_heads; ++head) sum += a.edges[(a.pass_heads + head) * D + thread];
  a.d_norm[thread] += sum;
  for (int head = thread; head < a.pass_heads; head += D) {
    float all = 0;
    for (int channel = 0; channel < D; ++channel) all += a.edges[head * D + channel];
    a.d_a_log[a.first_head + head] += all;
  }
}

template <int D>
int start(const KdaTrainCudaArgs& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.rows * a.pass_heads));
  o.block = dim3(D);
  if (const int code = launch(join<D>, o, stream, a); code != 0) return code;
  o.grid = dim3(static_cast<unsigned>(KdaTrainScratch<D>::kSums / D * a.pass_heads));
  o.block = dim3(kSumThreads);
  if (const int code = launch(add_up<D>, o, stream, a); code != 0) return code;
  o.grid = dim3(1);
  o.block = dim3(D);
  return launch(add_heads<D>, o, stream, a);
}

}  // namespace

int kda_train_map_launch(KdaTrainBlock* blocks, int rows, const int32_t* offsets, int sequences, CUstream_st* stream) {
  if (rows == 0) return 0;
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>((sequences + kMapThreads - 1) / kMapThreads));
  o.block = dim3(kMapThreads);
  return launch(map_blocks, o, stream, blocks, offsets, sequences);
}

int kda_train_slots_launch(const KdaTrainSlots& slots, void* kept, int64_t values, const int32_t* offsets, int sequences, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(sequences));
  o.block = dim3(256);
  return launch(set_slots, o, stream, slots, kept, values, offsets);
}

int kda_train_sums_launch(const KdaTrainCudaArgs& a, int dim, CUstream_st* stream) {
  return dim == 128 ? start<128>(a, stream) : dim == 64 ? start<64>(a, stream) : start<32>(a, stream);
}

}  // namespace k3::ops::cuda
