// Internal to ops/kda. Chunks of the fused prefill kernel: which tokens they are, how their tiles lie in shared memory.
//
// A tile is 16 tokens x 128 channels of BF16 in two halves of 64 channels, each as the copy engine and wgmma have it with
// 128-byte swizzle: 16 rows of 128 bytes whose 16-byte pieces are permuted by the row. Raw rows arrive so, and factors are
// written in their place.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/kda/cuda/kda_prefill_maps.h"
#include "k3/ops/kda/cuda/kda_prefill_state.cuh"
#include "k3/ops/kda/cuda/kda_prefill_words.cuh"

namespace k3::ops::cuda {

constexpr int kChunk = 16;
constexpr int kBuffers = 11;  // chunks in shared memory

// kMaps: the map of a piece instead of its outputs; two blocks a piece, for the state and for the transition, which share
// nothing. kPair: two blocks of a cluster make every second chunk each and send it to the other; they own 64 value rows
// each. kBounded: the sigmoid gate, no decay of 16 tokens below e^-84; else softplus, any decay.
template <bool kMaps_, bool kPair_, bool kBounded_>
struct Config {
  static_assert(!kMaps_ || !kPair_);
  static constexpr bool kMaps = kMaps_, kPair = kPair_, kBounded = kBounded_;
  static constexpr int kConsumers = kPair ? 4 : 8, kProducers = kPair ? 6 : 8;  // warps
  static constexpr int kThreads = 32 * (kConsumers + kProducers);
  static constexpr int kOwn = kPair ? 7 : kBuffers, kReceived = kBuffers - kOwn;  // buffers of chunks made here and there
  static constexpr int kEvery = kPair ? 2 : 1;
  static constexpr int kAhead =
      kPair ? 1 : 3;  // a producer that begins a chunk has the rows of the kAhead-th after it loaded
  // Registers move from the producers to the consumers where the even share is too small for these.
  static constexpr bool kMoveRegisters = kThreads == 512;
  static constexpr int kProducerRegisters = 104, kConsumerRegisters = 152;
};

// One chunk in shared memory. Loaded: z, q, k, v. The producer writes over them: W in the place of z, the scaled q and k in
// theirs. Of each half, z and q follow each other, so that W and Q are one operand of 32 rows.
constexpr int kHalfTile = 2048;
constexpr int kAtZ = 0, kAtQ = kHalfTile, kStepZQ = 2 * kHalfTile, kAtK = 4 * kHalfTile, kAtV = 6 * kHalfTile,
              kStepKV = kHalfTile;
constexpr int kAtT = 8 * kHalfTile;  // 32 x 16, no swizzle: T V, then 16 rows of zeros
constexpr int kAtP = kAtT + 1024;    // 16 rows of zeros, then P
constexpr int kAtE = kAtP + 1024;    // chunk decay, FP32, 36 floats for each lane % 4
constexpr int kERow = 144;
constexpr int kAtScale = kAtE + 4 * kERow;  // of the outputs, 4 floats for each lane % 4
constexpr int kBufferBytes = 19 * 1024;
constexpr int kSentBytes = kAtScale + 64;
static_assert(kSentBytes <= kBufferBytes && kSentBytes % 16 == 0);

// The tokens of one sequence that a block works on.
struct Piece {
  int sequence, head, begin, end, length;  // begin, end: inside the sequence of `length`
  int64_t first;                           // row of the sequence's first token
  int index;                               // of the piece among all (segments)
  int rank;                                // of the block in its pair; maps: 0 the state's, 1 the transition's
};

struct PrefillShared {
  alignas(1024) unsigned char buffers[kBuffers][kBufferBytes];
  alignas(128) unsigned char out[8][512];
  float2 bias[8][8];  // GateConstants::rate * dt_bias of channels 16 j + r and 16 j + 8 + r
  unsigned long long raw[kBuffers], full[kBuffers], empty[kBuffers];
  KdaCuts cuts;
  int sequence;
  Piece piece;  // what is wanted of it after the last chunk need not stay in registers
};

// Position of the chunk in hand; chunks end at multiples of 16 after the last cut.
struct Walk {
  int at, cut = 0;
  __device__ int end(const KdaCuts& cuts, int last) const {
    const int e = min(at + kChunk, last);
    return cut < cuts.count ? min(e, cuts.tokens[cut]) : e;
  }
  __device__ void step(const KdaCuts& cuts, int last) {
    at = end(cuts, last);
    while (cut < cuts.count && cuts.tokens[cut] <= at) ++cut;
  }
  __device__ void steps(const KdaCuts& cuts, int last, int count) {
    if (cuts.count == 0) {
      at = min(at + count * kChunk, last);
    } else {
      for (int i = 0; i < count && at < last; ++i) step(cuts, last);
    }
  }
};

// This lane's row of the first square of 16 channels, as ldmatrix and stmatrix want it. Matrices in the order of an A
// fragment: tokens 0-7 and 8-15 of the first 8 channels, then of the second; across: the middle two change places.
__device__ __forceinline__ uint32_t tile_lane(bool across = false) {
  const uint32_t lane = threadIdx.x % 32, row = lane % 8, m = across ? (lane / 8 & 1) * 2 + lane / 16 : lane / 8;
  return m % 2 * 1024 + row * 128 + ((row ^ (m / 2)) << 4);
}
// Square j of a tile whose first square is at `lane_row`; step: bytes between the halves.
__device__ __forceinline__ uint32_t square_at(uint32_t lane_row, int j, int step) {
  return (lane_row ^ ((static_cast<uint32_t>(j) & 3U) << 5)) + static_cast<uint32_t>(j / 4 * step);
}
// The same for T and P, whose 8 x 8 matrices are 128 bytes each.
__device__ __forceinline__ uint32_t core_lane() {
  const uint32_t lane = threadIdx.x % 32;
  return lane / 16 * 512 + lane / 8 % 2 * 128 + lane % 8 * 16;
}

}  // namespace k3::ops::cuda
