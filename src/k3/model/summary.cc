#include "k3/model/summary.h"

namespace k3 {
namespace {

// About 8 times the tensors, and 300 times the weights, of the largest released model.
constexpr double kMostTensors = 1 << 22, kMostParams = 1e15;

// How often a family occurs.
int64_t occurrences(const Config& c, const ParamFamily& family) {
  int64_t n = 0;
  switch (family.scope) {
    case ParamScope::layer:
    case ParamScope::expert:
      for (int64_t l = 0; l < c.num_hidden_layers; ++l) n += family.present(c, l) ? 1 : 0;
      return family.scope == ParamScope::expert ? n * c.local_expert_count() : n;
    case ParamScope::global: return family.present(c, -1) ? 1 : 0;
    case ParamScope::vision: return c.vision ? 1 : 0;
    case ParamScope::vision_block: return c.vision ? c.vision->num_hidden_layers : 0;
  }
  return n;
}

// Read for every decoded token: not the vision parts, and of an untied embedding table only a row.
bool is_active(const Config& c, const ParamFamily& family) {
  const bool vision = family.component == Component::vision_tower || family.component == Component::projector;
  return !vision && (family.component != Component::embedding || c.tie_word_embeddings);
}

}  // namespace

Status check_sizes(const Config& c) {
  double tensors = 0, params = 0;  // in double: the products may be beyond any integer
  for (const ParamFamily& family : param_table()) {
    const auto count = static_cast<double>(occurrences(c, family));
    if (count == 0) continue;
    double values = count;
    for (const int64_t d : family.shape(c)) values *= static_cast<double>(d);
    tensors += family.store == ParamStore::expert && c.experts_mxfp4 ? 2 * count : count;
    params += values;
  }
  if (tensors > kMostTensors || params > kMostParams) {
    return fail(Code::unsupported,
                "the config describes a model of {:.3g} tensors and {:.3g} parameters; at most {:.3g} "
                "and {:.3g} are supported",
                tensors, params, kMostTensors, kMostParams);
  }
  const double state = static_cast<double>(c.kda_width()) * static_cast<double>(c.kda_head_dim);
  if (state > kMostParams) {
    return fail(Code::unsupported, "linear_attn_config: {} heads of {} make a state of {:.3g} values a layer",
                c.kda_num_heads, c.kda_head_dim, state);
  }
  return {};
}

ComponentTotals family_totals(const Config& c, const ParamFamily& family) {
  const int64_t count = occurrences(c, family);
  if (count == 0) return {};
  const int64_t values = element_count(family.shape(c));
  if (family.store == ParamStore::expert && c.experts_mxfp4) {
    return {2 * count, values * count, (values / 2 + values / 32) * count};
  }
  if (c.trunk_int8 && may_be_int8(family, c)) return {2 * count, values * count, (values + values / 32) * count};
  const bool wide = family.store == ParamStore::f32 || (family.store == ParamStore::small && c.nested);
  // A zero-padded A_log counts as stored, as the released totals do.
  return {count, values * count, values * count * (wide ? 4 : 2)};
}

ModelSummary summarise(const Config& c) {
  ModelSummary s;
  for (const ParamFamily& family : param_table()) {
    const ComponentTotals t = family_totals(c, family);
    if (t.tensors == 0) continue;
    for (ComponentTotals* sum : {&s.components[family.component], &s.total}) {
      sum->tensors += t.tensors;
      sum->params += t.params;
      sum->size_bytes += t.size_bytes;
    }
    if (!is_active(c, family)) continue;
    const bool routed = family.component == Component::routed_experts;
    const int64_t params = routed ? t.params / c.num_experts * c.num_experts_per_token : t.params;
    s.active_params += params;
    s.active_bytes += routed ? t.size_bytes / c.num_experts * c.num_experts_per_token : t.size_bytes;
    if (family.matrix) s.matrix_flops_per_token += 2.0 * static_cast<double>(params);
  }
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    ++(c.is_kda(l) ? s.kda_layers : s.mla_layers);
    ++(c.is_moe(l) ? s.moe_layers : s.dense_layers);
  }
  s.state_values_per_sequence = s.kda_layers * c.kda_width() * c.kda_head_dim;
  s.conv_values_per_sequence = s.kda_layers * 3 * (c.short_conv_kernel_size - 1) * c.kda_width();
  s.latent_values_per_token = s.mla_layers * (c.kv_lora_rank + c.qk_rope_head_dim);
  // Per state element: decay, two dots and the update, 7 operations.
  s.recurrence_flops_per_token = 7.0 * static_cast<double>(s.state_values_per_sequence);
  s.attention_flops_per_context =
      2.0 * static_cast<double>(s.mla_layers * c.num_attention_heads * (2 * c.kv_lora_rank + c.qk_rope_head_dim));
  return s;
}

Status use_stored_sizes(const Checkpoint& checkpoint, const Config& config, ModelSummary& summary) {
  for (auto& [component, totals] : summary.components) totals.tensors = totals.size_bytes = 0;
  summary.total.tensors = summary.total.size_bytes = summary.active_bytes = 0;
  double active = 0;
  Status status;
  for_each_param(config, [&](const ParamFamily& family, int64_t layer, int64_t expert) {
    if (!status.ok()) return;
    const std::string name = param_name(config, family.id, layer, expert);
    const bool packed = family.store == ParamStore::expert && checkpoint.contains(name + "_packed");
    int64_t size = 0, tensors = 0;
    for (const char* suffix : {"", "_packed", "_scale"}) {
      const bool scale = *suffix != '\0' && may_be_int8(family, config) && checkpoint.contains(name + suffix);
      if ((*suffix != '\0') != packed && !scale) continue;
      const auto info = checkpoint.find(name + suffix);
      if (!info.ok()) {
        status = info.error();
        return;
      }
      size += info->size_bytes;
      ++tensors;
    }
    for (ComponentTotals* sum : {&summary.components[family.component], &summary.total}) {
      sum->size_bytes += size;
      sum->tensors += tensors;
    }
    if (!is_active(config, family)) return;
    const bool routed = family.component == Component::routed_experts;
    active += static_cast<double>(size) *
              (routed ? static_cast<double>(config.num_experts_per_token) / static_cast<double>(config.num_experts) : 1.0);
  });
  summary.active_bytes = static_cast<int64_t>(active + 0.5);
  return status;
}

}  // namespace k3
