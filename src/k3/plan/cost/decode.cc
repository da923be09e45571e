#include "k3/plan/cost/decode.h"

#include <algorithm>

#include "k3/plan/cost/comm.h"
#include "k3/plan/cost/flops.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/roof.h"
#include "k3/plan/cost/routing.h"

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

// Matrices that every row passes, and the head.
void add_matrices(DecodeStep& step, const Deployment& d) {
  const Efficiency& e = d.efficiency;
  const double rate = d.hardware.hbm_bytes_per_second * e.weight_bytes;
  const double flop_rate = d.hardware.bf16_flops_per_second * e.decode_gemm_flops;
  const double of_a_rank = real(step.rows) / real(d.layout.tp) / real(d.layout.pp);
  const ResidentWeights w = resident_weights(d.counts, d.layout);
  const LinearFlops f = linear_flops(d.counts);
  const double dcp_query = real(d.layout.dcp - 1) / real(d.layout.tp) * d.counts.query_up_bytes / real(d.layout.pp);
  step.kda_proj = roof(w.kda, rate, f.kda * of_a_rank, flop_rate);
  step.mla_proj = roof(w.mla + dcp_query, rate, f.mla * of_a_rank, flop_rate);
  step.moe_dense = roof(w.moe_dense(), rate, (f.shared + f.latent + f.router) * of_a_rank, flop_rate);
  step.dense_ffn = roof(w.dense, rate, f.dense * of_a_rank, flop_rate);
  step.head = roof(d.counts.head_read_bytes / real(d.layout.tp) / real(d.layout.pp), rate, f.head * of_a_rank, flop_rate);
}

void add_routed(DecodeStep& step, const Deployment& d, const DecodeBatch& batch, int64_t stage_requests) {
  const Counts& c = d.counts;
  const int64_t ranks = d.layout.stage_ranks();
  const double independent = real(stage_requests) * (1 + real(batch.draft_tokens) * (1 - batch.row_overlap));
  step.distinct_experts = batch.zipf_exponent > 0
                              ? distinct_experts_zipf(c.experts, c.topk, independent, batch.zipf_exponent)
                              : distinct_experts(c.experts, c.topk, independent);
  const double on_a_rank = d.layout.moe == MoeSharding::ep ? busiest_rank_experts(c.experts, step.distinct_experts, ranks)
                                                           : step.distinct_experts / real(ranks);
  const double layers = real(c.moe_layers) / real(d.layout.pp);
  const double rows = real(stage_requests * (batch.draft_tokens + 1));
  step.routed = roof(on_a_rank * c.expert_bytes() * layers, d.hardware.hbm_bytes_per_second * d.efficiency.weight_bytes,
                     linear_flops(c).routed * rows / real(ranks) / real(d.layout.pp), routed_peak(d) * routed_efficiency(d));
}

// What a request's own history costs, and AttnRes.
void add_history(DecodeStep& step, const Deployment& d, const DecodeBatch& batch) {
  const Efficiency& e = d.efficiency;
  const double tp = real(d.layout.tp), pp = real(d.layout.pp), hbm = d.hardware.hbm_bytes_per_second;
  const SpeculationScheme scheme = batch.draft_tokens > 0 ? batch.scheme : SpeculationScheme::none;
  const double requests = real(step.group_requests), rows = real(step.rows);
  step.state_bytes =
      requests * speculation_state_traffic(d.counts, d.precision, scheme, batch.draft_tokens).traffic_bytes / (tp * pp);
  const double conv = requests * 2 * conv_bytes(d.counts, d.precision) / (tp * pp);
  const double peak = d.hardware.bf16_flops_per_second;
  step.kda_state = roof(step.state_bytes + conv, hbm * e.state_bytes, rows * kda_decode_flops(d.counts) / (tp * pp), peak);
  const double cache =
      requests * batch.context_tokens * cache_bytes_per_token(d.counts, d.precision) / (pp * real(d.layout.dcp));
  step.mla_core = roof(cache, hbm * e.attention_bytes, rows * mla_decode_flops(d.counts, batch.context_tokens) / (tp * pp),
                       peak * e.attention_flops);
  step.attn_res = roof(rows * attn_res_bytes(d.counts, d.precision) / pp, hbm * e.attention_bytes,
                       rows * attn_res_flops(d.counts) / pp, peak);
}

void add_communication(DecodeStep& step, const Deployment& d) {
  const Counts& c = d.counts;
  const double pp = real(d.layout.pp), rows = real(step.rows);
  const auto add = [&](double times, const Collective& one) {
    step.communication.seconds += times * one.seconds();
    step.communication.bytes += times * one.bytes;
  };
  add(2 * real(c.layers) / pp,
      all_reduce(d.hardware, d.efficiency, d.layout.tp, rows * real(c.hidden) * d.precision.activation));
  add(real(c.moe_layers) / pp, expert_exchange(d, rows / real(d.layout.tp)));
  if (d.layout.dcp <= 1) return;
  const double dcp = real(d.layout.dcp), heads = real(c.mla_heads) * dcp / real(d.layout.tp);
  Collective exchange;  // partial outputs and their log-sums, in every MLA layer
  exchange.bytes = rows * heads * real(c.latent_rank + 1) * d.precision.activation * (dcp - 1) / dcp;
  exchange.floor_seconds = collective_floor_seconds(d.hardware, d.efficiency, d.layout.dcp);
  const bool inside = d.layout.dcp <= d.hardware.domain_gpus;
  const double rate = inside ? d.hardware.scale_up_bytes_per_second : d.hardware.network_bytes_per_second;
  exchange.volume_seconds = exchange.bytes / (rate * d.efficiency.link);
  add(real(c.mla_layers) / pp, exchange);
}

}  // namespace

std::array<NamedPart, 11> DecodeStep::parts() const {
  return {{{"kda_proj", kda_proj},
           {"mla_proj", mla_proj},
           {"moe_dense", moe_dense},
           {"dense_ffn", dense_ffn},
           {"head", head},
           {"routed", routed},
           {"kda_state", kda_state},
           {"mla_core", mla_core},
           {"attn_res", attn_res},
           {"communication", communication},
           {"kernels", kernels}}};
}

DecodeStep decode_step(const Deployment& d, const DecodeBatch& batch) {
  const Efficiency& e = d.efficiency;
  const int64_t stage_requests = std::max<int64_t>(1, ceil_div(batch.requests, d.layout.pp));
  DecodeStep step;
  step.group_requests = std::max<int64_t>(1, ceil_div(stage_requests, d.layout.dp));
  step.rows = step.group_requests * (batch.draft_tokens + 1);
  add_matrices(step, d);
  add_routed(step, d, batch, stage_requests);
  add_history(step, d, batch);
  add_communication(step, d);
  const double kernels = e.kernels_per_layer + (batch.draft_tokens > 0 ? e.verify_kernels_per_layer : 0);
  step.kernels.seconds = real(d.counts.layers) / real(d.layout.pp) * kernels * e.kernel_seconds;
  for (const NamedPart& part : step.parts()) step.stage_seconds += part.part.seconds;
  step.hop_seconds = pp_hop(d, real(step.rows)).seconds();
  step.host_seconds = e.host_step_seconds;
  step.draft_seconds = batch.draft_tokens > 0 ? e.draft_seconds : 0;
  step.seconds = real(d.layout.pp) * step.stage_seconds + real(d.layout.pp - 1) * step.hop_seconds + step.host_seconds +
                 step.draft_seconds;
  return step;
}

}  // namespace k3::plan
