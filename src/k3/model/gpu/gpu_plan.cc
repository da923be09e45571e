#include "k3/model/gpu/gpu_plan.h"

#include <algorithm>

#include "k3/base/units.h"
#include "k3/model/gpu/pinned_feeder.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/ops/mla/cuda/mla_parts.h"
#include "k3/ops/moe/moe.h"

namespace k3 {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// The driver's context, the kernels' code, the library of products with its workspace, arrays of the step.
constexpr int64_t kProgramBytes = 768 * kMiB;
constexpr int64_t kMeasureFlush = 160 * kMiB;  // what flushes the cache while products are measured
// A staging area is copied in some milliseconds, far longer than the launches of the kernels that read it take.
constexpr int64_t kStagingArea = 128 * kMiB, kStagingShare = 16;  // of what is left for experts
constexpr int64_t kExpertsAtOnce = 64;  // of one read
constexpr int64_t kScratchShare = 8, kLeastChunk = 16;
constexpr int64_t kPoolShare = 8;  // of what is left for pool and experts
constexpr int64_t kAlign = 256;

int64_t fixed_bytes(const GpuPlan& p) {
  return p.trunk_bytes + p.state_bytes + p.latent_bytes + std::max(p.scratch_bytes, p.measuring_bytes) + p.logits_bytes + p.program_bytes;
}

void plan_fixed(const Config& c, const GpuModelBytes& b, const GpuPlanRequest& r, int64_t chunk, GpuPlan& p) {
  const ModelSummary s = summarise(c);
  const int64_t rows = r.run.logit_rows > 0 ? std::min(r.run.logit_rows, chunk) : chunk;
  p.vram_bytes = r.run.limit_bytes;
  p.ram_bytes = r.ram_bytes;
  p.chunk_tokens = chunk;
  p.ctx_tokens = r.run.ctx_tokens;
  p.sequences = r.run.sequences;
  p.pooled = r.pool.least_bytes > 0;
  p.host_tier_bytes = r.pool.host_bytes;
  p.state_bytes = p.pooled ? 0 : r.run.sequences * s.cache_bytes_per_sequence(2);
  p.latent_bytes = p.pooled ? (r.pool.asked_bytes > 0 ? r.pool.asked_bytes : r.pool.least_bytes)
                            : r.run.sequences * r.run.ctx_tokens * s.cache_bytes_per_token(2);
  p.trunk_bytes = b.trunk + b.layers * b.expert_scalars;
  const int64_t keys = r.run.sequences * r.run.ctx_tokens;
  p.scratch_bytes = gpu_scratch_bytes(c, chunk, rows, r.run.prompt_keys > 0 ? std::min(r.run.prompt_keys, keys) : keys, r.run.sequences);
  p.measuring_bytes = b.measuring;
  p.logits_bytes = std::max(rows, r.run.sequences) * c.vocab_size * 4;
  p.program_bytes = kProgramBytes;
  p.layers = b.layers;
  p.experts = b.experts;
  p.expert_bytes = b.expert;
  p.staging_bytes = PinnedFeeder::kPinnedBytes;
}

Error too_little_vram(const GpuPlan& p) {
  const int64_t staging = 2 * p.store.staged * p.expert_bytes;
  return fail(Code::exhausted,
              "--vram {} cannot hold this model even with every routed expert in host memory: trunk {} + {} {} + scratch {} + "
              "logits {} + program {} + staging {} = {}; {} lowers it, and --device cpu runs models of any size",
              format_bytes(p.vram_bytes), format_bytes(p.trunk_bytes), p.pooled ? "pool" : "state and latents",
              format_bytes(p.state_bytes + p.latent_bytes), format_bytes(std::max(p.scratch_bytes, p.measuring_bytes)),
              format_bytes(p.logits_bytes), format_bytes(p.program_bytes), format_bytes(staging), format_bytes(fixed_bytes(p) + staging),
              p.pooled ? "a smaller --pool-bytes, --max-running or --ctx" : "a shorter --ctx or --chunk");
}

Error too_little_ram(const GpuPlan& p, int64_t slots) {
  const int64_t all = p.layers * p.experts * p.expert_bytes, layer = p.experts * p.expert_bytes;
  const int64_t whole = layer > 0 ? slots * p.expert_bytes / layer : 0;
  return fail(Code::exhausted,
              "the routed experts need {}; --vram {} has room for {} of {} layers of them, which leaves {} + {} while loading for pinned host "
              "memory{}, and --ram allows {}: raise --ram or --vram, or use --device cpu",
              format_bytes(all), format_bytes(p.vram_bytes), whole, p.layers, format_bytes(all - whole * layer),
              format_bytes(p.staging_bytes),
              p.host_tier_bytes > 0 ? fmt::format(" + {} for the cache (--host-bytes)", format_bytes(p.host_tier_bytes)) : "",
              format_bytes(p.ram_bytes));
}

// Divides `room` among whole layers, as few as --ram asks for, and slots of the others.
bool plan_experts(int64_t room, GpuPlan& p) {
  const int64_t layer = p.experts * p.expert_bytes, slots = std::min(room / p.expert_bytes, p.layers * p.experts - 1);
  const int64_t pinned = p.ram_bytes - p.staging_bytes - p.host_tier_bytes;
  const int64_t in_host = std::clamp<int64_t>(pinned / layer, 0, p.layers);
  p.whole_layers = p.layers - in_host;
  p.store.layers = in_host;
  p.store.experts = p.experts;
  p.store.expert_bytes = p.expert_bytes;
  p.store.slots = slots - p.whole_layers * p.experts;
  return in_host > 0 && p.store.slots >= 0;
}

}  // namespace

