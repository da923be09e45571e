// Purpose:  routing, sorting by expert, and the row-wise steps of routed experts in training.
// Shapes:   T tokens, E experts (at most 1,024), topk (at most 32); slots [T, topk]; positions P = T topk in the order of experts, within an
//           expert in the order of slots; z [T, R], rows of positions [P, R] and [P, F] BF16; scores, weights FP32.
// Units:    none.
// Memory:   as each function says.
// Threads:  one stream; no float atomics.
// Errors:   CUDA's code of the launch.
// Source:   training.md 4.1 and 5; the rules of moe_train.cc. Ids are those of the FP32 rule on the same logits, ties to the lower id.
#pragma once

#include <cstdint>

#include "k3/ops/gemm/cuda/mma_train.h"

namespace k3::ops::cuda {

constexpr int kMostExperts = 1024, kMostChosen = 32;
constexpr int kSortSlots = 256;  // of a block

struct RouteTrain {
  int64_t tokens;
  int32_t experts, topk;
  const float* logits;
  const float* bias;  // null: none
  float scale;
  bool renormalise;
  float* scores;    // [T, E]
  int32_t* ids;     // [T, topk]
  float* weights;   // [T, topk]
  // vjp
  const float* dweights;
  float* dlogits;
};
int route_train_launch(const RouteTrain& a, void* stream);
int route_vjp_launch(const RouteTrain& a, void* stream);

struct SortSlots {
  int64_t slots;
  int32_t experts, topk;
  const int32_t* ids;
  int32_t* counts;       // [E, blocks] scratch
  int32_t* totals;       // [E] scratch
  int32_t* offsets;      // [E + 1]
  int32_t* token_of;     // [P]
  int32_t* slot_of;      // [P]
  int32_t* position_of;  // [slots]
};
constexpr int64_t sort_blocks(int64_t slots) { return (slots + kSortSlots - 1) / kSortSlots; }
int sort_slots_launch(const SortSlots& a, void* stream);

// to[p] = from[token_of[p]].
int gather_train_launch(const void* from, const int32_t* token_of, int64_t positions, int64_t width, void* to, void* stream);
// to[t] (+)= sum_j factors[t, j] rows[position_of[t, j]]; factors null: ones.
struct ScatterTrain {
  int64_t tokens, width;
  int32_t topk;
  const void* rows;
  const int32_t* position_of;
  const float* factors;
  void* to;
  bool accumulate;
};
int scatter_train_launch(const ScatterTrain& a, void* stream);

// Of each position with slot s: dweights[s] = <dh, h>; then dgate and dup from weights[s] dh, and h becomes weights[s] h.
struct ExpertVjp {
  int64_t positions, width;
  const int32_t* slot_of;
  const float* weights;
  const void *gate, *up;
  void* h;
  const void* dh;
  void *dgate, *dup;  // either may be dh
  float* dweights;
  bool situ;
  float beta, linear_beta;
};
int expert_vjp_launch(const ExpertVjp& a, void* stream);

}  // namespace k3::ops::cuda
