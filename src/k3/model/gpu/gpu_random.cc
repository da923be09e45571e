#include "k3/model/gpu/gpu_random.h"

#include <algorithm>
#include <cmath>

#include "k3/base/units.h"
#include "k3/model/gpu/gpu_weights.h"
#include "k3/model/init.h"
#include "k3/model/random_weights.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3 {
namespace {

// Root mean square of the 16 codes of E2M1.
constexpr double kCodeDeviation = 2.926;

ops::ExpertBank bank_of(const Config& config) {
  ops::ExpertBank bank;
  bank.experts = config.local_expert_count();
  bank.first = static_cast<int32_t>(config.first_local_expert);
  bank.routed = config.num_experts;
  bank.width = config.expert_width();
  bank.hidden = config.moe_intermediate_size;
  bank.scheme = config.experts_mxfp4 ? ops::Scheme::mxfp4 : ops::Scheme::bf16;
  return bank;
}

Status wire_globals(ArenaPlan& plan, const Config& config, WeightSet& set) {
  K3_TRY(wire_tables(plan, config, set));
  return wire_final(plan, config, set);
}

class Maker {
 public:
  Maker(Device device, const Config& config, const DeclaredWeights& declared, uint64_t seed, ThreadPool& pool,
        const LoadProgress& progress, int64_t total)
      : device_(device), config_(config), declared_(declared), seed_(seed), pool_(pool), progress_(progress), total_(total) {}

  Result<WeightSet> run() {
    K3_TRY_ASSIGN(stream_, make_stream());
    set_.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      LayerWeights& layer = set_.layers[static_cast<size_t>(l)];
      K3_TRY(arena([&](ArenaPlan& plan) { return wire_trunk(plan, config_, l, layer); }));
      if (config_.is_moe(l)) K3_TRY(experts(layer.moe.bank));
      K3_TRY(synchronize(stream_.get()));  // for an honest bar
      if (progress_) progress_(set_.size_bytes, total_);
    }
    K3_TRY(arena([&](ArenaPlan& plan) { return wire_globals(plan, config_, set_); }));
    K3_TRY(synchronize(stream_.get()));
    if (progress_) progress_(total_, total_);
    return std::move(set_);
  }

 private:
  // The views are wired to device memory at once; only what follows a rule other than `normal` is drawn on the host.
  template <class Wire>
  Status arena(const Wire& wire) {
    ArenaPlan plan(declared_.checkpoint, config_, Slack::none);
    plan.keep_stored_order();
    K3_TRY(wire(plan));
    K3_TRY_ASSIGN(Storage arena, Storage::allocate_on(device_, plan.used()));
    plan.start_placing(arena.data());
    K3_TRY(wire(plan));
    for (const ReadJob& job : plan.jobs()) K3_TRY(fill(job));
    set_.size_bytes += plan.used();
    set_.arenas.push_back(std::move(arena));
    return {};
  }

  Status fill(const ReadJob& job) {
    const ParamTensor& tensor = declared_.tensors.at(job.name);
    const ParamFamily& family = *tensor.family;
    if (!job.widen) return normal(job.target, tensor.params);
    switch (family.id) {  // norm * projection of an AttnRes site, folded: zero, as the memory is
      case ParamId::self_attention_res_norm:
      case ParamId::self_attention_res_proj:
      case ParamId::mlp_res_norm:
      case ParamId::mlp_res_proj:
      case ParamId::output_res_norm:
      case ParamId::output_res_proj: return {};
      default: break;
    }
    values_.assign(static_cast<size_t>(tensor.params), 0.0F);
    draw_param(config_, family, job.name, seed_, pool_, values_);
    K3_TRY(copy_async(job.target, values_.data(), 4 * tensor.params, stream_.get()));
    return synchronize(stream_.get());
  }

  Status normal(void* to, int64_t count) {
    const auto scale = static_cast<float>(config_.initializer_range);
    return to_status(ops::cuda::fill_normal_bf16(to, count, next_seed(), scale, stream_.get()), "random weights");
  }
  Status bytes(void* to, int64_t count, uint8_t first, int values) {
    return to_status(ops::cuda::fill_random_bytes(to, count, next_seed(), first, values, stream_.get()), "random weights");
  }

  Status matrix(ops::Weight& w) {
    auto* data = const_cast<void*>(w.data);
    if (w.scheme == ops::Scheme::bf16) return normal(data, w.rows * w.cols);
    const int scale = 127 + static_cast<int>(std::lround(std::log2(config_.initializer_range / kCodeDeviation)));
    K3_TRY(bytes(data, w.rows * w.cols / 2, 0, 256));
    return bytes(const_cast<uint8_t*>(w.scales), w.rows * w.cols / 32, static_cast<uint8_t>(std::clamp(scale, 1, 126)), 2);
  }