GpuModelBytes gpu_model_bytes(const Config& c, int64_t chunk_tokens) {
  GpuModelBytes b;
  int64_t largest_matrix = 0, largest_sum = 0;
  for_each_tensor(c, [&](const ParamTensor& t) {
    const Component component = t.family->component;
    if (component == Component::vision_tower || component == Component::projector || t.expert >= 0) return;
    // Vectors are widened to FP32.
    const bool widened = !t.family->matrix && t.dtype != DType::f32;
    b.trunk += (t.size_bytes() + kAlign) + (widened ? t.params * 4 + kAlign : 0);
    if (!t.family->matrix || t.dims.size() != 2 || t.family->id == ParamId::embed_tokens) return;
    const int64_t rows = t.dims[0], in = t.params / std::max<int64_t>(rows, 1);
    if (t.size_bytes() > largest_matrix) largest_matrix = t.size_bytes();
    largest_sum = std::max(largest_sum, chunk_tokens * 2 * (2 * in + 4 * rows) * (t.layer >= 0 ? 1 : 0));
    if (t.family->id != ParamId::mla_kv_b_proj) return;
    largest_sum = std::max(largest_sum, ops::cuda::mla_measured_keys(c.num_attention_heads) * 2 * (in + rows));
  });
  b.measuring = largest_matrix + largest_sum + kMeasureFlush;
  ops::ExpertBank bank;
  bank.experts = b.experts = c.num_experts;
  bank.width = c.expert_width();
  bank.hidden = c.moe_intermediate_size;
  bank.scheme = c.experts_mxfp4 ? ops::Scheme::mxfp4 : ops::Scheme::bf16;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) b.layers += c.is_moe(l) ? 1 : 0;
  if (b.layers > 0) {
    b.expert = ops::packed_expert_bytes(bank);
    b.expert_scalars = c.num_experts * 16;
  }
  return b;
}

int64_t GpuPlan::device_bytes() const {
  if (everything) return fixed_bytes(*this) + layers * experts * expert_bytes;
  return fixed_bytes(*this) + whole_layers * experts * expert_bytes + store.device_bytes();
}

int64_t GpuPlan::host_bytes() const { return everything ? 0 : store.host_bytes() + staging_bytes + host_tier_bytes; }

MemoryPlan GpuPlan::steps() const {
  MemoryPlan p;
  p.everything = true;
  p.limit_bytes = vram_bytes;
  p.chunk_tokens = chunk_tokens;
  p.ctx_tokens = ctx_tokens;
  p.sequences = sequences;
  p.state_bytes = state_bytes;
  p.latent_bytes = latent_bytes;
  p.pooled = pooled;
  p.scratch_bytes = scratch_bytes;
  p.logits_bytes = logits_bytes;
  return p;
}

