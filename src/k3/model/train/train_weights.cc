#include "k3/model/train/train_weights.h"

#include <algorithm>
#include <unordered_map>

#include "k3/model/init.h"
#include "k3/model/summary.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3 {
namespace {

Status wire_all(ArenaPlan& plan, const Config& config, WeightSet& set) {
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerWeights& layer = set.layers[static_cast<size_t>(l)];
    K3_TRY(wire_trunk(plan, config, l, layer));
    if (!config.is_moe(l)) continue;
    layer.moe.experts.resize(static_cast<size_t>(config.num_experts));
    for (int64_t e = 0; e < config.num_experts; ++e) K3_TRY(wire_expert(plan, l, e, layer.moe.experts[static_cast<size_t>(e)]));
  }
  K3_TRY(wire_tables(plan, config, set));
  return wire_final(plan, config, set);
}

Status check_trainable(const Config& config) {
  K3_TRY(check_sizes(config));
  if (config.trunk_int8) return fail(Code::invalid_argument, "a model with an 8-bit trunk cannot be trained; take the one it was converted from");
  if (config.local_expert_count() != config.num_experts) return fail(Code::invalid_argument, "one rank's share of experts cannot be trained");
  return {};
}

// Values of a checkpoint's tensor in FP32; `scratch` keeps what was read.
Status read_values(const Checkpoint& checkpoint, const std::string& name, const std::vector<int64_t>& dims, std::vector<std::byte>& scratch,
                   bool shorter, std::span<float> out) {
  const auto read = [&](const std::string& stored, std::vector<std::byte>& bytes) -> Result<TensorInfo> {
    K3_TRY_ASSIGN(TensorInfo info, checkpoint.find(stored));
    bytes.resize(static_cast<size_t>(info.size_bytes));
    K3_TRY(checkpoint.read(stored, info, bytes));
    return info;
  };
  if (checkpoint.contains(name + "_packed")) {
    std::vector<std::byte> scales;
    K3_TRY_ASSIGN(const TensorInfo codes, read(name + "_packed", scratch));
    K3_TRY_ASSIGN(const TensorInfo factors, read(name + "_scale", scales));
    if (codes.dims != std::vector<int64_t>{dims[0], dims[1] / 2} || factors.dims != std::vector<int64_t>{dims[0], dims[1] / 32} ||
        codes.dtype != DType::u8 || factors.dtype != DType::u8) {
      return fail(Code::corrupt, "tensor '{}' is not MXFP4 of {} x {}", name, dims[0], dims[1]);
    }
    K3_TRY(check_scales(checkpoint.shard_file(factors.shard), name + "_scale", scales, factors.dims[1]));
    ops::mxfp4_relayout(reinterpret_cast<uint8_t*>(scratch.data()), dims[0], dims[1]);
    const ops::Weight w{scratch.data(), reinterpret_cast<const uint8_t*>(scales.data()), ops::Scheme::mxfp4, dims[0], dims[1]};
    for (int64_t i = 0; i < element_count(dims); ++i) out[static_cast<size_t>(i)] = ops::weight_value(w, i / dims[1], i % dims[1]);
    return {};
  }
  K3_TRY_ASSIGN(const TensorInfo info, read(name, scratch));
  // A_log is released in several shapes, with and without zeros behind the heads.
  const bool fits = shorter ? info.count() <= static_cast<int64_t>(out.size()) : info.count() == static_cast<int64_t>(out.size());
  if (!fits || (info.dtype != DType::f32 && info.dtype != DType::bf16 && info.dtype != DType::f16)) {
    return fail(Code::corrupt, "{}: tensor '{}' is {} with {} values; {} floating ones are wanted", checkpoint.shard_file(info.shard), name,
                dtype_name(info.dtype), info.count(), out.size());
  }
  convert_to_float(scratch.data(), info.dtype, info.count(), out.data());
  return {};
}

void put(const Tensor& to, std::span<const float> values) {
  convert_from_float(values.data(), to.dtype, to.size(), to.data);
}

}  // namespace

const TrainTensor* TrainWeights::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TrainTensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Result<TrainWeights> make_train_weights(const Config& config, DType dtype, Device device) {
  K3_CHECK(!device.is_cuda() || dtype == DType::f32, "weights on a GPU are FP32");
  K3_TRY(check_trainable(config));
  TrainWeights out;
  out.config = config;
  out.config.vision.reset();
  out.dtype = dtype;
  out.device = device;
  std::vector<TensorSpec> specs;
  for_each_param(out.config, [&](const ParamFamily& family, int64_t layer, int64_t expert) {
    TrainTensor t{&family, param_name(config, family.id, layer, expert), family.shape(config), layer, expert, 0, 0};
    t.count = element_count(t.dims);
    specs.push_back({t.name, dtype, t.dims});
    out.tensors.push_back(std::move(t));
  });
  const Checkpoint declared = Checkpoint::declare(specs);
  ArenaPlan plan(declared, out.config, Slack::none);
  plan.for_training();
  out.set.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  K3_TRY(wire_all(plan, out.config, out.set));
  const int64_t bytes = plan.used();
  K3_TRY_ASSIGN(out.arena, Storage::allocate_on(device, bytes));
  plan.start_placing(out.arena.data());
  K3_TRY(wire_all(plan, out.config, out.set));
  out.elements = bytes / dtype_bytes(dtype);
  out.set.size_bytes = bytes;
  out.folds = plan.folds();
  std::unordered_map<std::string, int64_t> places;
  for (const ReadJob& job : plan.jobs()) places[job.name] = (job.target - out.arena.data()) / dtype_bytes(dtype);
  for (TrainTensor& t : out.tensors) t.at = places.at(t.name);
  if (device.is_cuda()) {
    K3_TRY_ASSIGN(out.compute, Storage::allocate_on(device, out.elements * dtype_bytes(DType::bf16)));
    for_each_matrix(out.set, [&](ops::Weight& w) {
      w.data = out.compute.data() + (static_cast<const std::byte*>(w.data) - out.arena.data()) / 2;
      w.scheme = ops::Scheme::bf16;
    });
  }
  return out;
}

