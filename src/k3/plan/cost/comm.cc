#include "k3/plan/cost/comm.h"

#include <algorithm>
#include <cmath>

#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/routing.h"

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

int64_t domains_of(const Hardware& hardware, int64_t ranks) {
  return (ranks + hardware.domain_gpus - 1) / hardware.domain_gpus;
}

}  // namespace

double collective_floor_seconds(const Hardware& hw, const Efficiency& e, int64_t ranks) {
  if (ranks <= 1) return 0;
  if (ranks > hw.domain_gpus) return e.network_seconds;
  return e.collective_seconds * (1 + e.collective_slope * std::max(0.0, std::log2(real(ranks) / 8)));
}

Collective all_reduce(const Hardware& hw, const Efficiency& e, int64_t ranks, double bytes) {
  Collective c;
  if (ranks <= 1) return c;
  c.floor_seconds = collective_floor_seconds(hw, e, ranks);
  const double local = real(std::min(ranks, hw.domain_gpus)), domains = real(domains_of(hw, ranks));
  const double inside = 2 * (local - 1) / local * bytes;
  const double outside = 2 * (domains - 1) / domains * bytes / local;
  c.bytes = inside + outside;
  c.volume_seconds = inside / (hw.scale_up_bytes_per_second * e.link) + outside / (hw.network_bytes_per_second * e.link);
  return c;
}

ExpertTraffic expert_traffic(const Counts& counts, const Precision& precision, int64_t ranks) {
  return expert_traffic(counts, precision, ranks, real(counts.expert_width));
}

ExpertTraffic expert_traffic(const Counts& counts, const Precision& precision, int64_t ranks, double width) {
  ExpertTraffic t;
  t.copies = distinct_ranks(counts.experts, counts.topk, ranks) * real(ranks - 1) / real(ranks);
  t.dispatch_bytes = t.copies * width * precision.dispatch;
  t.combine_bytes = t.copies * width * precision.combine;
  return t;
}

Collective expert_exchange(const Deployment& d, double rank_tokens) {
  const int64_t ranks = d.layout.stage_ranks();
  Collective c;
  if (ranks <= 1 || d.layout.dp <= 1 || d.counts.moe_layers == 0) return c;
  c.floor_seconds = 2 * collective_floor_seconds(d.hardware, d.efficiency, ranks);
  const bool inside = ranks <= d.hardware.domain_gpus;
  const int64_t places = inside ? ranks : domains_of(d.hardware, ranks);
  c.bytes = rank_tokens * expert_traffic(d.counts, d.precision, places).bytes();
  const double rate = inside ? d.hardware.scale_up_bytes_per_second : d.hardware.network_bytes_per_second;
  c.volume_seconds = c.bytes / (rate * d.efficiency.link);
  return c;
}

double pp_payload_bytes(const Counts& counts, const Precision& precision, int64_t layers_before) {
  const double row = real(counts.hidden) * precision.activation;
  if (counts.attn_res_block == 0) return row;
  const int64_t blocks = 1 + layers_before / counts.attn_res_block + (layers_before % counts.attn_res_block != 0 ? 1 : 0);
  return real(blocks) * row;
}

double mean_pp_payload_bytes(const Counts& counts, const Precision& precision, int64_t stages) {
  if (stages <= 1) return 0;
  double sum = 0;
  for (int64_t s = 1; s < stages; ++s) sum += pp_payload_bytes(counts, precision, counts.layers * s / stages);
  return sum / real(stages - 1);
}

Collective pp_hop(const Deployment& d, double rows) {
  Collective c;
  if (d.layout.pp <= 1) return c;
  const bool inside = d.layout.gpus() <= d.hardware.domain_gpus;
  c.floor_seconds = inside ? d.efficiency.collective_seconds : d.efficiency.network_seconds;
  c.bytes = rows * mean_pp_payload_bytes(d.counts, d.precision, d.layout.pp);
  const double rate = inside ? d.hardware.scale_up_bytes_per_second : d.hardware.network_bytes_per_second;
  c.volume_seconds = c.bytes / (rate * d.efficiency.link);
  return c;
}

KcpTraffic kcp_traffic(const Counts& counts, const Precision& precision, int64_t tp) {
  KcpTraffic t;
  const double heads = real(counts.kda_heads) / real(tp);
  t.fragment_bytes = heads * real(counts.key_dim * (counts.key_dim + counts.value_dim)) * kFp32Bytes;
  t.halo_bytes = real(counts.conv_values()) / real(tp) * precision.activation;
  return t;
}

double softmax_cp_bytes(const Counts& counts, const Precision& precision, double tokens, int64_t ranks, bool expanded) {
  const int64_t values =
      expanded ? counts.mla_heads * (counts.nope_dim + counts.rope_dim + counts.mla_value_dim) : counts.cached_values();
  return tokens * real(ranks - 1) / real(ranks) * real(values) * precision.activation;
}

HandOver pd_hand_over(const Counts& counts, const Precision& precision, double tokens) {
  return {fixed_bytes(counts, precision), tokens * cache_bytes_per_token(counts, precision)};
}

}  // namespace k3::plan
