#include "k3/model/wiring.h"

#include <algorithm>

#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

constexpr int64_t kAlign = 64, kFileAlign = 8, kPage = 4096;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace

Status finish_job(const Checkpoint& checkpoint, const ReadJob& job, const std::byte* stored) {
  if (job.needs_widening()) {
    convert_to_float(stored, job.info.dtype, job.info.count(), reinterpret_cast<float*>(job.target));
  } else if (job.packed) {
    ops::mxfp4_relayout(reinterpret_cast<uint8_t*>(job.target), job.info.dims[0], job.info.dims[1] * 2);
  } else if (job.int8_scales) {
    const std::span<const std::byte> scales(job.target, static_cast<size_t>(job.info.size_bytes));
    const auto bad = std::find(scales.begin(), scales.end(), std::byte{255});
    if (bad == scales.end()) return {};
    return fail(Code::corrupt, "{}: tensor '{}': scale byte {} is 255, which is no number",
                checkpoint.shard_file(job.info.shard), job.name, bad - scales.begin());
  } else if (job.scales) {
    const std::span<const std::byte> scales(job.target, static_cast<size_t>(job.info.size_bytes));
    return check_scales(checkpoint.shard_file(job.info.shard), job.name, scales, job.info.dims[1]);
  }
  return {};
}

int64_t SlackPlacer::place(int32_t shard, int64_t offset, int64_t bytes, Align align) {
  const bool as_file = align == Align::file && offset % kFileAlign == 0;
  const bool follows = shard == run_shard_ && offset == run_end_ && (offset - run_begin_) % (as_file ? kFileAlign : kAlign) == 0;
  if (!follows) {
    run_shard_ = shard;
    run_begin_ = offset;
    run_at_ = used_ + aligned(kDiskSlack);
    if (as_file) run_at_ += (offset - run_at_ % kPage + kPage) % kPage;
  }
  run_end_ = offset + bytes;
  const int64_t at = run_at_ + (offset - run_begin_);
  used_ = aligned(at + bytes + kDiskSlack);
  return at;
}

int64_t SlackPlacer::place_memory(int64_t bytes) {
  run_shard_ = -1;
  const int64_t at = used_;
  used_ += aligned(bytes);
  return at;
}

std::byte* ArenaPlan::place(int64_t bytes) {
  const int64_t at = placer_.place_memory(bytes);
  return base_ == nullptr ? nullptr : base_ + at;
}

std::byte* ArenaPlan::place_read(const TensorInfo& info, SlackPlacer::Align align) {
  if (slack_ == Slack::none) return place(info.size_bytes);
  if (slack_ == Slack::tensors) placer_.end_run();
  const int64_t at = placer_.place(info.shard, info.offset, info.size_bytes, align);
  return base_ == nullptr ? nullptr : base_ + at;
}

void ArenaPlan::start_placing(std::byte* base) {
  base_ = base;
  placer_ = {};
  jobs_.clear();
  folds_.clear();
  a_logs_.clear();
}

int64_t ArenaPlan::read_bytes() const {
  int64_t bytes = 0;
  for (const ReadJob& job : jobs_) bytes += job.info.size_bytes;
  return bytes;
}

Result<TensorInfo> ArenaPlan::find(const std::string& name, const std::vector<int64_t>& dims) const {
  K3_TRY_ASSIGN(TensorInfo info, checkpoint_.find(name));
  if (info.dims != dims) {
    return fail(Code::corrupt, "{}: tensor '{}' has shape {}, the config asks for {}", checkpoint_.shard_file(info.shard),
                name, dims_text(info.dims), dims_text(dims));
  }
  return info;
}

Error ArenaPlan::dtype_error(const std::string& name, const TensorInfo& info) const {
  return fail(Code::unsupported, "{}: tensor '{}' is {}; only BF16, F16, F32 and packed MXFP4 weights can be used",
              checkpoint_.shard_file(info.shard), name, dtype_name(info.dtype));
}

