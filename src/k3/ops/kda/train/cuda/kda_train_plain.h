// Internal to ops/kda/train. Arguments of the plain kernels beside those of kda_train_params.h, where kept states are FP32, heads are all
// done in one pass, and sums has a place for each (sequence, head): [3 taps + 3, dim].
#pragma once

#include "k3/ops/kda/train/cuda/kda_train_params.h"

namespace k3::ops::cuda {

constexpr int kTrainPlainDim = 128, kTrainPlainTaps = 8;  // most

struct KdaTrainPlainSizes {
  int dim, taps, bounded, backward;
  float* scratch;  // kda_train_plain_floats a thread block
};

// States before each token of a block of 64 and after it, two rows a token, a state.
constexpr int64_t kda_train_plain_floats(int64_t dim) { return (kTrainRows + 2) * dim * dim + 2 * kTrainRows * dim; }

int kda_train_plain_launch(const KdaTrainCudaArgs& args, const KdaTrainPlainSizes& sizes, int blocks, CUstream_st* stream);

}  // namespace k3::ops::cuda
