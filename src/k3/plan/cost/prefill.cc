#include "k3/plan/cost/prefill.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/plan/cost/comm.h"
#include "k3/plan/cost/flops.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/roof.h"
#include "k3/plan/cost/routing.h"
#include "k3/plan/cost/scan.h"

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

// What one attention group has of a batch.
struct Share {
  double all_tokens = 0;      // of the batch
  double tokens = 0;          // matrices, AttnRes, elementwise, collectives
  double mla_flops = 0;       // all MLA layers
  double context_tokens = 0;  // history and new tokens, for latents that context parallelism gathers
  ScanBatch scan;
};

// `even`: the mean group; else the one with the longest sequences.
Share share_of(const Deployment& d, std::span<const PrefillSequence> sequences, bool even) {
  std::vector<PrefillSequence> sorted(sequences.begin(), sequences.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const PrefillSequence& a, const PrefillSequence& b) { return a.new_tokens > b.new_tokens; });
  const double kcp = real(d.layout.kcp), groups = real(d.layout.dp) / kcp;
  int64_t count = 0;
  for (const PrefillSequence& s : sorted) count += s.count;
  int64_t left = ceil_div(count, d.layout.dp / d.layout.kcp);  // of the group's sequences
  Share share;
  double own_tokens = 0, own_flops = 0, own_context = 0, all_flops = 0, all_context = 0;
  for (const PrefillSequence& s : sorted) {
    const double fresh = real(s.new_tokens), past = real(s.past_tokens), all = real(s.count);
    const double flops = mla_prefill_flops(d.counts, fresh, past);
    share.all_tokens += all * fresh;
    all_flops += all * flops;
    all_context += all * (fresh + past);
    const int64_t taken = std::min(left, s.count);
    if (taken <= 0) continue;
    left -= taken;
    const double own = real(taken);
    own_tokens += own * fresh;
    own_flops += own * flops;
    own_context += own * (fresh + past);
    share.scan.add(d.efficiency, fresh / kcp, own);
  }
  share.tokens = (even ? share.all_tokens / groups : own_tokens) / kcp;
  share.mla_flops = (even ? all_flops / groups : own_flops) / kcp;
  share.context_tokens = even ? all_context / groups : own_context;
  return share;
}

void add_compute(PrefillTime& t, const Deployment& d, const Share& share) {
  const Efficiency& e = d.efficiency;
  const Counts& c = d.counts;
  const double tp = real(d.layout.tp), pp = real(d.layout.pp), hbm = d.hardware.hbm_bytes_per_second;
  const double peak = d.hardware.bf16_flops_per_second;
  const LinearFlops f = linear_flops(c);
  const ResidentWeights w = resident_weights(c, d.layout);
  const double gemm_efficiency = e.gemm_flops * std::max(0.05, 1 - e.gemm_loss_per_log2_tp * std::log2(tp));
  t.gemm = roof(w.kda + w.mla + w.moe_dense() + w.dense, hbm * e.weight_bytes,
                (f.without_head() - f.routed) * share.tokens / (tp * pp), peak * gemm_efficiency);
  const int64_t ranks = d.layout.stage_ranks();
  const double distinct = distinct_experts(c.experts, c.topk, share.all_tokens);
  const double on_a_rank =
      d.layout.moe == MoeSharding::ep ? busiest_rank_experts(c.experts, distinct, ranks) : distinct / real(ranks);
  t.routed = roof(on_a_rank * c.expert_bytes() * real(c.moe_layers) / pp, hbm * e.weight_bytes,
                  f.routed * share.all_tokens / (real(ranks) * pp), routed_peak(d) * routed_efficiency(d));
  t.mla_core.flops = share.mla_flops / (tp * pp);
  t.mla_core.seconds = t.mla_core.flops / (peak * e.attention_flops);
  t.kda_scan.flops = kda_prefill_flops_per_token(c, e.scan_chunk_tokens) * share.tokens / (tp * pp);
  t.kda_scan.seconds = real(c.kda_layers) / pp * kda_batch_scan_seconds(d.hardware, real(c.kda_heads) / tp, share.scan);
}

