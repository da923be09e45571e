#include "k3/model/weights.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

int64_t product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

// One read: stored bytes go to `target` as they are, or widened to FP32.
struct ReadJob {
  std::string name;
  TensorInfo info;
  std::byte* target = nullptr;
  bool widen = false;
  bool scales = false;
  bool packed = false;  // MXFP4 codes, brought into the order of memory
};

// Two passes over the same code: the first sizes an arena and checks shapes, the second places and wires views.
class ArenaPlan {
 public:
  ArenaPlan(const Checkpoint& checkpoint, const Config& config) : checkpoint_(checkpoint), config_(config) {}

  // A place of `bytes` in the arena; null in the sizing pass.
  std::byte* place(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned(bytes);
    return at;
  }

  Result<TensorInfo> find(const std::string& name, const std::vector<int64_t>& dims) const {
    K3_TRY_ASSIGN(TensorInfo info, checkpoint_.find(name));
    if (info.dims != dims) {
      return fail(Code::corrupt, "{}: tensor '{}' has shape {}, the config asks for {}", checkpoint_.shard_file(info.shard),
                  name, dims_text(info.dims), dims_text(dims));
    }
    return info;
  }

  Error dtype_error(const std::string& name, const TensorInfo& info) const {
    return fail(Code::unsupported, "{}: tensor '{}' is {}; only BF16, F16, F32 and packed MXFP4 weights can be used",
                checkpoint_.shard_file(info.shard), name, dtype_name(info.dtype));
  }

  Status matrix(ParamId id, int64_t layer, int64_t expert, ops::Weight& out) {
    const std::vector<int64_t> dims = param_family(id).shape(config_);
    const std::string name = param_name(config_, id, layer, expert);
    if (param_family(id).store == ParamStore::expert && checkpoint_.contains(name + "_packed"))
      return packed(name, dims, out);
    K3_TRY_ASSIGN(const TensorInfo info, find(name, dims));
    out.rows = dims[0];
    out.cols = dims[1];
    switch (info.dtype) {
      case DType::bf16: out.scheme = ops::Scheme::bf16; break;
      case DType::f16: out.scheme = ops::Scheme::f16; break;
      case DType::f32: out.scheme = ops::Scheme::f32; break;
      default: return dtype_error(name, info);
    }
    std::byte* at = place(info.size_bytes);
    out.data = at;
    jobs_.push_back({name, info, at, false, false, false});
    return {};
  }

  Status packed(const std::string& name, const std::vector<int64_t>& dims, ops::Weight& out) {
    if (dims[1] % 32 != 0) {
      return fail(Code::corrupt, "tensor '{}_packed': {} columns cannot be packed in groups of 32", name, dims[1]);
    }
    K3_TRY_ASSIGN(const TensorInfo codes, find(name + "_packed", {dims[0], dims[1] / 2}));
    K3_TRY_ASSIGN(const TensorInfo scales, find(name + "_scale", {dims[0], dims[1] / 32}));
    if (codes.dtype != DType::u8) return dtype_error(name + "_packed", codes);
    if (scales.dtype != DType::u8) return dtype_error(name + "_scale", scales);
    out = {nullptr, nullptr, ops::Scheme::mxfp4, dims[0], dims[1]};
    std::byte* at = place(codes.size_bytes);
    std::byte* scales_at = place(scales.size_bytes);
    out.data = at;
    out.scales = reinterpret_cast<const uint8_t*>(scales_at);
    jobs_.push_back({name + "_packed", codes, at, false, false, true});
    jobs_.push_back({name + "_scale", scales, scales_at, false, true, false});
    return {};
  }

  // A small parameter, widened to FP32; `dims` is the view the layers want.
  Status vector(ParamId id, int64_t layer, std::initializer_list<int64_t> dims, Tensor& out) {
    const std::string name = param_name(config_, id, layer);
    K3_TRY_ASSIGN(const TensorInfo info, find(name, param_family(id).shape(config_)));
    return widened(name, info, dims, out);
  }

  Status widened(const std::string& name, const TensorInfo& info, std::initializer_list<int64_t> dims, Tensor& out) {
    if (info.dtype != DType::bf16 && info.dtype != DType::f16 && info.dtype != DType::f32) return dtype_error(name, info);
    std::byte* at = place(info.count() * 4);
    out = Tensor(at, DType::f32, dims);
    jobs_.push_back({name, info, at, true, false, false});
    return {};
  }

