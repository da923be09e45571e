// Between the passes of the segmented form (kernels.md 2.5): the state before each piece, from the maps of the pieces before
// it. The map of piece s is (B, M): S -> M S + B. Where B of piece s was, the state before piece s + 1 is written. Piece 0
// needs nothing: its B began from the true state. A block owns 16 value rows of one (sequence, head); TF32 products, FP32
// sums.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/cuda/kda_prefill_state.cuh"
#include "k3/ops/kda/cuda/kda_prefill_words.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kRows = 16, kThreads = 128, kPitch = kDim + 4;

__global__ void __launch_bounds__(kThreads) scan(const __grid_constant__ K3KdaPrefill a) {
  __shared__ float state[kRows][kPitch];
  const int parts = kDim / kRows, segment = static_cast<int>(a.segment);
  const int part = static_cast<int>(blockIdx.x) % parts,
            head = static_cast<int>(blockIdx.x) / parts % static_cast<int>(a.heads);
  const int sequence = static_cast<int>(blockIdx.x) / parts / static_cast<int>(a.heads);
  const int first = a.offsets[sequence], length = a.offsets[sequence + 1] - first;
  const int pieces = (length + segment - 1) / segment;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto map = [&](int piece, int which) {
    const int64_t index = first / segment + sequence + piece;
    return static_cast<float*>(a.workspace) + ((index * a.heads + head) * 2 + which) * kDim * kDim;
  };
  if (pieces <= 2) return;
  const float* start = map(0, 0) + part * kRows * kDim;
  for (int i = thread; i < kRows * kDim; i += kThreads) state[i / kDim][i % kDim] = start[i];
  for (int piece = 1; piece < pieces - 1; ++piece) {
    float* b = map(piece, 0) + part * kRows * kDim;
    const float* m = map(piece, 1) + (lane & 3) * kDim + 32 * warp + lane / 4;
    float d[4][4];  // 32 columns of this warp
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d[n][i] = b[(lane / 4 + 8 * (i / 2)) * kDim + 32 * warp + 8 * n + 2 * (lane & 3) + (i & 1)];
    }
    __syncthreads();
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      float w[4][4][2];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          w[k][n][0] = m[(32 * block + 8 * k) * kDim + 8 * n];
          w[k][n][1] = m[(32 * block + 8 * k + 4) * kDim + 8 * n];
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* s = &state[lane / 4][32 * block + 8 * k + (lane & 3)];
        const uint32_t x[4] = {tf32(s[0]), tf32(s[8 * kPitch]), tf32(s[4]), tf32(s[8 * kPitch + 4])};
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_tf32(d[n], x, tf32(w[k][n][0]), tf32(w[k][n][1]));
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 32 * warp + 8 * n + 2 * (lane & 3) + (i & 1);
        state[row][column] = b[row * kDim + column] = d[n][i];
      }
    }
  }
}

}  // namespace

int kda_prefill_scan_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.sequences * a.heads * (kDim / kRows)));
  o.block = dim3(kThreads);
  return launch(scan, o, stream, a);
}

}  // namespace k3::ops::cuda