Status ArenaPlan::matrix(ParamId id, int64_t layer, int64_t expert, ops::Weight& out) {
  const std::vector<int64_t> dims = param_family(id).shape(config_);
  const std::string name = param_name(config_, id, layer, expert);
  if (param_family(id).store == ParamStore::expert && checkpoint_.contains(name + "_packed")) return packed(name, dims, out);
  K3_TRY_ASSIGN(const TensorInfo info, find(name, dims));
  out.rows = dims[0];
  out.cols = dims[1];
  switch (info.dtype) {
    case DType::bf16: out.scheme = ops::Scheme::bf16; break;
    case DType::f16: out.scheme = ops::Scheme::f16; break;
    case DType::f32: out.scheme = ops::Scheme::f32; break;
    case DType::f64:
      if (!training_) return dtype_error(name, info);
      out.scheme = ops::Scheme::f64;
      break;
    case DType::i8: return int8(param_family(id), name, info, out);
    default: return dtype_error(name, info);
  }
  std::byte* at = place_read(info, SlackPlacer::Align::file);
  out.data = at;
  jobs_.push_back({name, info, at, nullptr, false, false, false});
  return {};
}

Status ArenaPlan::packed(const std::string& name, const std::vector<int64_t>& dims, ops::Weight& out) {
  if (dims[1] % 32 != 0) {
    return fail(Code::corrupt, "tensor '{}_packed': {} columns cannot be packed in groups of 32", name, dims[1]);
  }
  K3_TRY_ASSIGN(const TensorInfo codes, find(name + "_packed", {dims[0], dims[1] / 2}));
  K3_TRY_ASSIGN(const TensorInfo scales, find(name + "_scale", {dims[0], dims[1] / 32}));
  if (codes.dtype != DType::u8) return dtype_error(name + "_packed", codes);
  if (scales.dtype != DType::u8) return dtype_error(name + "_scale", scales);
  out = {nullptr, nullptr, ops::Scheme::mxfp4, dims[0], dims[1]};
  std::byte* at = place_read(codes, SlackPlacer::Align::file);
  std::byte* scales_at = place_read(scales, SlackPlacer::Align::file);
  out.data = at;
  out.scales = reinterpret_cast<const uint8_t*>(scales_at);
  jobs_.push_back({name + "_packed", codes, at, nullptr, false, false, !stored_order_});
  jobs_.push_back({name + "_scale", scales, scales_at, nullptr, false, true, false});
  return {};
}

// A matrix of an 8-bit trunk; `out` has its shape. I8 alone could mean any scheme, so the config must name ours.
Status ArenaPlan::int8(const ParamFamily& family, const std::string& name, const TensorInfo& codes, ops::Weight& out) {
  const std::string& file = checkpoint_.shard_file(codes.shard);
  if (!config_.trunk_int8) {
    return fail(Code::corrupt, "{}: tensor '{}' is I8, but the config has no trunk_quantization", file, name);
  }
  if (!may_be_int8(family, config_)) return fail(Code::unsupported, "{}: tensor '{}' cannot be I8", file, name);
  K3_TRY_ASSIGN(const TensorInfo scales, find(name + "_scale", {out.rows, out.cols / 32}));
  if (scales.dtype != DType::u8) {
    return fail(Code::corrupt, "{}: tensor '{}_scale' is {}; scale bytes are U8", checkpoint_.shard_file(scales.shard), name,
                dtype_name(scales.dtype));
  }
  out.scheme = ops::Scheme::i8;
  std::byte* at = place_read(codes, SlackPlacer::Align::file);
  std::byte* scales_at = place_read(scales, SlackPlacer::Align::file);
  out.data = at;
  out.scales = reinterpret_cast<const uint8_t*>(scales_at);
  jobs_.push_back({name, codes, at, nullptr, false, false, false});
  jobs_.push_back({name + "_scale", scales, scales_at, nullptr, false, false, false, true});
  return {};
}

Status ArenaPlan::vector(ParamId id, int64_t layer, std::initializer_list<int64_t> dims, Tensor& out) {
  const std::string name = param_name(config_, id, layer);
  K3_TRY_ASSIGN(const TensorInfo info, find(name, param_family(id).shape(config_)));
  return widened(name, info, dims, out);
}

Status ArenaPlan::widened(const std::string& name, const TensorInfo& info, std::initializer_list<int64_t> dims,
                          Tensor& out) {
  if (training_) {
    out = Tensor(place_read(info, SlackPlacer::Align::memory), info.dtype, dims);
    jobs_.push_back({name, info, static_cast<std::byte*>(out.data)});
    return {};
  }
  if (info.dtype != DType::bf16 && info.dtype != DType::f16 && info.dtype != DType::f32) return dtype_error(name, info);
  ReadJob job{name, info, nullptr, nullptr, true, false, false};
  if (job.needs_widening()) {
    job.target = place(info.count() * 4);
    if (slack_ != Slack::none) job.stored = place_read(info, SlackPlacer::Align::memory);
  } else {
    job.target = place_read(info, SlackPlacer::Align::memory);
  }
  out = Tensor(job.target, DType::f32, dims);
  jobs_.push_back(std::move(job));
  return {};
}

