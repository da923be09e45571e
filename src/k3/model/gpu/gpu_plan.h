// Purpose:  decides before anything is loaded what of a model lies on a GPU, within --vram, and what in pinned host memory, within
//           --ram; and says so in a table.
// Shapes:   none.
// Units:    bytes, tokens, experts.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   plan_gpu: exhausted with the arithmetic and both options when the trunk does not fit --vram or the experts that stay in
//           host memory do not fit --ram.
// Source:   docs/cuda.md. Everything but routed experts is read every step and lies on the GPU; experts get what is left. A serving
//           engine's pool gets an eighth of that, unless a size was asked for; all that is left where all experts are on the GPU.
#pragma once

#include "k3/model/stream/memory_plan.h"
#include "k3/ops/moe/expert_store.h"

namespace k3 {

// Bytes of one model's parts as they lie on a GPU.
struct GpuModelBytes {
  int64_t trunk = 0;  // all but routed experts
  int64_t expert = 0, experts = 0, layers = 0;  // packed; of a layer; layers that have them
  int64_t expert_scalars = 0;                   // of a layer: what is kept on the GPU whatever holds its experts
  int64_t measuring = 0;                        // what choosing the product kernels takes for a while
};
GpuModelBytes gpu_model_bytes(const Config& config, int64_t chunk_tokens);

// The pool of a serving engine's cache, instead of states and latents of so many sequences.
struct GpuPoolRequest {
  int64_t asked_bytes = 0;  // 0: the plan chooses, at least `least`, and beside experts in host memory no more than `most`
  int64_t least_bytes = 0;  // 0: there is no such engine
  int64_t most_bytes = 0;
  int64_t host_bytes = 0;  // a tier of the cache in host memory
};

struct GpuPlanRequest {
  PlanRequest run;        // limit_bytes: --vram
  int64_t ram_bytes = 0;  // most host memory
  GpuPoolRequest pool = {};
};

struct GpuPlan {
  bool everything = false;  // all experts are on the GPU
  int64_t vram_bytes = 0, ram_bytes = 0;
  int64_t chunk_tokens = 0, ctx_tokens = 0, sequences = 1;
  bool pooled = false;  // latent_bytes are a serving engine's pool

  int64_t trunk_bytes = 0, state_bytes = 0, latent_bytes = 0;
  int64_t scratch_bytes = 0, logits_bytes = 0, measuring_bytes = 0, program_bytes = 0;
  int64_t layers = 0, experts = 0, expert_bytes = 0;  // as in GpuModelBytes
  int64_t whole_layers = 0;         // the first ones: all of their experts are on the GPU and nowhere else
  ops::ExpertStoreShape store = {};  // of the others
  int64_t staging_bytes = 0;        // host memory that loading takes
  int64_t host_tier_bytes = 0;      // of a serving engine
  int64_t at_once = 64;             // experts of one read

  int64_t device_bytes() const, host_bytes() const;
  // What a Stepper has to know.
  MemoryPlan steps() const;
};

Result<GpuPlan> plan_gpu(const Config& config, const GpuModelBytes& bytes, const GpuPlanRequest& request);
std::vector<PlanLine> plan_lines(const GpuPlan& plan);

// Scratch of the largest step on a GPU; bounds Workspace::peak_bytes(). prompt_keys: cached tokens that the prompts of a step attend to
// together.
int64_t gpu_scratch_bytes(const Config& config, int64_t tokens, int64_t logit_rows, int64_t prompt_keys, int64_t sequences);

}  // namespace k3
