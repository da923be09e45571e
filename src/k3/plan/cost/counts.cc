#include "k3/plan/cost/counts.h"

#include <algorithm>

#include "k3/model/params.h"
#include "k3/model/summary.h"

namespace k3::plan {

namespace {

constexpr double kIdealisedVisionParams = 401e6;  // of the nested family, always at two bytes

Counts dimensions(const Config& config) {
  Counts c;
  c.layers = config.num_hidden_layers;
  for (int64_t l = 0; l < c.layers; ++l) {
    ++(config.is_kda(l) ? c.kda_layers : c.mla_layers);
    ++(config.is_moe(l) ? c.moe_layers : c.dense_layers);
  }
  c.hidden = config.hidden_size;
  c.vocabulary = config.vocab_size;
  c.kda_heads = config.kda_num_heads;
  c.key_dim = c.value_dim = config.kda_head_dim;
  c.conv_taps = config.short_conv_kernel_size;
  c.mla_heads = config.num_attention_heads;
  c.query_rank = config.q_lora_rank.value_or(0);
  c.latent_rank = config.kv_lora_rank;
  c.nope_dim = config.qk_nope_head_dim;
  c.rope_dim = config.qk_rope_head_dim;
  c.mla_value_dim = config.v_head_dim;
  c.experts = config.num_experts;
  c.topk = config.num_experts_per_token;
  c.expert_hidden = config.moe_intermediate_size;
  c.expert_width = config.expert_width();
  c.attn_res_block = config.attn_res_block_size.value_or(0);
  return c;
}

bool is_attn_res(ParamId id) {
  switch (id) {
    case ParamId::self_attention_res_norm:
    case ParamId::self_attention_res_proj:
    case ParamId::mlp_res_norm:
    case ParamId::mlp_res_proj:
    case ParamId::output_res_norm:
    case ParamId::output_res_proj: return true;
    default: return false;
  }
}

ModuleCount& module_of(ModuleCounts& m, const ParamFamily& family) {
  switch (family.component) {
    case Component::routed_experts: return m.routed;
    case Component::kda: return m.kda;
    case Component::mla: return m.mla;
    case Component::shared_experts: return m.shared;
    case Component::latent: return m.latent;
    case Component::router: return m.router;
    case Component::dense_mlp: return m.dense;
    case Component::embedding: return m.embedding;
    case Component::lm_head: return m.head;
    case Component::norms: return is_attn_res(family.id) ? m.attn_res : m.norms;
    case Component::vision_tower:
    case Component::projector: return m.vision;
  }
  return m.norms;
}

// The cost model keeps beta whole on every rank, as engines do, although the table may split it by heads.
bool is_whole_on_every_rank(const ParamFamily& family) {
  return family.shard == ParamShard::replicated || family.id == ParamId::kda_b_proj;
}

void add_family(Counts& c, const Config& config, const ParamFamily& family, double params, double bytes) {
  ModuleCount& module = module_of(c.modules, family);
  module.params += params;
  module.bytes += bytes;
  if (family.matrix && family.id != ParamId::embed_tokens) module.flop_params += params;
  if (is_whole_on_every_rank(family)) {
    if (family.component == Component::kda) c.replicated.kda += bytes;
    if (family.component == Component::mla) c.replicated.mla += bytes;
    if (family.component == Component::norms) c.replicated.vectors += bytes;
  }
  if (family.id == ParamId::routed_down_proj) c.replicated.latent_down += bytes;
  if (family.id == ParamId::mla_q_b_proj || family.id == ParamId::mla_q_proj) c.query_up_bytes += bytes;
  const bool head = family.id == ParamId::lm_head || (family.id == ParamId::embed_tokens && config.tie_word_embeddings);
  if (head) {
    c.head_read_bytes += bytes;
    if (family.id == ParamId::embed_tokens) c.modules.head.flop_params += params;
  }
}

ModuleCount idealised(double params, double bytes_each) { return {params, params * bytes_each, params}; }

}  // namespace

std::array<NamedModule, 12> ModuleCounts::named() const {
  return {{{"kda", kda},
           {"mla", mla},
           {"routed", routed},
           {"shared", shared},
           {"latent", latent},
           {"router", router},
           {"dense", dense},
           {"embedding", embedding},
           {"head", head},
           {"norms", norms},
           {"attn_res", attn_res},
           {"vision", vision}}};
}

double ModuleCounts::total_params() const {
  double sum = 0;
  for (const NamedModule& m : named()) sum += m.count.params;
  return sum;
}

double ModuleCounts::total_bytes() const {
  double sum = 0;
  for (const NamedModule& m : named()) sum += m.count.bytes;
  return sum;
}

double Counts::expert_bytes() const {
  const double all = static_cast<double>(moe_layers * experts);
  return all > 0 ? modules.routed.bytes / all : 0;
}

double Counts::expert_params() const { return 3.0 * static_cast<double>(expert_width) * static_cast<double>(expert_hidden); }

double Counts::active_params() const {
  const ModuleCounts& m = modules;
  const double head = m.head.params > 0 ? m.head.params : m.head.flop_params;
  return m.kda.params + m.mla.params + m.shared.params + m.latent.params + m.router.params + m.dense.params +
         m.norms.params + m.attn_res.params + head + static_cast<double>(moe_layers * topk) * expert_params();
}

Result<Counts> table_counts(const Config& config) {
  K3_TRY(check_sizes(config));
  Counts c = dimensions(config);
  for (const ParamFamily& family : param_table()) {
    const ComponentTotals totals = family_totals(config, family);
    if (totals.tensors == 0) continue;
    add_family(c, config, family, static_cast<double>(totals.params), static_cast<double>(totals.size_bytes));
  }
  return c;
}

Result<Counts> idealised_counts(const Config& config, const Precision& precision) {
  K3_TRY(check_sizes(config));
  Counts c = dimensions(config);
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double H = real(c.hidden), n = real(c.kda_heads), dk = real(c.key_dim), dv = real(c.value_dim),
               taps = real(c.conv_taps);
  const double heads = real(c.mla_heads), rq = real(c.query_rank), rc = real(c.latent_rank);
  const double dqk = real(c.nope_dim + c.rope_dim), dno = real(c.nope_dim + c.mla_value_dim), dout = real(c.mla_value_dim);
  const double kda_layers = real(c.kda_layers), mla_layers = real(c.mla_layers), moe = real(c.moe_layers),
               b = precision.weight;

  const double gate = config.use_full_rank_gate ? H * n * dv : H * dv + dv * n * dv;
  const double kda =
      2 * H * n * dk + 2 * H * n * dv + gate + H * dk + dk * n * dk + H * n + taps * n * (2 * dk + dv) + n * dk + n + dv;
  const double query_up = rq > 0 ? rq * heads * dqk : H * heads * dqk;
  const double query = rq > 0 ? H * rq + rq + query_up : query_up;
  const double mla_gate = config.mla_use_output_gate.value_or(false) ? H * heads * dout : 0;
  const double mla = query + H * real(c.cached_values()) + rc + rc * heads * dno + heads * dout * H + mla_gate;
  const bool latent = config.routed_expert_hidden_size.has_value();
  const double width = real(c.expert_width);

  c.modules.kda = idealised(kda_layers * kda, b);
  c.modules.mla = idealised(mla_layers * mla, b);
  c.modules.routed = idealised(moe * real(c.experts) * c.expert_params(), precision.routed_weight);
  c.modules.shared = idealised(moe * 3 * H * real(config.shared_width()), b);
  c.modules.latent = idealised(latent ? moe * (2 * H * width + width) : 0, b);
  c.modules.router = idealised(moe * (H + 1) * real(c.experts), b);
  c.modules.dense = idealised(real(c.dense_layers) * 3 * H * real(config.intermediate_size), b);
  c.modules.embedding = idealised(real(c.vocabulary) * H, b);
  c.modules.embedding.flop_params = 0;
  c.modules.head = idealised(real(c.vocabulary) * H, b);
  c.head_read_bytes = c.modules.head.bytes;
  if (config.tie_word_embeddings) c.modules.head.params = c.modules.head.bytes = 0;
  c.modules.norms = {2 * H * real(c.layers) + H, (2 * H * real(c.layers) + H) * b, 0};
  const double attn_res = c.attn_res_block > 0 ? 2 * H * (2 * real(c.layers) + 1) : 0;
  c.modules.attn_res = {attn_res, attn_res * b, 0};
  if (config.vision) c.modules.vision = {kIdealisedVisionParams, kIdealisedVisionParams * kBf16Bytes, 0};

  c.replicated.kda = kda_layers * (H * dk + H * n) * b;
  c.replicated.mla = mla_layers * (H * rq + H * real(c.cached_values())) * b;
  c.replicated.latent_down = latent ? moe * H * width * b : 0;
  c.query_up_bytes = mla_layers * query_up * b;
  return c;
}

}  // namespace k3::plan
