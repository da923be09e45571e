// Purpose:  one decode step of KDA on a GPU in one kernel: convolution, SiLU, L2 norms, gate, recurrence, gated output norm.
// Shapes:   kda_decode_args.h. Any batch and heads, D = 128, 4 taps; state FP32 or BF16, V-first; inputs and out BF16.
// Units:    strides in elements.
// Memory:   out and out_rest are overwritten; state and conv state of each slot are read and replaced, no two requests may share one.
//           Slots below 0: zero output and rest, nothing else is touched. No workspace. A BF16 state is rounded to nearest once a
//           step.
// Threads:  any; may be captured in a graph, slots are read from device memory.
// Errors:   CudaStatus of the launch; K3_CHECK on null pointers, alignment and strides.
// Source:   kernels.md 4; model.md 3.3. Tolerance against short_conv_ref, kda_ref and a norm in double (norm ratio): out
//           3e-3 (its BF16 rounding is 1.7e-3), with its rest 1e-4, FP32 state 1e-6, BF16 state 3e-3 a step; 2e-2 after 4,096 steps, where the
//           gate keeps nearly all what double arithmetic with the same roundings reaches (2.2e-2). Conv state bit exact.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

// Whether so many (request, head) pairs are computed by the kernel that takes KdaLowRank.
bool kda_decode_takes_low(int64_t pairs, bool state_bf16, const DeviceInfo& device);
CudaStatus kda_decode_cuda(const KdaDecodeArgs& args, Stream stream);

// Checks shared with kda_verify_cuda.
void check_kda_weights(const KdaWeights& weights);
void check_kda_rows(const KdaRows& rows, int64_t heads);
void check_kda_slots(const KdaSlots& slots, int64_t heads);

}  // namespace k3::ops::cuda
