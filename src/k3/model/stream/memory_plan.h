// Purpose:  decides before anything is loaded what of a model stays in memory, what is read every step and how much is left
//           for routed experts, within a promise of bytes; and says so in a table.
// Shapes:   none.
// Units:    bytes, tokens.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   plan_memory: exhausted with the arithmetic when even the least that can work is more than the limit.
// Source:   docs/larger-than-memory.md. Trunk bytes are read once a token, an expert's only topk / E of the time: trunk
//           first, experts with the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/model/stream/expert_table.h"
#include "k3/ops/ctx.h"

namespace k3 {

// Bytes of one model's parts as they lie in memory when they are read by a DiskReader.
struct ModelBytes {
  std::vector<int64_t> layer_arena;  // trunk of each layer: all but routed experts
  std::vector<int64_t> layer_read;   // bytes of it on disk
  int64_t final_arena = 0;           // final norm and AttnRes site
  int64_t embedding = 0, embedding_row = 0;
  int64_t lm_head = 0, lm_head_row = 0, lm_head_rows = 0;
  int64_t lm_head_scales = 0;                // of an 8-bit lm_head, part of its bytes, not of its rows
  int64_t expert_slot = 0, expert_read = 0;  // the largest expert
  int64_t experts = 0;                       // of all layers
  int64_t experts_per_layer = 0, topk = 0;
  int64_t tensors = 0;  // of the checkpoint, for its index in memory
};

// As the released layout stores a config, without looking at a checkpoint.
ModelBytes model_bytes(const Config& config);
// As this checkpoint stores it; checks every trunk tensor's name, shape and dtype.
Result<ModelBytes> model_bytes(const Checkpoint& checkpoint, const Config& config, const ExpertTable& experts);

struct PlanRequest {
  int64_t limit_bytes = 0;
  int64_t ctx_tokens = 0, sequences = 1;
  int64_t chunk_tokens = 512;  // wanted; the plan may take fewer
  int64_t logit_rows = 1;      // most rows of logits of one step; 0: as many as the chunk has tokens
  int64_t cache_bytes = 0;     // of a serving engine's pool and host tier, instead of states and latents of `sequences`; 0: none
  int64_t prompt_keys = 0;     // on a GPU: most cached tokens that the prompts of a step attend to together; 0: of all sequences
  ops::Policy policy = ops::Policy::bf16;
  int threads = 1;
};

struct MemoryPlan {
  bool everything = false;  // all weights stay in memory: the ordinary loader
  int64_t limit_bytes = 0;
  int64_t chunk_tokens = 0, ctx_tokens = 0, sequences = 1;

  std::vector<bool> layer_streamed;  // read every step
  int64_t trunk_bytes = 0;           // resident layers, final norm
  int64_t stream_buffer_bytes = 0;   // of each of the two buffers for streamed layers
  int64_t streamed_read_bytes = 0;   // layers and lm_head, every step
  int64_t lm_head_resident_rows = 0, lm_head_block_rows = 0, lm_head_buffers = 0, lm_head_bytes = 0;
  int64_t embedding_rows = 0, embedding_bytes = 0;  // row cache
  int64_t expert_slots = 0, expert_slot_bytes = 0, experts = 0;
  int64_t state_bytes = 0, latent_bytes = 0;
  bool pooled = false;  // latent_bytes are a serving engine's cache_bytes
  int64_t scratch_bytes = 0, logits_bytes = 0, program_bytes = 0;
  int64_t weight_bytes = 0;  // with `everything`

  int64_t streamed_layers() const;
  int64_t total_bytes() const;
};

Result<MemoryPlan> plan_memory(const Config& config, const ModelBytes& bytes, const PlanRequest& request);

// Scratch of the largest step; bounds Workspace::peak_bytes().
int64_t step_scratch_bytes(const Config& config, int64_t tokens, int64_t logit_rows, int64_t ctx_tokens, int threads);

// Lines of the table: what, bytes, remark.
struct PlanLine {
  std::string what;
  int64_t bytes = 0;
  std::string remark;
};
std::vector<PlanLine> plan_lines(const MemoryPlan& plan);

}  // namespace k3
