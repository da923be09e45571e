// Purpose:  time of a prefill batch and of each of its terms on the busiest accelerator.
// Shapes:   none.
// Units:    seconds, tokens; bytes and FLOPs of one accelerator.
// Memory:   the batch views the caller's sequences.
// Threads:  pure function.
// Errors:   none; validate(deployment) and validate(batch) (validate.h) come before. An empty batch takes no time.
// Source:   cost-model.md 8.2, 8.3, 13a. Readings that the golden values need:
//           - all matrices' FLOPs are divided by tp, the router and latent down projection too; the head is left out;
//           - attention groups share the tokens evenly (matrices, MLA, AttnRes, elementwise, collectives: the throughput
//             view), while the scan has the ceil(n / dp) whole sequences of one group, here the longest;
//           - routed experts: all tokens over all ranks, or the bytes of the experts touched, whichever is slower;
//           - the overlap of communication (0.40) multiplies latencies too; kernels: ceil(all tokens / 65536) chains;
//           - pipeline hops: volume alone, 91 % hidden, one for the mean stage.
//           latency_seconds is ours: the same with the tokens of the fullest group, and the pipeline's fill and drain.
//           kcp spreads each sequence over kcp attention groups: scan, MLA and tokens divide by it; each KDA layer gathers
//           fragments (6.7), each MLA layer latents (6.8).
#pragma once

#include <array>
#include <span>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

struct PrefillSequence {
  int64_t new_tokens = 0, past_tokens = 0;
  int64_t count = 1;  // sequences of these lengths: a batch of many equal ones costs no more to ask for than one
};

struct PrefillBatch {
  std::span<const PrefillSequence> sequences;
  int64_t chunks = 1;  // pieces that a pipeline works on one behind the other (latency only)
};

struct PrefillTime {
  Part gemm, routed, mla_core, kda_scan, attn_res, elementwise, communication, kernels, hop;
  double tokens = 0;           // new ones of the batch
  double seconds = 0;          // of a stage in steady state: throughput
  double latency_seconds = 0;  // until the last stage is done with the fullest group's tokens

  double seconds_per_1k_tokens() const { return tokens > 0 ? seconds * 1000 / tokens : 0; }
  double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0; }
  std::array<NamedPart, 9> parts() const;
};

PrefillTime prefill_time(const Deployment& deployment, const PrefillBatch& batch);

}  // namespace k3::plan
