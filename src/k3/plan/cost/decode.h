// Purpose:  time of a decode step and of each of its terms on the busiest accelerator.
// Shapes:   none.
// Units:    seconds; bytes and FLOPs of one accelerator.
// Memory:   plain values.
// Threads:  pure function, a few hundred nanoseconds.
// Errors:   none; validate(deployment) and validate(batch) (validate.h) come before.
// Source:   cost-model.md 8.1, 9.2, 9.3, 13a. Readings that the golden values need:
//           - distinct experts are those of all rows of a stage, ceil(B / pp) requests; every other term has the rows of one
//             attention group, ceil(ceil(B / pp) / dp) requests; EP moves rows / tp tokens a rank;
//           - AttnRes is read at the rate of attention (0.70) and whole on each rank of tp;
//           - the time of kda_state has the convolution windows, its bytes have not (state_bytes);
//           - dcp: each rank holds 1 / dcp of the latents, one all-to-all of the MLA layers, more of the query's up
//             projection; the core's FLOPs stay rows / tp;
//           - steps of B requests at one length: of many lengths give their mean.
//           No golden value speculates. The rate of a verify step's matrices (decode_gemm_flops 0.33) and the draft's time
//           (0.4 ms) were found from 9.3's speed-ups on B300 TP8 with 3.78 tokens a step, 2.45, 1.56, 1.97, 2.28 for 1, 8,
//           32, 64 requests, which fused replay reproduces within 0.01, and from 12's 360 and 418 tokens/s on GB300.
#pragma once

#include <array>

#include "k3/plan/cost/deployment.h"
#include "k3/plan/cost/speculation.h"

namespace k3::plan {

struct DecodeBatch {
  int64_t requests = 1;                                 // of the whole deployment
  double context_tokens = 0;                            // mean history of a request
  int64_t draft_tokens = 0;                             // gamma; rows = requests * (gamma + 1)
  SpeculationScheme scheme = SpeculationScheme::fused;  // of the states when draft_tokens > 0
  double row_overlap = 0;                               // share of a verify row's experts that its request already has
  double zipf_exponent = 0;                             // popularity of experts; 0: even
};

struct DecodeStep {
  Part kda_proj, mla_proj, moe_dense, dense_ffn, head, routed, kda_state, mla_core, attn_res, communication, kernels;
  double state_bytes = 0;       // recurrent states alone
  double distinct_experts = 0;  // of a stage
  int64_t group_requests = 0;   // of the busiest attention group
  int64_t rows = 0;             // and its tokens
  double stage_seconds = 0, hop_seconds = 0, host_seconds = 0, draft_seconds = 0;
  double seconds = 0;  // pp stages, pp - 1 hops, host, draft

  std::array<NamedPart, 11> parts() const;  // of one stage
};

DecodeStep decode_step(const Deployment& deployment, const DecodeBatch& batch);

}  // namespace k3::plan