void add_traffic(PrefillTime& t, const Deployment& d, const Share& share) {
  const Efficiency& e = d.efficiency;
  const Counts& c = d.counts;
  const double tp = real(d.layout.tp), pp = real(d.layout.pp), whole = d.layout.sp ? tp : 1;
  const double rate = d.hardware.hbm_bytes_per_second * e.attention_bytes;
  t.attn_res.bytes = share.tokens * attn_res_bytes(c, d.precision) / (pp * whole);
  t.attn_res.flops = share.tokens * attn_res_flops(c) / (pp * whole);
  t.attn_res.seconds = t.attn_res.bytes / rate;
  const double passes = e.residual_passes / whole + (e.elementwise_passes - e.residual_passes) / tp;
  t.elementwise.bytes = share.tokens * real(c.layers) / pp * passes * real(c.hidden) * d.precision.activation;
  t.elementwise.seconds = t.elementwise.bytes / rate;
}

// Fragments of every KDA layer and latents of every MLA layer, among kcp attention groups.
void add_context_parallel(PrefillTime& t, const Deployment& d, const Share& share) {
  const int64_t kcp = d.layout.kcp;
  if (kcp <= 1) return;
  const Counts& c = d.counts;
  const int64_t span = kcp * d.layout.tp;
  const bool inside = span <= d.hardware.domain_gpus;
  const double rate =
      (inside ? d.hardware.scale_up_bytes_per_second : d.hardware.network_bytes_per_second) * d.efficiency.link;
  const double floor = collective_floor_seconds(d.hardware, d.efficiency, inside ? kcp : span);
  const double sequences = share.scan.sequences;
  const double fragments = sequences * (real(kcp - 1) * kcp_traffic(c, d.precision, d.layout.tp).fragment_bytes +
                                        kcp_traffic(c, d.precision, d.layout.tp).halo_bytes);
  const double latents = softmax_cp_bytes(c, d.precision, share.context_tokens, kcp, false);
  const double kda = real(c.kda_layers) / real(d.layout.pp), mla = real(c.mla_layers) / real(d.layout.pp);
  t.communication.bytes += kda * fragments + mla * latents;
  t.communication.seconds += kda * (floor + fragments / rate) + mla * (floor + latents / rate);
}

void add_communication(PrefillTime& t, const Deployment& d, const Share& share) {
  const Counts& c = d.counts;
  const double pp = real(d.layout.pp);
  const auto add = [&](double times, const Collective& one) {
    t.communication.seconds += times * one.seconds();
    t.communication.bytes += times * one.bytes;
  };
  const double rows_bytes = share.tokens * real(c.hidden) * d.precision.activation;
  add(2 * real(c.layers) / pp, all_reduce(d.hardware, d.efficiency, d.layout.tp, rows_bytes));
  add(real(c.moe_layers) / pp, expert_exchange(d, share.tokens / real(d.layout.tp)));
  add_context_parallel(t, d, share);
  t.communication.seconds *= 1 - d.efficiency.collective_overlap;
  const Collective hop = pp_hop(d, share.tokens);
  t.hop.bytes = hop.bytes;
  t.hop.seconds = hop.volume_seconds * (1 - d.efficiency.hop_overlap);
}

PrefillTime stage_time(const Deployment& d, std::span<const PrefillSequence> sequences, bool even) {
  PrefillTime t;
  const Share share = share_of(d, sequences, even);
  t.tokens = share.all_tokens;
  if (t.tokens <= 0) return t;
  add_compute(t, d, share);
  add_traffic(t, d, share);
  add_communication(t, d, share);
  const Efficiency& e = d.efficiency;
  t.kernels.seconds = std::ceil(t.tokens / e.fixed_prefill_tokens) * real(d.counts.layers) / real(d.layout.pp) *
                      e.kernels_per_layer * e.kernel_seconds;
  for (const NamedPart& part : t.parts()) t.seconds += part.part.seconds;
  return t;
}

}  // namespace

std::array<NamedPart, 9> PrefillTime::parts() const {
  return {{{"gemm", gemm},
           {"routed", routed},
           {"mla_core", mla_core},
           {"kda_scan", kda_scan},
           {"attn_res", attn_res},
           {"elementwise", elementwise},
           {"communication", communication},
           {"kernels", kernels},
           {"hop", hop}}};
}

PrefillTime prefill_time(const Deployment& d, const PrefillBatch& batch) {
  PrefillTime t = stage_time(d, batch.sequences, true);
  const double busiest = d.layout.dp > 1 ? stage_time(d, batch.sequences, false).seconds : t.seconds;
  const double chunks = real(std::max<int64_t>(1, batch.chunks));
  t.latency_seconds = busiest / chunks * (chunks + real(d.layout.pp - 1));
  return t;
}

}  // namespace k3::plan
