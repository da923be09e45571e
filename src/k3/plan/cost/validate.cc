#include "k3/plan/cost/validate.h"

#include <cmath>

namespace k3::plan {

namespace {

constexpr double kMostBytes = 1e15, kMostBytesPerSecond = 1e17, kMostFlopsPerSecond = 1e20, kMostSeconds = 1e3;
constexpr int64_t kMostRanks = 1 << 20, kMostTokens = int64_t{1} << 32, kMostRequests = 1 << 24, kMostDraft = 256;
constexpr int64_t kMostClosedLoop = 1 << 20;

// Above `least` (or equal where `closed`) and at most `most`; NaN is neither.
Status check_real(const char* what, const char* name, double value, double least, bool closed, double most) {
  const bool inside = closed ? value >= least : value > least;
  if (inside && value <= most) return {};
  return fail(Code::invalid_argument, "{}: {} is {}; it must be {} {} and at most {}", what, name, value,
              closed ? "at least" : "above", least, most);
}

Status check_whole(const char* what, const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return fail(Code::invalid_argument, "{}: {} is {}; it must be {} to {}", what, name, value, least, most);
}

Status check_divides(const char* divisor_name, int64_t divisor, const char* name, int64_t value) {
  if (value % divisor == 0) return {};
  return fail(Code::invalid_argument, "layout: {} {} does not divide {} {}", divisor_name, divisor, value, name);
}

struct RealField {
  const char* name;
  double value, least;
  bool closed;
  double most;
};

template <size_t N>
Status check_fields(const char* what, const RealField (&fields)[N]) {
  for (const RealField& f : fields) K3_TRY(check_real(what, f.name, f.value, f.least, f.closed, f.most));
  return {};
}

}  // namespace

Status validate(const Hardware& h) {
  const std::string what = h.name.empty() ? "hardware" : "hardware " + h.name;
  const RealField fields[] = {
      {"memory_bytes", h.memory_bytes, 0, false, kMostBytes},
      {"hbm_bytes_per_second", h.hbm_bytes_per_second, 0, false, kMostBytesPerSecond},
      {"bf16_flops_per_second", h.bf16_flops_per_second, 0, false, kMostFlopsPerSecond},
      {"fp8_flops_per_second", h.fp8_flops_per_second, 0, false, kMostFlopsPerSecond},
      {"scale_up_bytes_per_second", h.scale_up_bytes_per_second, 0, false, kMostBytesPerSecond},
      {"network_bytes_per_second", h.network_bytes_per_second, 0, false, kMostBytesPerSecond},
      {"host_bytes_per_second", h.host_bytes_per_second, 0, false, kMostBytesPerSecond},
      {"scan_lanes", h.scan_lanes, 0, false, 1e9},
      {"scan_chunk_seconds", h.scan_chunk_seconds, 0, true, kMostSeconds},
      {"scan_head_token_seconds", h.scan_head_token_seconds, 0, true, kMostSeconds},
  };
  K3_TRY(check_fields(what.c_str(), fields));
  return check_whole(what.c_str(), "domain_gpus", h.domain_gpus, 1, kMostRanks);
}

Status validate(const Efficiency& e) {
  // Above 1 is allowed where a calibration may find a machine better than its record.
  const RealField fields[] = {
      {"weight_bytes", e.weight_bytes, 0, false, 10},
      {"state_bytes", e.state_bytes, 0, false, 10},
      {"attention_bytes", e.attention_bytes, 0, false, 10},
      {"gemm_flops", e.gemm_flops, 0, false, 10},
      {"decode_gemm_flops", e.decode_gemm_flops, 0, false, 10},
      {"routed_flops", e.routed_flops, 0, false, 10},
      {"attention_flops", e.attention_flops, 0, false, 10},
      {"link", e.link, 0, false, 10},
      {"gemm_loss_per_log2_tp", e.gemm_loss_per_log2_tp, 0, true, 1},
      {"sliced_routed", e.sliced_routed, 0, false, 10},
      {"collective_overlap", e.collective_overlap, 0, true, 1},
      {"hop_overlap", e.hop_overlap, 0, true, 1},
      {"kernels_per_layer", e.kernels_per_layer, 0, true, 1e5},
      {"verify_kernels_per_layer", e.verify_kernels_per_layer, 0, true, 1e5},
      {"kernel_seconds", e.kernel_seconds, 0, true, kMostSeconds},
      {"fixed_prefill_tokens", e.fixed_prefill_tokens, 0, false, 1e12},
      {"collective_seconds", e.collective_seconds, 0, true, kMostSeconds},
      {"collective_slope", e.collective_slope, 0, true, 1e3},
      {"network_seconds", e.network_seconds, 0, true, kMostSeconds},
      {"host_step_seconds", e.host_step_seconds, 0, true, kMostSeconds},
      {"draft_seconds", e.draft_seconds, 0, true, kMostSeconds},
      {"request_seconds", e.request_seconds, 0, true, kMostSeconds},
      {"elementwise_passes", e.elementwise_passes, 0, true, 1e5},
      {"residual_passes", e.residual_passes, 0, true, e.elementwise_passes},
      {"scan_chunk_tokens", e.scan_chunk_tokens, 1, true, 1e6},
      {"memory_reserve", e.memory_reserve, 0, true, 0.99},
      {"extra_bytes", e.extra_bytes, 0, true, kMostBytes},
  };
  return check_fields("efficiency", fields);
}

Status validate(const Precision& p) {
  const RealField fields[] = {
      {"state", p.state, 0, false, 16},
      {"conv", p.conv, 0, false, 16},
      {"cache", p.cache, 0, false, 16},
      {"activation", p.activation, 0, false, 16},
      {"routed_weight", p.routed_weight, 0, false, 16},
      {"weight", p.weight, 0, false, 16},
      {"dispatch", p.dispatch, 0, false, 16},
      {"combine", p.combine, 0, false, 16},
  };
  return check_fields("precision", fields);
}

Status validate(const Counts& c) {
  if (c.kda_layers < 1 || c.mla_layers < 1) {
    return fail(Code::unsupported, "model: {} KDA and {} MLA layers; the cost model is of hybrids and needs both kinds",
                c.kda_layers, c.mla_layers);
  }
  const struct {
    const char* name;
    int64_t value;
  } positive[] = {{"num_hidden_layers", c.layers},  {"hidden_size", c.hidden},
                  {"vocab_size", c.vocabulary},     {"KDA heads", c.kda_heads},
                  {"KDA key dim", c.key_dim},       {"KDA value dim", c.value_dim},
                  {"attention heads", c.mla_heads}, {"cached values of a token", c.cached_values()}};
  for (const auto& p : positive) K3_TRY(check_whole("model", p.name, p.value, 1, int64_t{1} << 40));
  if (c.kda_layers + c.mla_layers != c.layers || c.moe_layers + c.dense_layers != c.layers) {
    return fail(Code::invalid_argument, "model: {} layers, but {} KDA and {} MLA, {} MoE and {} dense", c.layers,
                c.kda_layers, c.mla_layers, c.moe_layers, c.dense_layers);
  }
  if (c.moe_layers > 0) {
    K3_TRY(check_whole("model", "num_experts", c.experts, 1, kMostRanks));
    K3_TRY(check_whole("model", "num_experts_per_token", c.topk, 1, c.experts));
  }
  return {};
}

Status validate(const Layout& l, const Counts& c) {
  const struct {
    const char* name;
    int64_t value;
  } ranks[] = {{"tp", l.tp}, {"dp", l.dp}, {"pp", l.pp}, {"dcp", l.dcp}, {"kcp", l.kcp}};
  for (const auto& r : ranks) K3_TRY(check_whole("layout", r.name, r.value, 1, kMostRanks));
  if (l.tp > kMostRanks / l.dp || l.tp * l.dp > kMostRanks / l.pp) {
    return fail(Code::invalid_argument, "layout: tp {} * dp {} * pp {} is more than {} accelerators", l.tp, l.dp, l.pp,
                kMostRanks);
  }
  K3_TRY(check_divides("tp", l.tp, "KDA heads", c.kda_heads));
  K3_TRY(check_divides("tp", l.tp, "attention heads", c.mla_heads));
  K3_TRY(check_divides("dcp", l.dcp, "ranks of an attention group (tp)", l.tp));
  K3_TRY(check_divides("kcp", l.kcp, "attention groups (dp)", l.dp));
  if (l.pp > c.layers) return fail(Code::invalid_argument, "layout: pp {} stages for {} layers", l.pp, c.layers);
  if (c.moe_layers == 0) return {};
  if (l.moe == MoeSharding::ep) {
    if (l.stage_ranks() > c.experts) {
      return fail(Code::invalid_argument, "layout: tp {} * dp {} is {} ranks for {} experts; each must hold one", l.tp, l.dp,
                  l.stage_ranks(), c.experts);
    }
    return check_divides("tp * dp", l.stage_ranks(), "experts", c.experts);
  }
  if (l.dp > 1) {
    return fail(Code::unsupported,
                "layout: dp {} with experts sliced by tp is not modelled; use expert parallelism (moe ep)", l.dp);
  }
  return check_divides("tp", l.tp, "values of an expert's width (moe_intermediate_size)", c.expert_hidden);
}

Status validate(const Deployment& d) {
  K3_TRY(validate(d.counts));
  K3_TRY(validate(d.hardware));
  K3_TRY(validate(d.efficiency));
  K3_TRY(validate(d.precision));
  return validate(d.layout, d.counts);
}

Status validate(const DecodeBatch& b) {
  K3_TRY(check_whole("decode batch", "requests", b.requests, 1, kMostRequests));
  K3_TRY(check_real("decode batch", "context_tokens", b.context_tokens, 0, true, static_cast<double>(kMostTokens)));
  K3_TRY(check_whole("decode batch", "draft_tokens", b.draft_tokens, 0, kMostDraft));
  K3_TRY(check_real("decode batch", "row_overlap", b.row_overlap, 0, true, 1));
  return check_real("decode batch", "zipf_exponent", b.zipf_exponent, 0, true, 10);
}

Status validate(const PrefillBatch& b) {
  int64_t tokens = 0;
  for (const PrefillSequence& s : b.sequences) {
    K3_TRY(check_whole("prefill batch", "new_tokens", s.new_tokens, 0, kMostTokens));
    K3_TRY(check_whole("prefill batch", "past_tokens", s.past_tokens, 0, kMostTokens));
    K3_TRY(check_whole("prefill batch", "count", s.count, 1, kMostClosedLoop));
    tokens += s.new_tokens * s.count;
    K3_TRY(check_whole("prefill batch", "new tokens of all sequences", tokens, 0, kMostTokens));
  }
  K3_TRY(check_whole("prefill batch", "new tokens of all sequences", tokens, 1, kMostTokens));
  return check_whole("prefill batch", "chunks", b.chunks, 1, kMostTokens);
}

Status validate(const ClosedLoad& l) {
  K3_TRY(check_whole("load", "concurrency", l.concurrency, 1, kMostClosedLoop));
  K3_TRY(check_whole("load", "input_tokens", l.input_tokens, 1, kMostTokens));
  K3_TRY(check_whole("load", "output_tokens", l.output_tokens, 1, kMostTokens));
  K3_TRY(check_whole("load", "prefill_batch_tokens", l.prefill_batch_tokens, 1, kMostTokens));
  K3_TRY(check_whole("load", "draft_tokens", l.draft_tokens, 0, kMostDraft));
  return check_real("load", "tokens_per_step", l.tokens_per_step, 1, true, static_cast<double>(l.draft_tokens + 1));
}

}  // namespace k3::plan
