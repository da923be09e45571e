// Internal to ops/kda. The arguments of kda_any_cuda.h, apart from it because its .cu file includes them.
#pragma once

#include "k3/ops/kda/cuda/kda_decode_args.h"

struct CUstream_st;

namespace k3::ops::cuda {

inline constexpr int kKdaAnyDim = 128, kKdaAnyTaps = 8;  // most

struct KdaAnyArgs {
  KdaWeights weights;
  KdaRows rows;
  bool beta_f32 = false;
  KdaSlots slots;
  int dim = 0, taps = 0, sequences = 0;
  const int32_t* offsets = nullptr;  // [sequences + 1]
  // State and conv state after export_tokens tokens of a sequence go to export_slots; [exports] each.
  int exports = 0;
  const int32_t *export_sequences = nullptr, *export_tokens = nullptr, *export_slots = nullptr;
  void* out_rest = nullptr;  // as rows.out, its stride: what rounding cuts off out; null: nowhere
};

int kda_any_launch(const KdaAnyArgs& args, CUstream_st* stream);

}  // namespace k3::ops::cuda
