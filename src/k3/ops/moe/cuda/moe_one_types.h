// Internal to ops/moe. The experts of one token (moe_one_sm90.cu): what its launch takes, and which calls it serves.
#pragma once

#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

inline constexpr int kMoeOneTopk = 16, kMoeOneBuffers = 8, kMoeOneRouted = 256;
// Counters, all zero between calls: items claimed, blocks that have seen all activations, then gate and up units of each
// expert that are there, then what of each unit of rows is there.
inline constexpr int kMoeOneSeen = 1, kMoeOneExperts = 8, kMoeOneRows = 32, kMoeOneUnits = 1024;

constexpr int moe_one_consumers(MoeWeights kind) { return kind == MoeWeights::bf16 ? 8 : 16; }
// Consumers take chunks in turn, so with a multiple of their number each place is one consumer's alone: it has then seen every phase of
// the place's barrier and cannot take an old one for its own.
constexpr int moe_one_stages(MoeWeights kind) { return kind == MoeWeights::bf16 ? 24 : 48; }
static_assert(moe_one_stages(MoeWeights::bf16) % moe_one_consumers(MoeWeights::bf16) == 0);
static_assert(moe_one_stages(MoeWeights::mxfp4) % moe_one_consumers(MoeWeights::mxfp4) == 0);

// Rows of the shared experts' product that a block has, at most.
constexpr int moe_one_shared_rows(int width, int grid) { return ((width + 15) / 16 + grid - 1) / grid * 16; }

struct MoeOne {
  const void* packed[2];  // gate and up; down
  MoePlaces places;
  int units[2], chunks[2];  // of 16 packed rows of an expert; of K
  MoeDivisor by_units[2];
  const float* factors;
  const void* z;
  void* hidden;  // [topk, hidden_width] bf16
  float* slot_out;
  float* shared_out;  // [width] the shared experts' product
  const int32_t* ids;
  int32_t* counters;
  MoeGlu glu;
  MoeRouteCuda route;
  MoeSharedCuda shared;
  MoeCombineCuda sum;
  int topk, first_expert, experts, width, hidden_width;
};

// Shared memory of a call; 0: the kernel does not serve it.
constexpr int moe_one_shared_bytes(MoeWeights kind, int topk, int width, int hidden, int shared_columns, int grid, int64_t most) {
  const int columns = static_cast<int>(moe_chunk_columns(kind)), chunk = static_cast<int>(moe_chunk_bytes(kind)), stages = moe_one_stages(kind);
  const int chunks[2] = {(width + columns - 1) / columns, (hidden + columns - 1) / columns};
  const int chunks_most = chunks[0] > chunks[1] ? chunks[0] : chunks[1];
  const int units = (width + 15) / 16, shared = moe_one_shared_rows(width, grid) * shared_columns * 2;
  const int bytes = stages * chunk + chunks[0] * columns * 2 + topk * chunks[1] * columns * 2 + kMoeOneBuffers * chunks_most * 64;
  const bool fits = topk <= kMoeOneTopk && width % 8 == 0 && hidden % 8 == 0 && chunks_most <= stages && units <= kMoeOneUnits && shared <= stages * chunk &&
                    shared_columns % 8 == 0 && bytes + 3072 <= most;
  return fits ? bytes : 0;
}

int moe_one_launch(MoeWeights kind, const MoeOne& p, int grid, int shared_bytes, CUstream_st* stream);

}  // namespace k3::ops::cuda
