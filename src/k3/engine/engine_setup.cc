#include "k3/engine/engine_setup.h"

#include <algorithm>

#include "k3/base/file.h"
#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/engine/executor.h"
#include "k3/model/run/identity.h"

namespace k3 {
namespace {

Status check_gpu_options(const EngineOptions& o) {
  if (o.policy != ops::Policy::exact && o.dtypes.latent != DType::bf16) {  // exact is refused as a whole
    return fail(Code::unsupported, "latents of dtype {} (--latent-dtype) are for --device cpu; the GPU kernels read BF16",
                dtype_name(o.dtypes.latent));
  }
  return {};
}

int64_t block_tokens(const Config& config, const EngineOptions& o) {
  constexpr int64_t kLargeState = int64_t{1} << 20;  // elements of one layer: K3 has 1.5 M
  if (o.block_tokens != 0) return o.block_tokens;
  return layer_counts(config).state_elements >= kLargeState ? 512 : 64;
}

int64_t sequence_bytes(const cache::CacheShape& shape, int64_t tokens) { return (shape.pages_for(tokens) + shape.groups()) * shape.page_bytes; }

// Pages take memory when they are first used: too many of them would end the process hours later.
Status check_host_memory(const Model& model, const EngineOptions& o) {
  const int64_t pool = model.device().is_cuda() ? 0 : o.pool_bytes, free = available_memory_bytes();
  if (pool <= free && o.host_bytes <= free - pool) return {};  // no sum that could overflow
  return fail(Code::exhausted, "a pool of {} and a host tier of {} do not fit the {} of memory that are free; see --pool-bytes and --host-bytes",
              format_bytes(pool), format_bytes(o.host_bytes), format_bytes(free));
}

}  // namespace

Status check_engine_options(const Model& model, EngineOptions& o) {
  if (o.ctx_tokens < 2 || o.step_tokens < 1 || o.max_running < 1 || o.max_queued < 1) {
    return fail(Code::invalid_argument, "context, step, running and queued requests must be at least 2, 1, 1 and 1");
  }
  if (!o.slot_save_path.empty() && !is_directory(o.slot_save_path)) {
    return fail(Code::not_found, "{}: no such folder; saved sequences would have no place", o.slot_save_path);
  }
  if (model.device().is_cuda()) K3_TRY(check_gpu_options(o));
  const cache::CacheDtypes& d = o.dtypes;
  if (o.policy == ops::Policy::exact && (d.state != DType::f32 || d.conv != DType::f32 || d.latent != DType::f32)) {
    return fail(Code::invalid_argument, "policy exact keeps all caches in FP32; choose policy bf16 for smaller ones");
  }
  o.block_tokens = block_tokens(model.config(), o);
  return {};
}

Result<GpuPoolRequest> gpu_pool_request(const Config& config, const EngineOptions& o) {
  if (o.ctx_tokens < 2 || o.max_running < 1) return fail(Code::invalid_argument, "context and running requests must be at least 2 and 1");
  K3_TRY_ASSIGN(const cache::CacheShape shape, cache::make_shape(layer_counts(config), o.dtypes, block_tokens(config, o)));
  const int64_t sequence = sequence_bytes(shape, o.ctx_tokens);
  return GpuPoolRequest{o.pool_bytes, sequence, o.max_running * sequence, o.host_bytes};
}

// What weights and scratch of steps have left, or as much of it as was asked for.
Status size_gpu_pool(const Model& model, const cache::CacheShape& shape, int64_t scratch_bytes, EngineOptions& o) {
  K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(model.device()));
  // A plan has counted the margin as part of the program.
  const int64_t most = memory.free_bytes - (model.plan() ? 0 : kGpuMargin), least = (1 + shape.groups()) * shape.page_bytes;
  const int64_t wanted = o.pool_bytes == 0 ? least : o.pool_bytes;
  if (wanted > most) {
    const int64_t weights = model.weights().size_bytes;
    return fail(Code::exhausted,
                "a pool of {} does not fit on {}: {} in all, {} weights, {} scratch of steps, {} other things, {} kept free; that leaves {}",
                format_bytes(wanted), device_name(model.device()), format_bytes(memory.total_bytes), format_bytes(weights),
                format_bytes(scratch_bytes), format_bytes(memory.total_bytes - memory.free_bytes - weights - scratch_bytes),
                format_bytes(memory.free_bytes - most), format_bytes(std::max<int64_t>(0, most)));
  }
  if (o.pool_bytes == 0) o.pool_bytes = most;
  return {};
}

// Room for every slot at full context, but no more than half of what the machine has left.
Status size_pool(const Model& model, const cache::CacheShape& shape, EngineOptions& o) {
  const int64_t sequence = sequence_bytes(shape, o.ctx_tokens);
  if (model.plan()) {
    const int64_t planned = model.plan()->state_bytes + model.plan()->latent_bytes, host = model.device().is_cuda() ? 0 : o.host_bytes;
    if (o.pool_bytes == 0) o.pool_bytes = planned - host;
    if (o.pool_bytes + host > planned) {
      return fail(Code::exhausted, "a pool of {} and a host tier of {} are more than the {} that the memory plan left for them",
                  format_bytes(o.pool_bytes), format_bytes(host), format_bytes(planned));
    }
  } else if (o.pool_bytes == 0 && !model.device().is_cuda()) {
    o.pool_bytes = std::min(o.max_running * sequence, std::max(sequence, available_memory_bytes() / 2));
  }
  if (!model.plan()) K3_TRY(check_host_memory(model, o));
  const int64_t least = (1 + shape.groups()) * shape.page_bytes;
  if (o.pool_bytes >= least || (o.pool_bytes == 0 && model.device().is_cuda())) return {};
  return fail(Code::invalid_argument, "a pool of {} holds no sequence: one needs at least {} pages of {} = {}",
              format_bytes(o.pool_bytes), 1 + shape.groups(), format_bytes(shape.page_bytes), format_bytes(least));
}

std::string engine_identity(const Model& model, const EngineOptions& o) {
  return fmt::format("{} {} {} {} {} {} {}{}{}", model_identity(model.folder()), o.block_tokens, dtype_name(o.dtypes.state),
                     dtype_name(o.dtypes.conv), dtype_name(o.dtypes.latent),
                     o.policy == ops::Policy::exact ? "exact" : "bf16", model.device().is_cuda() ? "cuda" : ops::isa_name(o.isa),
                     o.deterministic ? " deterministic" : "", o.int8_activations ? " int8" : "");
}

}  // namespace k3
