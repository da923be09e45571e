// Purpose:  causal convolution of 4 taps and SiLU over packed sequences on a GPU, with carried inputs in slots (prefill).
// Shapes:   short_conv_args.h.
// Units:    strides in elements.
// Memory:   y is overwritten (not x in place); the tail of each sequence's slot is read, then replaced by its last three
//           inputs; export slots receive the tails at the wanted positions. Empty sequences leave their slot as it is. No
//           workspace.
// Threads:  any; may be captured in a graph: offsets, slots and exports are read from device memory, only counts are fixed.
// Errors:   CudaStatus of the launch; K3_CHECK on null pointers, alignment and strides.
// Source:   model.md 3.3, no bias. Tolerance against short_conv_ref (double) on the same BF16 inputs: norm ratio 3e-3 (the
//           BF16 rounding of y is 1.7e-3); tails bit exact.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/short_conv/cuda/short_conv_args.h"

namespace k3::ops::cuda {

CudaStatus short_conv_cuda(const ShortConvArgs& args, Stream stream);

}  // namespace k3::ops::cuda
