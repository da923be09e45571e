#include "k3/model/params.h"

#include <algorithm>
#include <array>

#include "k3/base/check.h"

namespace k3 {
namespace {

using Dims = std::vector<int64_t>;
using S = ParamScope;
using C = Component;
using P = ParamStore;
using H = ParamShard;
using O = OptimizerGroup;
using I = ParamInit;

bool always(const Config&, int64_t) { return true; }
bool attn_res(const Config& c, int64_t) { return c.attn_res_block_size.has_value(); }
bool kda(const Config& c, int64_t l) { return c.is_kda(l); }
bool kda_full_gate(const Config& c, int64_t l) { return c.is_kda(l) && c.use_full_rank_gate; }
bool kda_low_gate(const Config& c, int64_t l) { return c.is_kda(l) && !c.use_full_rank_gate; }
bool mla(const Config& c, int64_t l) { return c.is_mla(l); }
bool mla_q_lora(const Config& c, int64_t l) { return c.is_mla(l) && c.q_lora_rank.has_value(); }
bool mla_q_direct(const Config& c, int64_t l) { return c.is_mla(l) && !c.q_lora_rank.has_value(); }
bool mla_gate(const Config& c, int64_t l) { return c.is_mla(l) && c.mla_use_output_gate.value_or(false); }
bool dense(const Config& c, int64_t l) { return !c.is_moe(l); }
bool moe(const Config& c, int64_t l) { return c.is_moe(l); }
bool latent(const Config& c, int64_t l) { return c.is_moe(l) && c.routed_expert_hidden_size.has_value(); }
bool latent_norm(const Config& c, int64_t l) { return latent(c, l) && c.latent_moe_use_norm.value_or(false); }
bool shared(const Config& c, int64_t l) { return c.is_moe(l) && c.num_shared_experts > 0; }
bool untied(const Config& c, int64_t) { return !c.tie_word_embeddings; }
bool vision(const Config& c, int64_t) { return c.vision.has_value(); }

Dims hidden(const Config& c) { return {c.hidden_size}; }
Dims one_hidden(const Config& c) { return {1, c.hidden_size}; }
Dims kda_in(const Config& c) { return {c.kda_width(), c.hidden_size}; }
Dims kda_conv(const Config& c) { return {c.kda_width(), 1, c.short_conv_kernel_size}; }
Dims kda_a_log(const Config& c) {
  // The nested family pads A_log with zeros to head_dim; with more heads than channels only [heads] makes sense.
  if (c.nested && c.kda_num_heads <= c.kda_head_dim) return {c.kda_head_dim};
  if (c.nested) return {c.kda_num_heads};
  return {1, 1, c.kda_num_heads, 1};
}
Dims kda_low_down(const Config& c) { return {c.kda_head_dim, c.hidden_size}; }
Dims kda_low_up(const Config& c) { return {c.kda_width(), c.kda_head_dim}; }
int64_t query_width(const Config& c) { return c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim); }
int64_t value_width(const Config& c) { return c.num_attention_heads * c.v_head_dim; }
int64_t shared_width(const Config& c) { return c.shared_width(); }
int64_t merged_width(const Config& c) { return c.vision->mm_hidden_size * c.vision->merge_height * c.vision->merge_width; }

// clang-format off
const std::vector<ParamFamily>& table() {
  static const std::vector<ParamFamily> kTable = {
    {ParamId::input_layernorm, "model.layers.{l}.input_layernorm.weight", S::layer, C::norms, always, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::post_attention_layernorm, "model.layers.{l}.post_attention_layernorm.weight", S::layer, C::norms, always, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::self_attention_res_norm, "model.layers.{l}.self_attention_res_norm.weight", S::layer, C::norms, attn_res, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::self_attention_res_proj, "model.layers.{l}.self_attention_res_proj.weight", S::layer, C::norms, attn_res, one_hidden, P::bf16, false, H::replicated, O::adamw, I::zeros},
    {ParamId::mlp_res_norm, "model.layers.{l}.mlp_res_norm.weight", S::layer, C::norms, attn_res, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::mlp_res_proj, "model.layers.{l}.mlp_res_proj.weight", S::layer, C::norms, attn_res, one_hidden, P::bf16, false, H::replicated, O::adamw, I::zeros},

    {ParamId::kda_q_proj, "model.layers.{l}.self_attn.q_proj.weight", S::layer, C::kda, kda, kda_in, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_k_proj, "model.layers.{l}.self_attn.k_proj.weight", S::layer, C::kda, kda, kda_in, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_v_proj, "model.layers.{l}.self_attn.v_proj.weight", S::layer, C::kda, kda, kda_in, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_q_conv, "model.layers.{l}.self_attn.q_conv1d.weight", S::layer, C::kda, kda, kda_conv, P::small, false, H::heads, O::adamw, I::conv},
    {ParamId::kda_k_conv, "model.layers.{l}.self_attn.k_conv1d.weight", S::layer, C::kda, kda, kda_conv, P::small, false, H::heads, O::adamw, I::conv},
    {ParamId::kda_v_conv, "model.layers.{l}.self_attn.v_conv1d.weight", S::layer, C::kda, kda, kda_conv, P::small, false, H::heads, O::adamw, I::conv},
    {ParamId::kda_a_log, "model.layers.{l}.self_attn.A_log", S::layer, C::kda, kda, kda_a_log, P::f32, false, H::heads, O::adamw, I::zeros},
    {ParamId::kda_dt_bias, "model.layers.{l}.self_attn.dt_bias", S::layer, C::kda, kda, [](const Config& c) { return Dims{c.kda_width()}; }, P::f32, false, H::heads, O::adamw, I::dt_bias},
    {ParamId::kda_f_a_proj, "model.layers.{l}.self_attn.f_a_proj.weight", S::layer, C::kda, kda, kda_low_down, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::kda_f_b_proj, "model.layers.{l}.self_attn.f_b_proj.weight", S::layer, C::kda, kda, kda_low_up, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_b_proj, "model.layers.{l}.self_attn.b_proj.weight", S::layer, C::kda, kda, [](const Config& c) { return Dims{c.kda_num_heads, c.hidden_size}; }, P::bf16, true, H::heads, O::adamw, I::normal},
    {ParamId::kda_g_proj, "model.layers.{l}.self_attn.g_proj.weight", S::layer, C::kda, kda_full_gate, kda_in, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_g_a_proj, "model.layers.{l}.self_attn.g_a_proj.weight", S::layer, C::kda, kda_low_gate, kda_low_down, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::kda_g_b_proj, "model.layers.{l}.self_attn.g_b_proj.weight", S::layer, C::kda, kda_low_gate, kda_low_up, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::kda_o_norm, "model.layers.{l}.self_attn.o_norm.weight", S::layer, C::kda, kda, [](const Config& c) { return Dims{c.kda_head_dim}; }, P::small, false, H::replicated, O::adamw, I::ones},
    {ParamId::kda_o_proj, "model.layers.{l}.self_attn.o_proj.weight", S::layer, C::kda, kda, [](const Config& c) { return Dims{c.hidden_size, c.kda_width()}; }, P::bf16, true, H::columns, O::muon, I::normal},

    {ParamId::mla_q_a_proj, "model.layers.{l}.self_attn.q_a_proj.weight", S::layer, C::mla, mla_q_lora, [](const Config& c) { return Dims{*c.q_lora_rank, c.hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::mla_q_a_layernorm, "model.layers.{l}.self_attn.q_a_layernorm.weight", S::layer, C::mla, mla_q_lora, [](const Config& c) { return Dims{*c.q_lora_rank}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::mla_q_b_proj, "model.layers.{l}.self_attn.q_b_proj.weight", S::layer, C::mla, mla_q_lora, [](const Config& c) { return Dims{query_width(c), *c.q_lora_rank}; }, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::mla_q_proj, "model.layers.{l}.self_attn.q_proj.weight", S::layer, C::mla, mla_q_direct, [](const Config& c) { return Dims{query_width(c), c.hidden_size}; }, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::mla_kv_a_proj, "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight", S::layer, C::mla, mla, [](const Config& c) { return Dims{c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::mla_kv_a_layernorm, "model.layers.{l}.self_attn.kv_a_layernorm.weight", S::layer, C::mla, mla, [](const Config& c) { return Dims{c.kv_lora_rank}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::mla_kv_b_proj, "model.layers.{l}.self_attn.kv_b_proj.weight", S::layer, C::mla, mla, [](const Config& c) { return Dims{c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank}; }, P::bf16, true, H::heads, O::muon_per_kv, I::normal},
    {ParamId::mla_g_proj, "model.layers.{l}.self_attn.g_proj.weight", S::layer, C::mla, mla_gate, [](const Config& c) { return Dims{value_width(c), c.hidden_size}; }, P::bf16, true, H::heads, O::muon_per_head, I::normal},
    {ParamId::mla_o_proj, "model.layers.{l}.self_attn.o_proj.weight", S::layer, C::mla, mla, [](const Config& c) { return Dims{c.hidden_size, value_width(c)}; }, P::bf16, true, H::columns, O::muon, I::normal},

    {ParamId::mlp_gate_proj, "model.layers.{l}.mlp.gate_proj.weight", S::layer, C::dense_mlp, dense, [](const Config& c) { return Dims{c.intermediate_size, c.hidden_size}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::mlp_up_proj, "model.layers.{l}.mlp.up_proj.weight", S::layer, C::dense_mlp, dense, [](const Config& c) { return Dims{c.intermediate_size, c.hidden_size}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::mlp_down_proj, "model.layers.{l}.mlp.down_proj.weight", S::layer, C::dense_mlp, dense, [](const Config& c) { return Dims{c.hidden_size, c.intermediate_size}; }, P::bf16, true, H::columns, O::muon, I::normal},

    {ParamId::router_gate, "model.layers.{l}.block_sparse_moe.gate.weight", S::layer, C::router, moe, [](const Config& c) { return Dims{c.num_experts, c.hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::router_bias, "model.layers.{l}.block_sparse_moe.gate.e_score_correction_bias", S::layer, C::router, moe, [](const Config& c) { return Dims{c.num_experts}; }, P::small, false, H::replicated, O::none, I::zeros},
    {ParamId::routed_down_proj, "model.layers.{l}.block_sparse_moe.routed_expert_down_proj.weight", S::layer, C::latent, latent, [](const Config& c) { return Dims{c.expert_width(), c.hidden_size}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::routed_norm, "model.layers.{l}.block_sparse_moe.routed_expert_norm.weight", S::layer, C::latent, latent_norm, [](const Config& c) { return Dims{c.expert_width()}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::routed_up_proj, "model.layers.{l}.block_sparse_moe.routed_expert_up_proj.weight", S::layer, C::latent, latent, [](const Config& c) { return Dims{c.hidden_size, c.expert_width()}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::shared_gate_proj, "model.layers.{l}.block_sparse_moe.shared_experts.gate_proj.weight", S::layer, C::shared_experts, shared, [](const Config& c) { return Dims{shared_width(c), c.hidden_size}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::shared_up_proj, "model.layers.{l}.block_sparse_moe.shared_experts.up_proj.weight", S::layer, C::shared_experts, shared, [](const Config& c) { return Dims{shared_width(c), c.hidden_size}; }, P::bf16, true, H::rows, O::muon, I::normal},
    {ParamId::shared_down_proj, "model.layers.{l}.block_sparse_moe.shared_experts.down_proj.weight", S::layer, C::shared_experts, shared, [](const Config& c) { return Dims{c.hidden_size, shared_width(c)}; }, P::bf16, true, H::columns, O::muon, I::normal},

    {ParamId::expert_w1, "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight", S::expert, C::routed_experts, moe, [](const Config& c) { return Dims{c.moe_intermediate_size, c.expert_width()}; }, P::expert, true, H::experts, O::muon, I::normal},
    {ParamId::expert_w2, "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight", S::expert, C::routed_experts, moe, [](const Config& c) { return Dims{c.expert_width(), c.moe_intermediate_size}; }, P::expert, true, H::experts, O::muon, I::normal},
    {ParamId::expert_w3, "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight", S::expert, C::routed_experts, moe, [](const Config& c) { return Dims{c.moe_intermediate_size, c.expert_width()}; }, P::expert, true, H::experts, O::muon, I::normal},

    {ParamId::embed_tokens, "model.embed_tokens.weight", S::global, C::embedding, always, [](const Config& c) { return Dims{c.vocab_size, c.hidden_size}; }, P::bf16, true, H::vocabulary, O::adamw, I::normal},
    {ParamId::final_norm, "model.norm.weight", S::global, C::norms, always, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::output_res_norm, "model.output_attn_res_norm.weight", S::global, C::norms, attn_res, hidden, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::output_res_proj, "model.output_attn_res_proj.weight", S::global, C::norms, attn_res, one_hidden, P::bf16, false, H::replicated, O::adamw, I::zeros},
    {ParamId::lm_head, "lm_head.weight", S::global, C::lm_head, untied, [](const Config& c) { return Dims{c.vocab_size, c.hidden_size}; }, P::bf16, true, H::vocabulary, O::adamw, I::normal},

    {ParamId::mm_proj_0, "mm_projector.proj.0.weight", S::vision, C::projector, vision, [](const Config& c) { return Dims{merged_width(c), merged_width(c)}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::mm_proj_2, "mm_projector.proj.2.weight", S::vision, C::projector, vision, [](const Config& c) { return Dims{c.vision->text_hidden_size, merged_width(c)}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::mm_post_norm, "mm_projector.post_norm.weight", S::vision, C::projector, vision, [](const Config& c) { return Dims{c.vision->text_hidden_size}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::patch_embed, "vision_tower.patch_embed.proj.weight", S::vision, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size, 3, c.vision->patch_size, c.vision->patch_size}; }, P::bf16, true, H::replicated, O::adamw, I::normal},
    {ParamId::patch_pos_emb, "vision_tower.patch_embed.pos_emb.weight", S::vision, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->init_pos_emb_height, c.vision->init_pos_emb_width, c.vision->hidden_size}; }, P::bf16, false, H::replicated, O::adamw, I::normal},
    {ParamId::vision_norm0, "vision_tower.encoder.blocks.{l}.norm0.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::vision_norm1, "vision_tower.encoder.blocks.{l}.norm1.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
    {ParamId::vision_wqkv, "vision_tower.encoder.blocks.{l}.wqkv.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{3 * c.vision->qkv_hidden_size, c.vision->hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::vision_wo, "vision_tower.encoder.blocks.{l}.wo.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size, c.vision->qkv_hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::vision_fc0, "vision_tower.encoder.blocks.{l}.mlp.fc0.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->intermediate_size, c.vision->hidden_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::vision_fc1, "vision_tower.encoder.blocks.{l}.mlp.fc1.weight", S::vision_block, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size, c.vision->intermediate_size}; }, P::bf16, true, H::replicated, O::muon, I::normal},
    {ParamId::vision_final_norm, "vision_tower.encoder.final_layernorm.weight", S::vision, C::vision_tower, vision, [](const Config& c) { return Dims{c.vision->hidden_size}; }, P::bf16, false, H::replicated, O::adamw, I::ones},
  };
  return kTable;
}
// clang-format on

void replace(std::string& text, std::string_view key, int64_t number) {
  const size_t at = text.find(key);
  if (at != std::string::npos) text.replace(at, key.size(), std::to_string(number));
}

DType stored_dtype(const Config& config, ParamStore store) {
  switch (store) {
    case ParamStore::f32: return DType::f32;
    case ParamStore::small: return config.nested ? DType::f32 : DType::bf16;
    case ParamStore::bf16:
    case ParamStore::expert: break;
  }
  return DType::bf16;
}

}  // namespace

std::string_view component_name(Component component) {
  switch (component) {
    case C::routed_experts: return "routed experts";
    case C::kda: return "KDA attention";
    case C::mla: return "MLA attention";
    case C::shared_experts: return "shared experts";
    case C::latent: return "latent projections";
    case C::router: return "router";
    case C::dense_mlp: return "dense MLP";
    case C::embedding: return "token embedding";
    case C::lm_head: return "lm_head";
    case C::norms: return "norms and AttnRes";
    case C::vision_tower: return "vision tower";
    case C::projector: return "vision projector";
  }
  return "?";
}

bool may_be_int8(const ParamFamily& family, const Config& config) {
  if (!family.matrix || family.store != P::bf16) return false;
  if (family.id == ParamId::mla_kv_b_proj || family.id == ParamId::kda_b_proj) return false;
  switch (family.component) {
    case C::kda:
    case C::mla:
    case C::shared_experts:
    case C::latent:
    case C::dense_mlp:
    case C::lm_head: return family.shape(config)[1] % 32 == 0;
    default: return false;
  }
}

std::span<const ParamFamily> param_table() { return table(); }

const ParamFamily& param_family(ParamId id) {
  const ParamFamily& family = table()[static_cast<size_t>(id)];
  K3_DCHECK(family.id == id);
  return family;
}

std::string param_name(const Config& config, ParamId id, int64_t layer, int64_t expert) {
  const ParamFamily& family = param_family(id);
  std::string name(family.pattern);
  replace(name, "{l}", layer);
  replace(name, "{e}", expert);
  const bool text = family.scope != S::vision && family.scope != S::vision_block;
  if (text && config.nested) name.insert(0, "language_model.");
  return name;
}

int64_t element_count(std::span<const int64_t> dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

int64_t ParamTensor::size_bytes() const {
  return dtype_bytes(dtype) * element_count(dims);
}

void for_each_param(const Config& config, const std::function<void(const ParamFamily&, int64_t, int64_t)>& visit) {
  const auto scope_is = [&](S scope, const auto& each) {
    for (const ParamFamily& family : table()) {
      if (family.scope == scope) each(family);
    }
  };
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    scope_is(S::layer, [&](const ParamFamily& family) {
      if (family.present(config, l)) visit(family, l, -1);
    });
    if (!config.is_moe(l)) continue;
    // The six tensors of one expert lie together, so that one read brings a whole expert.
    for (int64_t e = config.first_local_expert; e < config.first_local_expert + config.local_expert_count(); ++e) {
      scope_is(S::expert, [&](const ParamFamily& family) { visit(family, l, e); });
    }
  }
  scope_is(S::global, [&](const ParamFamily& family) {
    if (family.present(config, -1)) visit(family, -1, -1);
  });
  if (!config.vision) return;
  scope_is(S::vision, [&](const ParamFamily& family) { visit(family, -1, -1); });
  for (int64_t b = 0; b < config.vision->num_hidden_layers; ++b) {
    scope_is(S::vision_block, [&](const ParamFamily& family) { visit(family, b, -1); });
  }
}

void for_each_tensor(const Config& config, const std::function<void(const ParamTensor&)>& visit) {
  for_each_param(config, [&](const ParamFamily& family, int64_t layer, int64_t expert) {
    ParamTensor tensor;
    tensor.family = &family;
    tensor.name = param_name(config, family.id, layer, expert);
    tensor.dims = family.shape(config);
    tensor.dtype = stored_dtype(config, family.store);
    tensor.layer = layer;
    tensor.expert = expert;
    tensor.params = element_count(tensor.dims);
    if (config.trunk_int8 && may_be_int8(family, config)) {
      const int64_t groups = tensor.dims[1] / 32;
      tensor.dtype = DType::i8;
      visit(tensor);
      tensor.dtype = DType::u8;
      tensor.name += "_scale";
      tensor.dims[1] = groups;
      tensor.params = 0;
      visit(tensor);
      return;
    }
    if (family.store != ParamStore::expert || !config.experts_mxfp4) {
      visit(tensor);
      return;
    }
    const std::string base = tensor.name;
    const int64_t rows = tensor.dims[0], cols = tensor.dims[1];
    tensor.dtype = DType::u8;
    tensor.name = base + "_packed";
    tensor.dims = {rows, cols / 2};
    visit(tensor);
    tensor.name = base + "_scale";
    tensor.dims = {rows, cols / 32};
    tensor.params = 0;
    visit(tensor);
  });
}

}  // namespace k3