  // Three matrices as a checkpoint has them, in scratch, packed to their place: the kernels' order and its padding are known to the
  // packing alone.
  Status experts(ops::ExpertBank& bank) {
    bank = bank_of(config_);
    const ops::cuda::ExpertBankBytes sizes = ops::cuda::expert_bank_bytes(bank);
    K3_TRY_ASSIGN(Storage gate_up, Storage::allocate_on(device_, sizes.gate_up));
    K3_TRY_ASSIGN(Storage down, Storage::allocate_on(device_, sizes.down));
    K3_TRY_ASSIGN(Storage factors, Storage::allocate_on(device_, sizes.factors));
    bank.gate_up = gate_up.data();
    bank.down = down.data();
    bank.factors = reinterpret_cast<const float*>(factors.data());
    K3_TRY_ASSIGN(ops::ExpertWeights e, scratch(bank));
    for (int64_t i = 0; i < bank.experts; ++i) {
      for (ops::Weight* w : {&e.w1, &e.w2, &e.w3}) K3_TRY(matrix(*w));
      K3_TRY(ops::cuda::pack_expert(bank, i, e.w1, e.w2, e.w3, stream_.get()));
    }
    set_.size_bytes += sizes.gate_up + sizes.down + sizes.factors;
    for (Storage* storage : {&gate_up, &down, &factors}) set_.arenas.push_back(std::move(*storage));
    return {};
  }

  Result<ops::ExpertWeights> scratch(const ops::ExpertBank& bank) {
    const int64_t data = ops::scheme_row_bytes(bank.scheme, bank.width) * bank.hidden, scales = bank.width * bank.hidden / 32;
    const int64_t one = (data + scales + 255) / 256 * 256, scales_at = (data + 15) / 16 * 16;
    if (scratch_.size_bytes() < 3 * one + 64) {
      K3_TRY_ASSIGN(scratch_, Storage::allocate_on(device_, 3 * one + 64));
    }
    const auto weight = [&](int64_t index, int64_t rows, int64_t cols) {
      std::byte* at = scratch_.data() + index * one;
      const bool packed = bank.scheme == ops::Scheme::mxfp4;
      return ops::Weight{at, packed ? reinterpret_cast<const uint8_t*>(at + scales_at) : nullptr, bank.scheme, rows, cols};
    };
    return ops::ExpertWeights{weight(0, bank.hidden, bank.width), weight(1, bank.width, bank.hidden), weight(2, bank.hidden, bank.width)};
  }

  uint64_t next_seed() { return seed_ * 0x9E3779B97F4A7C15ULL + ++filled_; }

  Device device_;
  const Config& config_;
  const DeclaredWeights& declared_;
  uint64_t seed_, filled_ = 0;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  int64_t total_;
  StreamHandle stream_;
  Storage scratch_;
  std::vector<float> values_;
  WeightSet set_;
};

struct GpuWeightBytes {
  int64_t trunk = 0, experts_per_layer = 0, moe_layers = 0;
  int64_t total() const { return trunk + experts_per_layer * moe_layers; }
};

Result<GpuWeightBytes> bytes_of(const Config& config, const DeclaredWeights& declared) {
  GpuWeightBytes bytes;
  WeightSet set;
  set.layers.resize(1);
  const auto add = [&](const auto& wire) -> Status {
    ArenaPlan plan(declared.checkpoint, config, Slack::none);
    K3_TRY(wire(plan));
    bytes.trunk += plan.used();
    return {};
  };
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    K3_TRY(add([&](ArenaPlan& plan) { return wire_trunk(plan, config, l, set.layers[0]); }));
    bytes.moe_layers += config.is_moe(l) ? 1 : 0;
  }
  K3_TRY(add([&](ArenaPlan& plan) { return wire_globals(plan, config, set); }));
  if (bytes.moe_layers > 0) {
    const ops::cuda::ExpertBankBytes sizes = ops::cuda::expert_bank_bytes(bank_of(config));
    bytes.experts_per_layer = sizes.gate_up + sizes.down + sizes.factors;
  }
  return bytes;
}

}  // namespace

Result<WeightSet> random_weights_on(Device device, const Config& config, uint64_t seed, ThreadPool& pool, const LoadProgress& progress) {
  K3_TRY(check_gpu_config(config));
  K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(device));
  K3_TRY_ASSIGN(const DeclaredWeights declared, declare_weights(config, false));
  K3_TRY_ASSIGN(const GpuWeightBytes bytes, bytes_of(config, declared));
  if (bytes.total() > memory.free_bytes) {
    return fail(Code::exhausted,
                "the weights need {} ({} and experts of {} in each of {} layers) and {} has {} free of {}; fewer layers, MXFP4 experts or a "
                "rank's share need less",
                format_bytes(bytes.total()), format_bytes(bytes.trunk), format_bytes(bytes.experts_per_layer), bytes.moe_layers,
                device_name(device), format_bytes(memory.free_bytes), format_bytes(memory.total_bytes));
  }
  return Maker(device, config, declared, seed, pool, progress, bytes.total()).run();
}

}  // namespace k3
