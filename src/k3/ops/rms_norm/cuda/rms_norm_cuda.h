// Purpose:  RMSNorm on the GPU, with the residual add in front.
// Shapes:   x, delta, sum_out, out [T, N] bf16, rows strided; weight [N] f32 or bf16. N is a multiple of 8, at most
//           65,536; rows are aligned to 16 bytes.
// Units:    strides in elements.
// Memory:   sum_out receives x + delta, rounded once (bit equal to an add of its own); the norm is of that sum. out is
//           overwritten; it may be any of the inputs.
// Threads:  asynchronous on the stream; no workspace.
// Errors:   K3_CHECK on shapes and alignment; a launch that failed is in the CudaStatus.
// Source:   model.md 3.2: out = x * rsqrt(mean x^2 + eps) * w in FP32, rounded once: norm ratio 3e-3 against
//           rms_norm_ref.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/rms_norm/cuda/rms_norm_args.h"

namespace k3::ops::cuda {

RmsNormPlan rms_norm_plan(int64_t tokens, int64_t width, const DeviceInfo& device);
CudaStatus rms_norm_cuda(const RmsNorm& args, Stream stream);

}  // namespace k3::ops::cuda
