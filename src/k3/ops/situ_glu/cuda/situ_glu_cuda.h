// Purpose:  the gated activations of every MLP on the GPU: SiTU-GLU and SwiGLU.
// Shapes:   gate, up, out [T, F] bf16, rows strided ([T, 2F]: gate and up of one array), F a multiple of 8, rows aligned
//           to 16 bytes.
// Units:    strides in elements.
// Memory:   out is overwritten; it may be gate or up.
// Threads:  asynchronous on the stream; no workspace.
// Errors:   K3_CHECK on shapes and alignment.
// Source:   model.md 3.5, situ_glu.h. FP32, rounded once: norm ratio 3e-3 against glu_ref.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/situ_glu/cuda/situ_glu_args.h"

namespace k3::ops::cuda {

CudaStatus glu_cuda(const GluRows& a, Stream stream);

}  // namespace k3::ops::cuda
