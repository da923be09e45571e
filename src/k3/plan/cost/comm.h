// Purpose:  bytes and seconds of what accelerators tell each other: TP, EP, PP, context parallelism, P/D hand-over.
// Shapes:   none.
// Units:    bytes, seconds, tokens, ranks. Link rates are those of one direction; volume reaches efficiency.link of them.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h. A group of one rank costs nothing.
// Source:   cost-model.md 6.4-6.10, 13a. Readings that the golden values need:
//           - a collective that leaves the domain costs network_seconds alone (no t_ar), its volume inside the domain, and
//             2 (N - 1) / N of 1 / (ranks in a domain) of its volume on the network;
//           - EP that leaves the domain counts the node-deduplicated copies on the network and nothing inside the domain;
//           - EP with one attention group moves nothing: its tokens are on every rank, the all-reduce adds the results;
//           - a decode hop inside the domain costs t_ar and the scale-up link, outside network_seconds and the network.
#pragma once

#include <cstdint>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

// Latency floor of a small collective.
double collective_floor_seconds(const Hardware& hardware, const Efficiency& efficiency, int64_t ranks);

// All-reduce (or reduce-scatter and all-gather) of `bytes` over `ranks`, floor and volume.
struct Collective {
  double floor_seconds = 0, volume_seconds = 0;
  double bytes = 0;  // that one rank sends and receives, over every link

  double seconds() const { return floor_seconds + volume_seconds; }
};
Collective all_reduce(const Hardware& hardware, const Efficiency& efficiency, int64_t ranks, double bytes);

// Of one token in one MoE layer whose experts lie on `ranks` ranks (or nodes).
struct ExpertTraffic {
  double copies = 0;  // to other ranks, one for each rank that holds some of the token's experts
  double dispatch_bytes = 0, combine_bytes = 0;

  double bytes() const { return dispatch_bytes + combine_bytes; }
};
// `width`: values of a token that travel; the expert width (latent) unless said.
ExpertTraffic expert_traffic(const Counts& counts, const Precision& precision, int64_t ranks);
ExpertTraffic expert_traffic(const Counts& counts, const Precision& precision, int64_t ranks, double width);

// Dispatch and combine of one MoE layer, `rank_tokens` tokens a rank, over all ranks of a stage.
Collective expert_exchange(const Deployment& deployment, double rank_tokens);

// What a token carries over the boundary behind `layers_before` layers: finished blocks, the embedding, a partial block.
double pp_payload_bytes(const Counts& counts, const Precision& precision, int64_t layers_before);
double mean_pp_payload_bytes(const Counts& counts, const Precision& precision, int64_t stages);  // over its boundaries

// One message of `rows` tokens between stages.
Collective pp_hop(const Deployment& deployment, double rows);

// Context parallelism of KDA, for one KDA layer and rank, whatever the length.
struct KcpTraffic {
  double fragment_bytes = 0, halo_bytes = 0;

  double bytes() const { return fragment_bytes + halo_bytes; }
};
KcpTraffic kcp_traffic(const Counts& counts, const Precision& precision, int64_t tp);

// Context parallelism of softmax attention, for one MLA layer and rank: latents, or keys and values of all heads.
double softmax_cp_bytes(const Counts& counts, const Precision& precision, double tokens, int64_t ranks, bool expanded);

// From a prefill to a decode worker.
struct HandOver {
  double state_bytes = 0, cache_bytes = 0;

  double bytes() const { return state_bytes + cache_bytes; }
  double state_share() const { return state_bytes / bytes(); }
};
HandOver pd_hand_over(const Counts& counts, const Precision& precision, double tokens);

}  // namespace k3::plan