void for_each_matrix(WeightSet& set, const std::function<void(ops::Weight&)>& visit) {
  const auto all = [&](std::initializer_list<ops::Weight*> weights) {
    for (ops::Weight* w : weights) {
      if (*w) visit(*w);
    }
  };
  all({&set.embed, &set.lm_head});
  for (LayerWeights& l : set.layers) {
    all({&l.kda.q, &l.kda.k, &l.kda.v, &l.kda.f_a, &l.kda.f_b, &l.kda.b, &l.kda.o, &l.kda.g, &l.kda.g_a, &l.kda.g_b});
    all({&l.mla.q, &l.mla.q_a, &l.mla.q_b, &l.mla.kv_a, &l.mla.kv_b, &l.mla.o, &l.mla.g});
    all({&l.mlp.gate, &l.mlp.up, &l.mlp.down, &l.moe.router, &l.moe.down, &l.moe.up});
    all({&l.moe.shared.gate, &l.moe.shared.up, &l.moe.shared.down});
    for (ops::ExpertWeights& e : l.moe.experts) all({&e.w1, &e.w2, &e.w3});
  }
}

Status copy_train_weights(const ops::Ctx& ctx, const TrainWeights& from, const TrainWeights& to) {
  K3_CHECK(from.elements == to.elements && from.dtype == to.dtype, "weights of two configs");
  K3_TRY(copy_async(to.arena.data(), from.arena.data(), from.elements * dtype_bytes(from.dtype), ctx.stream));
  if (to.device.is_cuda()) ops::cuda::narrow(ctx, to.all(), to.computed());
  return synchronize(ctx.stream);
}

Status check_trainable_on_gpu(const Config& config) {
  ops::cuda::TrainSizes sizes;
  sizes.hidden = config.hidden_size;
  sizes.experts = config.num_experts;
  sizes.topk = config.num_experts_per_token;
  sizes.expert_hidden = config.num_experts > 0 ? config.moe_intermediate_size : 0;
  for (const AttentionKind kind : config.attention) {
    if (kind == AttentionKind::kda) {
      sizes.kda_heads = config.kda_num_heads;
      sizes.kda_dim = config.kda_head_dim;
      sizes.kda_taps = config.short_conv_kernel_size;
    } else {
      sizes.mla_nope = config.qk_nope_head_dim;
      sizes.mla_rope = config.qk_rope_head_dim;
      sizes.mla_value = config.v_head_dim;
    }
  }
  const int64_t block = config.attn_res_block_size.value_or(0);
  sizes.blocks = block > 0 ? (config.num_hidden_layers + block - 1) / block : 0;
  return ops::cuda::check_train_sizes(sizes);
}

void draw_train_weights(TrainWeights& weights, uint64_t seed, ThreadPool& pool) {
  std::vector<float> values;
  for (const TrainTensor& t : weights.tensors) {
    values.assign(static_cast<size_t>(t.count), 0.0F);
    draw_param(weights.config, *t.family, t.name, seed, pool, values);
    put(weights.tensor(t), values);
  }
}

Status read_train_weights(const Checkpoint& checkpoint, TrainWeights& weights) {
  std::vector<float> values;
  std::vector<std::byte> scratch;
  for (const TrainTensor& t : weights.tensors) {
    values.assign(static_cast<size_t>(t.count), 0.0F);
    K3_TRY(read_values(checkpoint, t.name, t.dims, scratch, t.family->id == ParamId::kda_a_log, values));
    put(weights.tensor(t), values);
  }
  return {};
}

Status write_train_weights(const TrainWeights& weights, const std::string& folder, int64_t shards) {
  const auto values_of = [&](const ParamTensor& wanted, std::vector<float>& values) {
    const std::string name = param_name(weights.config, wanted.family->id, wanted.layer, wanted.expert);
    const TrainTensor* const t = weights.find(name);
    K3_CHECK(t != nullptr && t->count == static_cast<int64_t>(values.size()), "no parameter '{}' of {} values", name, values.size());
    convert_to_float(weights.tensor(*t).data, weights.dtype, t->count, values.data());
  };
  return write_checkpoint(weights.config, folder, shards, values_of, {});
}

}  // namespace k3
