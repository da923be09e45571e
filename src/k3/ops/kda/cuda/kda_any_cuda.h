// Purpose:  the token mixer of a KDA layer (convolution, SiLU, L2 norms, gate, recurrence, gated norm) on a GPU for head sizes that the
//           fast kernels do not have, and on GPUs before Hopper: to be right rather than fast.
// Shapes:   kda_decode_args.h with D of 1 to 128 in place of 128 and K of 2 to 8 taps in place of 4: taps [H * D, K], conv
//           [slots, 3, K - 1, H * D], state [slots, H, D, D]. Rows of any stride and alignment, the tokens of sequence s are
//           rows offsets[s] to offsets[s + 1].
// Units:    strides in elements.
// Memory:   out is overwritten; state and conv state of each slot are read and replaced, exports written. No workspace.
// Threads:  any; may be captured in a graph.
// Errors:   CudaStatus of the launch; K3_CHECK on sizes.
// Source:   kernels.md 1, 4; model.md 3.3. FP32 inside a call, the state in shared memory, one token after another; a BF16
//           state is rounded when it is stored. Tolerance against short_conv_ref, kda_ref and a norm in double (norm ratio):
//           out 3e-3, FP32 state 1e-6 a token, BF16 state 3e-3 a call. The order of sums depends on D and K alone.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/kda/cuda/kda_any_args.h"

namespace k3::ops::cuda {

CudaStatus kda_any_cuda(const KdaAnyArgs& args, Stream stream);

}  // namespace k3::ops::cuda