Status ArenaPlan::a_log(int64_t layer, Tensor& out) {
  const std::string name = param_name(config_, ParamId::kda_a_log, layer);
  K3_TRY_ASSIGN(const TensorInfo info, checkpoint_.find(name));
  const int64_t entries = info.count();
  const int64_t heads = config_.kda_num_heads;
  int64_t wide = 0;
  for (const int64_t d : info.dims) wide += d > 1 ? 1 : 0;
  if (wide > 1 || (entries != heads && entries != config_.kda_head_dim) || entries < heads) {
    return fail(Code::corrupt, "{}: tensor '{}' has shape {}; A_log is per head: [{}], or padded with zeros to [{}]",
                checkpoint_.shard_file(info.shard), name, dims_text(info.dims), heads, config_.kda_head_dim);
  }
  K3_TRY(widened(name, info, {entries}, out));
  a_logs_.push_back({name, out});
  out.dims[0] = heads;
  return {};
}

Status ArenaPlan::res(ParamId norm, ParamId proj, int64_t layer, Tensor& query) {
  Tensor projection, weight;
  K3_TRY(vector(norm, layer, {config_.hidden_size}, weight));
  K3_TRY(vector(proj, layer, {config_.hidden_size}, projection));
  query = weight;
  if (training_) query.data = place(config_.hidden_size * dtype_bytes(weight.dtype));
  folds_.push_back({weight, projection, query});
  return {};
}

Status ArenaPlan::complete() const {
  for (const auto& [name, values] : a_logs_) {
    for (int64_t i = config_.kda_num_heads; i < values.dims[0]; ++i) {
      if (values.f32()[i] != 0.0F) {
        return fail(Code::corrupt, "tensor '{}': entry {} beyond the {} heads is {}, not zero padding", name, i,
                    config_.kda_num_heads, values.f32()[i]);
      }
    }
  }
  for (const Fold& fold : folds_) {
    for (int64_t i = 0; i < config_.hidden_size; ++i) fold.query.f32()[i] = fold.norm.f32()[i] * fold.projection.f32()[i];
  }
  return {};
}

namespace {

Status wire_kda(ArenaPlan& plan, const Config& c, int64_t l, KdaWeights& w) {
  const auto matrix = [&](ParamId id, ops::Weight& out) { return plan.matrix(id, l, -1, out); };
  K3_TRY(matrix(ParamId::kda_q_proj, w.q));
  K3_TRY(matrix(ParamId::kda_k_proj, w.k));
  K3_TRY(matrix(ParamId::kda_v_proj, w.v));
  K3_TRY(plan.vector(ParamId::kda_q_conv, l, {c.kda_width(), c.short_conv_kernel_size}, w.q_conv));
  K3_TRY(plan.vector(ParamId::kda_k_conv, l, {c.kda_width(), c.short_conv_kernel_size}, w.k_conv));
  K3_TRY(plan.vector(ParamId::kda_v_conv, l, {c.kda_width(), c.short_conv_kernel_size}, w.v_conv));
  K3_TRY(plan.a_log(l, w.a_log));
  K3_TRY(plan.vector(ParamId::kda_dt_bias, l, {c.kda_num_heads, c.kda_head_dim}, w.dt_bias));
  K3_TRY(matrix(ParamId::kda_f_a_proj, w.f_a));
  K3_TRY(matrix(ParamId::kda_f_b_proj, w.f_b));
  K3_TRY(matrix(ParamId::kda_b_proj, w.b));
  if (c.use_full_rank_gate) {
    K3_TRY(matrix(ParamId::kda_g_proj, w.g));
  } else {
    K3_TRY(matrix(ParamId::kda_g_a_proj, w.g_a));
    K3_TRY(matrix(ParamId::kda_g_b_proj, w.g_b));
  }
  K3_TRY(plan.vector(ParamId::kda_o_norm, l, {c.kda_head_dim}, w.o_norm));
  return matrix(ParamId::kda_o_proj, w.o);
}

Status wire_mla(ArenaPlan& plan, const Config& c, int64_t l, MlaWeights& w) {
  const auto matrix = [&](ParamId id, ops::Weight& out) { return plan.matrix(id, l, -1, out); };
  if (c.q_lora_rank) {
    K3_TRY(matrix(ParamId::mla_q_a_proj, w.q_a));
    K3_TRY(plan.vector(ParamId::mla_q_a_layernorm, l, {*c.q_lora_rank}, w.q_a_norm));
    K3_TRY(matrix(ParamId::mla_q_b_proj, w.q_b));
  } else {
    K3_TRY(matrix(ParamId::mla_q_proj, w.q));
  }
  K3_TRY(matrix(ParamId::mla_kv_a_proj, w.kv_a));
  K3_TRY(plan.vector(ParamId::mla_kv_a_layernorm, l, {c.kv_lora_rank}, w.kv_a_norm));
  K3_TRY(matrix(ParamId::mla_kv_b_proj, w.kv_b));
  if (c.mla_use_output_gate.value_or(false)) K3_TRY(matrix(ParamId::mla_g_proj, w.g));
  return matrix(ParamId::mla_o_proj, w.o);
}

Status wire_moe(ArenaPlan& plan, const Config& c, int64_t l, MoeWeights& w) {
  const auto matrix = [&](ParamId id, ops::Weight& out) { return plan.matrix(id, l, -1, out); };
  K3_TRY(matrix(ParamId::router_gate, w.router));
  K3_TRY(plan.vector(ParamId::router_bias, l, {c.num_experts}, w.router_bias));
  if (c.routed_expert_hidden_size) {
    K3_TRY(matrix(ParamId::routed_down_proj, w.down));
    if (c.latent_moe_use_norm.value_or(false))
      K3_TRY(plan.vector(ParamId::routed_norm, l, {c.expert_width()}, w.latent_norm));
    K3_TRY(matrix(ParamId::routed_up_proj, w.up));
  }
  if (c.num_shared_experts > 0) {
    K3_TRY(matrix(ParamId::shared_gate_proj, w.shared.gate));
    K3_TRY(matrix(ParamId::shared_up_proj, w.shared.up));
    K3_TRY(matrix(ParamId::shared_down_proj, w.shared.down));
  }
  return {};
}

}  // namespace

