#include "k3/model/weights.h"

#include <atomic>
#include <mutex>

#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/model/wiring.h"

namespace k3 {
namespace {

// Sizes, allocates, places and fills one arena.
template <class Wire>
Status load_arena(const Checkpoint& checkpoint, const Config& config, const FillJobs& fill, WeightSet& set, const Wire& wire) {
  ArenaPlan plan(checkpoint, config, Slack::none);
  K3_TRY(wire(plan));
  K3_TRY_ASSIGN(Storage arena, Storage::allocate(plan.used()));
  plan.start_placing(arena.data());
  K3_TRY(wire(plan));
  K3_TRY(fill(plan.jobs()));
  K3_TRY(plan.complete());
  set.size_bytes += plan.used();
  set.arenas.push_back(std::move(arena));
  return {};
}

Status wire_layer(ArenaPlan& plan, const Config& config, int64_t l, LayerWeights& layer) {
  K3_TRY(wire_trunk(plan, config, l, layer));
  if (!config.is_moe(l)) return {};
  layer.moe.experts.resize(static_cast<size_t>(config.num_experts));
  for (int64_t e = config.first_local_expert; e < config.first_local_expert + config.local_expert_count(); ++e) {
    K3_TRY(wire_expert(plan, l, e, layer.moe.experts[static_cast<size_t>(e)]));
  }
  return {};
}

Status wire_globals(ArenaPlan& plan, const Config& config, WeightSet& set) {
  K3_TRY(wire_tables(plan, config, set));
  return wire_final(plan, config, set);
}

}  // namespace

Status run_job(const Checkpoint& checkpoint, const ReadJob& job) {
  if (!job.needs_widening()) {
    K3_TRY(checkpoint.read(job.name, job.info, std::span(job.target, static_cast<size_t>(job.info.size_bytes))));
    return finish_job(checkpoint, job, job.target);
  }
  std::vector<std::byte> stored(static_cast<size_t>(job.info.size_bytes));
  K3_TRY(checkpoint.read(job.name, job.info, stored));
  return finish_job(checkpoint, job, stored.data());
}

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

// Any matrix in 8 bits: a config may say that there are some, and all be BF16.
static bool stores_int8(const Checkpoint& checkpoint, const Config& config) {
  bool found = false;
  for_each_tensor(config, [&](const ParamTensor& tensor) {
    if (found || tensor.params == 0 || !may_be_int8(*tensor.family, config)) return;
    const auto info = checkpoint.find(tensor.name);
    found = info.ok() && info->dtype == DType::i8;
  });
  return found;
}

void resolve_by_tensors(const Checkpoint& checkpoint, Config& config) {
  if (config.trunk_int8) config.trunk_int8 = stores_int8(checkpoint, config);
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

int64_t text_weight_bytes(const Config& config) {
  int64_t total = 0;
  for_each_tensor(config, [&](const ParamTensor& tensor) {
    const Component component = tensor.family->component;
    if (component != Component::vision_tower && component != Component::projector) total += tensor.size_bytes();
  });
  return total;
}

Result<WeightSet> place_weights(const Checkpoint& checkpoint, const Config& config, const FillJobs& fill) {
  const int64_t total = text_weight_bytes(config);
  // Refused here with the numbers, rather than killed half-way by the system.
  if (const int64_t available = available_memory_bytes(); total > available) {
    return fail(Code::exhausted, "the weights need {} of memory and {} are available", format_bytes(total),
                format_bytes(available));
  }
  WeightSet set;
  set.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerWeights& layer = set.layers[static_cast<size_t>(l)];
    K3_TRY(load_arena(checkpoint, config, fill, set, [&](ArenaPlan& plan) { return wire_layer(plan, config, l, layer); }));
  }
  K3_TRY(load_arena(checkpoint, config, fill, set, [&](ArenaPlan& plan) { return wire_globals(plan, config, set); }));
  return set;
}

Result<WeightSet> load_weights(const Checkpoint& checkpoint, const Config& config, ThreadPool& pool,
                               const LoadProgress& progress) {
  K3_TRY(check_sizes(config));
  const int64_t total = text_weight_bytes(config);
  std::atomic<int64_t> done{0};
  return place_weights(checkpoint, config, [&](const std::vector<ReadJob>& jobs) {
    return run_jobs(checkpoint, jobs, pool, done, total, progress);
  });
}

}  // namespace k3