  // [heads], [head_dim] with zero padding, or [1, 1, heads, 1]: all are released shapes.
  Status a_log(int64_t layer, Tensor& out) {
    const std::string name = param_name(config_, ParamId::kda_a_log, layer);
    K3_TRY_ASSIGN(const TensorInfo info, checkpoint_.find(name));
    const int64_t entries = product(info.dims);
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

  int64_t used() const { return used_; }
  void start_placing(std::byte* base) {
    base_ = base;
    used_ = 0;
    jobs_.clear();
    a_logs_.clear();
  }
  std::vector<ReadJob>& jobs() { return jobs_; }

  Status check_a_log_padding() const {
    for (const auto& [name, values] : a_logs_) {
      for (int64_t i = config_.kda_num_heads; i < values.dims[0]; ++i) {
        if (values.f32()[i] != 0.0F) {
          return fail(Code::corrupt, "tensor '{}': entry {} beyond the {} heads is {}, not zero padding", name, i,
                      config_.kda_num_heads, values.f32()[i]);
        }
      }
    }
    return {};
  }

 private:
  const Checkpoint& checkpoint_;
  const Config& config_;
  std::byte* base_ = nullptr;
  int64_t used_ = 0;
  std::vector<ReadJob> jobs_;
  std::vector<std::pair<std::string, Tensor>> a_logs_;
};

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
  w.experts.resize(static_cast<size_t>(c.num_experts));
  for (int64_t e = 0; e < c.num_experts; ++e) {
    ops::ExpertWeights& expert = w.experts[static_cast<size_t>(e)];
    K3_TRY(plan.matrix(ParamId::expert_w1, l, e, expert.w1));
    K3_TRY(plan.matrix(ParamId::expert_w2, l, e, expert.w2));
    K3_TRY(plan.matrix(ParamId::expert_w3, l, e, expert.w3));
  }
  return {};
}

// The projection half of an AttnRes site is read beside its query and folded into it after the reads.
struct Fold {
  Tensor query, projection;
};

Status wire_res(ArenaPlan& plan, const Config& c, ParamId norm, ParamId proj, int64_t l, Tensor& query,
                std::vector<Fold>& folds) {
  Tensor projection;
  K3_TRY(plan.vector(norm, l, {c.hidden_size}, query));
  K3_TRY(plan.vector(proj, l, {c.hidden_size}, projection));
  folds.push_back({query, projection});
  return {};
}

Status wire_layer(ArenaPlan& plan, const Config& c, int64_t l, LayerWeights& w, std::vector<Fold>& folds) {
  K3_TRY(plan.vector(ParamId::input_layernorm, l, {c.hidden_size}, w.input_norm));
  K3_TRY(plan.vector(ParamId::post_attention_layernorm, l, {c.hidden_size}, w.post_attention_norm));
  if (c.attn_res_block_size) {
    K3_TRY(wire_res(plan, c, ParamId::self_attention_res_norm, ParamId::self_attention_res_proj, l, w.attention_res_query,
                    folds));
    K3_TRY(wire_res(plan, c, ParamId::mlp_res_norm, ParamId::mlp_res_proj, l, w.mlp_res_query, folds));
  }
  K3_TRY(c.is_kda(l) ? wire_kda(plan, c, l, w.kda) : wire_mla(plan, c, l, w.mla));
  if (c.is_moe(l)) return wire_moe(plan, c, l, w.moe);
  K3_TRY(plan.matrix(ParamId::mlp_gate_proj, l, -1, w.mlp.gate));
  K3_TRY(plan.matrix(ParamId::mlp_up_proj, l, -1, w.mlp.up));
  return plan.matrix(ParamId::mlp_down_proj, l, -1, w.mlp.down);
}

Status wire_global(ArenaPlan& plan, const Config& c, WeightSet& w, std::vector<Fold>& folds) {
  K3_TRY(plan.matrix(ParamId::embed_tokens, -1, -1, w.embed));
  K3_TRY(plan.vector(ParamId::final_norm, -1, {c.hidden_size}, w.final_norm));
  if (c.attn_res_block_size) {
    K3_TRY(wire_res(plan, c, ParamId::output_res_norm, ParamId::output_res_proj, -1, w.output_res_query, folds));
  }
  if (c.tie_word_embeddings) {
    w.lm_head = w.embed;
    return {};
  }
  return plan.matrix(ParamId::lm_head, -1, -1, w.lm_head);
}