Status wire_trunk(ArenaPlan& plan, const Config& c, int64_t l, LayerWeights& w) {
  K3_TRY(plan.vector(ParamId::input_layernorm, l, {c.hidden_size}, w.input_norm));
  K3_TRY(plan.vector(ParamId::post_attention_layernorm, l, {c.hidden_size}, w.post_attention_norm));
  if (c.attn_res_block_size) {
    K3_TRY(plan.res(ParamId::self_attention_res_norm, ParamId::self_attention_res_proj, l, w.attention_res_query));
    K3_TRY(plan.res(ParamId::mlp_res_norm, ParamId::mlp_res_proj, l, w.mlp_res_query));
  }
  K3_TRY(c.is_kda(l) ? wire_kda(plan, c, l, w.kda) : wire_mla(plan, c, l, w.mla));
  if (c.is_moe(l)) return wire_moe(plan, c, l, w.moe);
  K3_TRY(plan.matrix(ParamId::mlp_gate_proj, l, -1, w.mlp.gate));
  K3_TRY(plan.matrix(ParamId::mlp_up_proj, l, -1, w.mlp.up));
  return plan.matrix(ParamId::mlp_down_proj, l, -1, w.mlp.down);
}

Status wire_expert(ArenaPlan& plan, int64_t l, int64_t e, ops::ExpertWeights& w) {
  K3_TRY(plan.matrix(ParamId::expert_w1, l, e, w.w1));
  K3_TRY(plan.matrix(ParamId::expert_w2, l, e, w.w2));
  return plan.matrix(ParamId::expert_w3, l, e, w.w3);
}

Status wire_final(ArenaPlan& plan, const Config& c, WeightSet& w) {
  K3_TRY(plan.vector(ParamId::final_norm, -1, {c.hidden_size}, w.final_norm));
  if (!c.attn_res_block_size) return {};
  return plan.res(ParamId::output_res_norm, ParamId::output_res_proj, -1, w.output_res_query);
}

Status wire_tables(ArenaPlan& plan, const Config& c, WeightSet& w) {
  K3_TRY(plan.matrix(ParamId::embed_tokens, -1, -1, w.embed));
  if (c.tie_word_embeddings) {
    w.lm_head = w.embed;
    return {};
  }
  return plan.matrix(ParamId::lm_head, -1, -1, w.lm_head);
}

}  // namespace k3