Result<GpuPlan> plan_gpu(const Config& c, const GpuModelBytes& b, const GpuPlanRequest& r) {
  GpuPlan p;
  for (int64_t chunk = std::max<int64_t>(r.run.chunk_tokens, 1);; chunk = std::max(kLeastChunk, chunk / 2)) {
    p = {};
    plan_fixed(c, b, r, chunk, p);
    const int64_t beside = r.run.limit_bytes - fixed_bytes(p) - p.layers * p.experts * p.expert_bytes;
    if (beside >= 0) {
      p.everything = true;
      if (p.pooled && r.pool.asked_bytes == 0) p.latent_bytes += beside;
      return p;
    }
    const bool last = chunk <= kLeastChunk;
    if (!last && p.scratch_bytes + p.logits_bytes > r.run.limit_bytes / kScratchShare) continue;
    if (p.layers == 0) {
      if (last) return too_little_vram(p);
      continue;
    }
    // The tables of a store grow with its slots by four bytes each.
    p.store = {.layers = p.layers, .experts = p.experts, .expert_bytes = p.expert_bytes, .slots = 0, .staged = 0};
    int64_t room = r.run.limit_bytes - fixed_bytes(p) - p.store.device_bytes() - p.layers * p.experts * 4 - 4096;
    p.store.staged = std::clamp<int64_t>(std::min(kStagingArea, room / kStagingShare) / p.expert_bytes, 1, p.experts);
    p.at_once = std::min(p.store.staged, kExpertsAtOnce);
    room -= 2 * p.store.staged * p.expert_bytes;
    if (room >= 0) {
      if (p.pooled && r.pool.asked_bytes == 0) {
        const int64_t more = std::clamp<int64_t>((room + p.latent_bytes) / kPoolShare, p.latent_bytes,
                                                 std::max(p.latent_bytes, r.pool.most_bytes)) - p.latent_bytes;
        p.latent_bytes += more;
        room -= more;
      }
      if (!plan_experts(room, p)) return too_little_ram(p, room / p.expert_bytes);
      return p;
    }
    if (last) return too_little_vram(p);
  }
}

std::vector<PlanLine> plan_lines(const GpuPlan& p) {
  std::vector<PlanLine> lines;
  const auto add = [&](std::string what, int64_t bytes, std::string remark) {
    if (bytes > 0) lines.push_back({std::move(what), bytes, std::move(remark)});
  };
  const int64_t layer = p.experts * p.expert_bytes;
  add("trunk", p.trunk_bytes, "on the GPU");
  if (p.everything) {
    add("experts", p.layers * layer, "all on the GPU");
  } else {
    add("experts of whole layers", p.whole_layers * layer, fmt::format("{} of {} layers", p.whole_layers, p.layers));
    add("expert cache", p.store.slots * p.expert_bytes, fmt::format("{} of {} experts", p.store.slots, p.store.layers * p.experts));
    add("staging of long steps", 2 * p.store.staged * p.expert_bytes, fmt::format("2 x {} experts", p.store.staged));
  }
  if (p.pooled) {
    add("pool of states and latents", p.latent_bytes, fmt::format("up to {} sequences", p.sequences));
  } else {
    add("recurrent state", p.state_bytes, fmt::format("{} sequences", p.sequences));
    add("latents", p.latent_bytes, fmt::format("{} tokens of context", p.ctx_tokens));
  }
  const bool measuring = p.measuring_bytes > p.scratch_bytes;
  add("scratch", std::max(p.scratch_bytes, p.measuring_bytes),
      measuring ? "to choose kernels at the start" : fmt::format("steps of {} tokens", p.chunk_tokens));
  add("logits", p.logits_bytes, "");
  add("program", p.program_bytes, "context, kernels, library");
  add("total on the GPU", p.device_bytes(), fmt::format("of {} (--vram)", format_bytes(p.vram_bytes)));
  if (!p.everything) {
    add("experts in host memory", p.store.host_bytes(), "pinned");
    add("loading", p.staging_bytes, "pinned, for a while");
    add("cache", p.host_tier_bytes, "host tier");
    add("total in host memory", p.host_bytes(), fmt::format("of {} (--ram)", format_bytes(p.ram_bytes)));
  }
  return lines;
}

}  // namespace k3