Status run_job(const Checkpoint& checkpoint, const ReadJob& job) {
  const std::span<std::byte> target(job.target, static_cast<size_t>(job.info.size_bytes));
  if (!job.widen || job.info.dtype == DType::f32) {
    K3_TRY(checkpoint.read(job.name, job.info, target));
    if (job.packed) {
      ops::mxfp4_relayout(reinterpret_cast<uint8_t*>(job.target), job.info.dims[0], job.info.dims[1] * 2);
    }
    return job.scales ? check_scales(checkpoint.shard_file(job.info.shard), job.name, target, job.info.dims[1]) : Status();
  }
  std::vector<std::byte> stored(static_cast<size_t>(job.info.size_bytes));
  K3_TRY(checkpoint.read(job.name, job.info, stored));
  convert_to_float(stored.data(), job.info.dtype, job.info.count(), reinterpret_cast<float*>(job.target));
  return {};
}

// Reads in parallel; `done` is reported from the calling thread's share only, which is enough for a bar.
Status run_jobs(const Checkpoint& checkpoint, const std::vector<ReadJob>& jobs, ThreadPool& pool, std::atomic<int64_t>& done,
                int64_t total, const LoadProgress& progress) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status first_error;
  std::atomic<bool> failed{false};
  pool.run([&](int worker) {
    for (size_t i = next++; i < jobs.size() && !failed; i = next++) {
      Status status = run_job(checkpoint, jobs[i]);
      if (!status.ok()) {
        const std::lock_guard lock(mutex);
        if (!failed.exchange(true)) first_error = std::move(status);
        return;
      }
      done += jobs[i].info.size_bytes;
      if (worker == 0 && progress) progress(done, total);
    }
  });
  return first_error;
}

// Sizes, allocates, places and reads one arena.
template <class Wire>
Status load_arena(const Checkpoint& checkpoint, const Config& config, ThreadPool& pool, std::atomic<int64_t>& done,
                  int64_t total, const LoadProgress& progress, WeightSet& set, const Wire& wire) {
  ArenaPlan plan(checkpoint, config);
  std::vector<Fold> folds;
  K3_TRY(wire(plan, folds));
  K3_TRY_ASSIGN(Storage arena, Storage::allocate(plan.used()));
  plan.start_placing(arena.data());
  folds.clear();
  K3_TRY(wire(plan, folds));
  K3_TRY(run_jobs(checkpoint, plan.jobs(), pool, done, total, progress));
  K3_TRY(plan.check_a_log_padding());
  for (const Fold& fold : folds) {
    for (int64_t i = 0; i < config.hidden_size; ++i) fold.query.f32()[i] *= fold.projection.f32()[i];
  }
  set.size_bytes += plan.used();
  set.arenas.push_back(std::move(arena));
  return {};
}

}  // namespace

void resolve_by_tensors(const Checkpoint& checkpoint, Config& config) {
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const auto has = [&](ParamId id) { return checkpoint.contains(param_name(config, id, l, 0)); };
    if (config.is_kda(l)) {
      if (has(ParamId::kda_g_proj)) config.use_full_rank_gate = true;
    } else if (!config.mla_use_output_gate) {
      config.mla_use_output_gate = has(ParamId::mla_g_proj);
    }
    if (config.is_moe(l)) {
      if (!config.latent_moe_use_norm) config.latent_moe_use_norm = has(ParamId::routed_norm);
      const std::string expert = param_name(config, ParamId::expert_w1, l, 0);
      if (checkpoint.contains(expert)) config.experts_mxfp4 = false;
      if (checkpoint.contains(expert + "_packed")) config.experts_mxfp4 = true;
    }
  }
}

Result<WeightSet> load_weights(const Checkpoint& checkpoint, const Config& config, ThreadPool& pool,
                               const LoadProgress& progress) {
  K3_TRY(check_sizes(config));
  int64_t total = 0;
  for_each_tensor(config, [&](const ParamTensor& tensor) {
    const Component component = tensor.family->component;
    if (component != Component::vision_tower && component != Component::projector) total += tensor.size_bytes();
  });
  // Refused here with the numbers, rather than killed half-way by the system.
  if (const int64_t available = available_memory_bytes(); total > available) {
    return fail(Code::exhausted,
                "the weights need {} of memory and {} are available; models larger than memory cannot be run yet",
                format_bytes(total), format_bytes(available));
  }
  WeightSet set;
  set.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  std::atomic<int64_t> done{0};
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerWeights& layer = set.layers[static_cast<size_t>(l)];
    K3_TRY(load_arena(checkpoint, config, pool, done, total, progress, set,
                      [&](ArenaPlan& plan, std::vector<Fold>& folds) { return wire_layer(plan, config, l, layer, folds); }));
  }
  K3_TRY(load_arena(checkpoint, config, pool, done, total, progress, set,
                    [&](ArenaPlan& plan, std::vector<Fold>& folds) { return wire_global(plan, config, set, folds); }));
  return set;
}

}  // namespace k3
