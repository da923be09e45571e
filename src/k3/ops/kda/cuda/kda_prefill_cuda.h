// Purpose:  Kimi Delta Attention over packed prompts on a GPU: the recurrence of kda.h for many tokens at once.
// Shapes:   q, k, v, z bf16 [T, H, 128] with a stride from token to token (columns of larger GEMM outputs), b [T, H] bf16 or
// f32;
//           a_log f32 [H], dt_bias f32 [H, 128]; offsets int32 [B + 1]; states: slot -> [H, 128 values, 128 keys] f32 or
//           bf16; out bf16 [T, H, 128]. All in device memory.
// Units:    strides in elements; decay as in kda.h.
// Memory:   out is overwritten; states[to[s]] receives the final state, states[slot] each export. An empty sequence leaves
// its
//           slot alone. The state is FP32 inside the pass. Workspace: kda_prefill_workspace_bytes.
// Threads:  any; ordered by the stream.
// Errors:   K3_CHECK on shapes and alignment (rows of 16 bytes); CudaStatus of the launches.
// Source:   kernels.md 1, 2. Tolerance against kda_ref on the same BF16 inputs (norm ratio): out 6e-3, state 5e-3; keys
// alike (0.9 and
//           more) with gates that keep memory 1.5e-2 and 2e-2 (kernels.md 9); one key again and again with beta 1, 2^-9
//           sqrt(2 T): the BF16 rounding of each key stays in directions that nothing reads. A BF16 state is rounded once,
//           at its store. Measured on 9,000 tokens: 4.9e-3, 3.7e-3. Finite for |k| below 6,000 (k e^80 is a BF16 operand),
//           without a lower bound below 2^31.
//           Form recurrent: out 3e-3 (its BF16 rounding), FP32 state 1e-5.
#pragma once

#include <optional>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/kda/cuda/kda_prefill_params.h"

namespace k3::ops::cuda {

// recurrent: token by token, any gate, sm_80 and later. fused: chunks of 16 tokens, one block a (sequence, head). segments:
// fused, with sequences cut in pieces whose maps are found first (kernels.md 2.5, exact).
enum class KdaPrefillForm { automatic, recurrent, fused, segments };

struct KdaPrefillPlan {
  KdaPrefillForm form = KdaPrefillForm::recurrent;
  int64_t segment = 0;  // tokens of a piece; multiple of 16
  bool pairs = false;   // fused: two blocks share the chunks of a (sequence, head)
};

struct KdaPrefillShape {
  int64_t tokens = 0, heads = 0, sequences = 0;
  int64_t longest = 0;  // at least the longest sequence
  std::optional<float> lower_bound = -5.0F;
};

// Pure: what runs. fused needs sm_90 and a bound of at least -5.25 (kernels.md 2.2) or none (2.6).
KdaPrefillPlan kda_prefill_plan(const KdaPrefillShape& shape, const DeviceInfo& device,
                                KdaPrefillForm form = KdaPrefillForm::automatic);
int64_t kda_prefill_workspace_bytes(const KdaPrefillShape& shape, const KdaPrefillPlan& plan);

// args.segment and args.pairs are set here from the plan.
CudaStatus kda_prefill_cuda(const K3KdaPrefill& args, const KdaPrefillPlan& plan, Stream stream);

}  // namespace k3::ops::cuda
