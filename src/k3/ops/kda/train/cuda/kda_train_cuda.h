// Purpose:  kda_train on a GPU: which kernels a layer takes, and the memory of their passes.
// Shapes:   kda_train.h; activations BF16, b and db BF16 or F32, parameters, states and their gradients F32.
// Units:    bytes.
// Memory:   the fast vjp keeps operands of every block of 64 tokens in scratch, 148 KB a block of a head of 128: heads go in passes of
//           at most kTrainPassBytes. dz, db and dgate may lie on their inputs; dq_in, dk_in, dv_in may not. Kept states are BF16 (plain
//           kernels: FP32). A thread block of the plain vjp has scratch for the 64 states of a block.
// Threads:  one stream.
// Errors:   CudaStatus of the launches, noted in Ctx::gpu.
// Source:   kernels.md 3 and 9, training.md 9.3. Tolerance against the reference in double on the same BF16 inputs, norm ratio:
//           y 6e-3, final state 5e-3, dq dk dv and d_initial 8e-3, dz db dgate dnorm 2e-2, taps and dt_bias 1e-2, da_log (a sum that
//           cancels) 1e-2 of the sum of its |terms|. Heads below 128: dq dk 1.2e-2, taps 1.5e-2: the output norm makes dO orthogonal
//           to o, and where a token reads little but itself what cancels in dq leaves the rounding of dO and u, the more the fewer
//           values share it. Keys alike (0.9 and more) with gates that keep memory: y, dq, dk, d_initial 1.5e-2, final, taps 2e-2,
//           dv 3e-2: BF16 rounding of each key stays in directions that nothing reads (kda_prefill_cuda.h).
//           Plain kernels: 3e-3 (the rounding of results), states and parameters 1e-5.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/kda/train/cuda/kda_train_params.h"

namespace k3::ops::cuda {

constexpr int64_t kTrainPassBytes = int64_t{1} << 30;
constexpr float kTrainLeastBound = -5.25F;  // half a tile of such decays and its inverse are normal BF16 numbers

// Else the plain kernels.
constexpr bool kda_train_fast(int64_t dim, int64_t taps, std::optional<float> bound, int capability) {
  return capability / 10 == 9 && (dim == 32 || dim == 64 || dim == 128) && taps == kTrainTaps && bound && *bound >= kTrainLeastBound;
}

// Scratch of one head's blocks.
constexpr int64_t kda_train_head_bytes(int64_t rows, int64_t dim) {
  const int64_t bf16 = 6 * kTrainRows * dim + 2 * kTrainTiles * kTrainTile * kTrainTile + dim * dim;
  const int64_t f32 = (kTrainTiles + 1) * dim + 3 * kTrainRows + 6 * kTrainHalo * dim + (3 * kTrainTaps + 3) * dim;
  return rows * (2 * bf16 + 4 * f32);
}
constexpr int64_t kda_train_pass_heads(int64_t heads, int64_t rows, int64_t dim, int64_t most_bytes = kTrainPassBytes) {
  return std::clamp<int64_t>(most_bytes / std::max<int64_t>(1, kda_train_head_bytes(rows, dim)), 1, heads);
}

// Thread blocks that share the values of a chain (a sequence's head) in the scan, for heads of 64 (2) and 128 (4).
constexpr int kda_train_scan_parts(int64_t chains, int64_t dim, int multiprocessors) {
  const int parts = dim == 128 ? 4 : dim == 64 ? 2 : 1;
  return chains * parts <= 2 * int64_t{multiprocessors} ? parts : 1;
}

}  // namespace k3::ops::cuda
