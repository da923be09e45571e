// Internal to ops/kda. What all prefill kernels share: sizes and the list of positions at which a state is wanted.
#pragma once

#include <cstdint>

#include "k3/ops/kda/cuda/kda_prefill_params.h"

namespace k3::ops::cuda {

constexpr int kDim = 128;
constexpr float kScale = 0.08838834764831845F;  // 128^-0.5

struct KdaCuts {
  int count;
  int tokens[K3_KDA_MAX_EXPORTS], slots[K3_KDA_MAX_EXPORTS];  // by position
};

// The exports of one sequence with begin < tokens <= end, sorted. All `threads` threads of the block; ends with a barrier.
__device__ inline void kda_load_cuts(const K3KdaPrefill& a, int sequence, int begin, int end, KdaCuts& cuts, int threads) {
  if (a.export_every > 0) {
    const int before = begin / a.export_every, wanted = end / a.export_every - before;
    const int count = wanted < K3_KDA_MAX_EXPORTS ? wanted : K3_KDA_MAX_EXPORTS;
    if (threadIdx.x == 0) cuts.count = count;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
      cuts.tokens[i] = (before + i + 1) * a.export_every;
      cuts.slots[i] = a.offsets[sequence] / a.export_every + sequence + before + i + 1;
    }
    __syncthreads();
    return;
  }
  if (threadIdx.x == 0) cuts.count = 0;
  __syncthreads();
  const auto mine = [&](const K3KdaExport& e) { return e.sequence == sequence && e.tokens > begin && e.tokens <= end; };
  for (int64_t i = threadIdx.x; i < a.export_count; i += threads) {
    const K3KdaExport e = a.exports[i];
    if (!mine(e)) continue;
    int rank = 0;
    for (int64_t j = 0; j < a.export_count; ++j) {
      const K3KdaExport f = a.exports[j];
      if (mine(f) && (f.tokens < e.tokens || (f.tokens == e.tokens && j < i))) ++rank;
    }
    if (rank < K3_KDA_MAX_EXPORTS) cuts.tokens[rank] = e.tokens, cuts.slots[rank] = e.slot, atomicAdd(&cuts.count, 1);
  }
  __syncthreads();
}

}  // namespace k3::ops::cuda
