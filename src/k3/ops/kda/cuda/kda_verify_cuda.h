// Purpose:  speculative windows of KDA on a GPU: commit of the last window, then verification of the next, in one pass over
//           the state (one read, one write); and the commit alone.
// Shapes:   kda_decode_args.h. Up to 8 or 16 tokens a request (window.max_tokens), any number by request (0: commit alone).
// Units:    strides in elements.
// Memory:   out rows of the window are overwritten. With accepted a > 0 the slot's state and conv state become those after a
//           tokens of the old window; with a = 0 they stay untouched. Then window.u of the slot is replaced by the new
//           window's, whose outputs saw the committed state. Of the inputs nothing is kept: the caller leaves the rows q, k,
//           v, z of a call as they are, and names them in commit.x, z and first_rows, until the call that commits their
//           windows has run. So the next call's rows lie elsewhere (two sets of buffers in turn); a request that is not in
//           the next call is committed alone before its rows go. With a = 0 none are read. out overlaps neither call's. An
//           export slot receives state and conv state after `boundary` tokens of the old window; it must be no slot of the
//           batch. Slots below 0: zero output, nothing else. No workspace.
// Threads:  any; may be captured in a graph, all counts and slots are read from device memory.
// Errors:   CudaStatus of the launch; K3_CHECK on null pointers, alignment and strides.
// Source:   kernels.md 5. A commit multiplies the factors e^g of the tokens, it takes no sums of g: products of few factors keep
//           the relative precision that differences of large sums lose. Keys and factors are made anew from the last rows, by
//           the arithmetic of the verify, so both see the same bits. Tolerance (norm ratio): FP32 state against sequential
//           decode in double 1e-5; outputs 3e-3 (BF16). A BF16 state is rounded once a commit, 3e-3, and the new window sees
//           the rounded one.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

CudaStatus kda_verify_cuda(const KdaVerifyArgs& args, Stream stream);
CudaStatus kda_commit_cuda(const KdaCommitArgs& args, Stream stream);

}  // namespace k3::ops::cuda
