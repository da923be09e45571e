// Purpose:  the output norm of a KDA layer on the GPU: RMSNorm per head of 128, times sigmoid of the gate.
// Shapes:   x, gate, out, out_rest [T, H * 128] bf16, rows strided, aligned to 8 bytes; weight [128] f32.
// Units:    strides in elements.
// Memory:   out is overwritten, it may be x or gate; so is out_rest, which may be none of them.
// Threads:  asynchronous on the stream; no workspace.
// Errors:   CudaStatus of the launch. T = 0 is legal.
// Source:   model.md 3.3: out = x * rsqrt(mean x^2 + eps) * w * sigmoid(gate), FP32, rounded once: norm ratio 3e-3 against
//           gated_rms_norm_ref on the same BF16 inputs, 5e-5 with what rounding cut off.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/rms_norm/cuda/gated_norm_args.h"

namespace k3::ops::cuda {

inline CudaStatus gated_norm_cuda(const GatedNorm& args, Stream stream) { return {gated_norm_launch(args, stream)}; }

}  // namespace k3::ops::cuda
