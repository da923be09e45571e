#include "k3/model/stream/memory_plan.h"

#include <algorithm>

#include "k3/base/units.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"

namespace k3 {
namespace {

// Code, libraries, stacks and heap of the program itself; the tokenizer of a vocabulary; and what an open checkpoint keeps
// of a tensor (name, place, record of its header; the parse of a header takes about as much again for a while).
constexpr int64_t kProgramBytes = int64_t{40} << 20, kTokenBytes = 256, kTensorBytes = 320;
// A block is long enough to be read at the full rate of the disk, and a small part of a small lm_head.
constexpr int64_t kHeadBlockBytes = int64_t{8} << 20, kHeadBlocks = 32, kHeadBuffers = 3;
// Scratch may take an eighth of the limit; a chunk of kLeastChunk tokens is always allowed.
constexpr int64_t kScratchShare = 8, kLeastChunk = 16;

int64_t slack_of(int64_t bytes, int64_t count) { return bytes + count * (2 * kDiskSlack + 4096 + 128); }

int64_t fixed_bytes(const MemoryPlan& p) {
  return p.state_bytes + p.latent_bytes + p.scratch_bytes + p.logits_bytes + p.program_bytes + p.embedding_bytes;
}

// What does not depend on which weights stay.
void plan_fixed(const Config& c, const ModelBytes& b, const PlanRequest& r, int64_t chunk, MemoryPlan& p) {
  const ModelSummary s = summarise(c);
  const int64_t element = r.policy == ops::Policy::exact ? 4 : 2;
  const int64_t rows = r.logit_rows > 0 ? std::min(r.logit_rows, chunk) : chunk;
  p.chunk_tokens = chunk;
  p.ctx_tokens = r.ctx_tokens;
  p.sequences = r.sequences;
  p.limit_bytes = r.limit_bytes;
  p.state_bytes = r.sequences * s.cache_bytes_per_sequence(element);
  p.latent_bytes = r.sequences * r.ctx_tokens * s.cache_bytes_per_token(element);
  p.pooled = r.cache_bytes > 0;
  if (p.pooled) {
    p.state_bytes = 0;
    p.latent_bytes = r.cache_bytes;
  }
  p.scratch_bytes = step_scratch_bytes(c, chunk, rows, r.ctx_tokens, r.threads);
  p.logits_bytes = rows * c.vocab_size * 4;
  p.program_bytes = kProgramBytes + c.vocab_size * kTokenBytes + b.tensors * kTensorBytes + b.experts * int64_t{128};
  p.embedding_rows = std::min(c.vocab_size, std::max<int64_t>(chunk * r.sequences, 64));
  p.embedding_bytes = slack_of(p.embedding_rows * b.embedding_row, p.embedding_rows);
  p.expert_slot_bytes = b.expert_slot;
  p.experts = b.experts;
  p.layer_streamed.assign(b.layer_arena.size(), false);
}

int64_t head_block_rows(const ModelBytes& b) {
  const int64_t rows = std::max<int64_t>(b.lm_head_rows, 1);
  return std::clamp<int64_t>(kHeadBlockBytes / std::max<int64_t>(b.lm_head_row, 1), 1,
                             (rows + kHeadBlocks - 1) / kHeadBlocks);
}

void set_head(const ModelBytes& b, int64_t resident_rows, MemoryPlan& p) {
  p.lm_head_resident_rows = resident_rows;
  p.lm_head_block_rows = head_block_rows(b);
  const bool streamed = resident_rows < b.lm_head_rows;
  p.lm_head_buffers = streamed ? kHeadBuffers : 0;
  p.lm_head_bytes = slack_of(resident_rows * b.lm_head_row, 1) +
                    p.lm_head_buffers * slack_of(p.lm_head_block_rows * b.lm_head_row, 1) +
                    (b.lm_head_scales > 0 ? slack_of(b.lm_head_scales, 1) : 0);
}

// `count` of the candidates, evenly spaced, so that resident layers compute while streamed ones are read.
std::vector<bool> evenly(const std::vector<int64_t>& candidates, int64_t count, size_t layers) {
  std::vector<bool> streamed(layers, false);
  const auto size = static_cast<int64_t>(candidates.size());
  for (int64_t i = 0; i < count; ++i) {
    streamed[static_cast<size_t>(candidates[static_cast<size_t>((2 * i + 1) * size / (2 * count))])] = true;
  }
  return streamed;
}

void set_layers(const ModelBytes& b, std::vector<bool> streamed, MemoryPlan& p) {
  p.layer_streamed = std::move(streamed);
  p.trunk_bytes = b.final_arena;
  p.stream_buffer_bytes = 0;
  p.streamed_read_bytes = (b.lm_head_rows - p.lm_head_resident_rows) * b.lm_head_row;
  for (size_t l = 0; l < b.layer_arena.size(); ++l) {
    if (!p.layer_streamed[l]) {
      p.trunk_bytes += b.layer_arena[l];
      continue;
    }
    p.stream_buffer_bytes = std::max(p.stream_buffer_bytes, b.layer_arena[l]);
    p.streamed_read_bytes += b.layer_read[l];
  }
}

int64_t trunk_total(const MemoryPlan& p) { return p.trunk_bytes + 2 * p.stream_buffer_bytes + p.lm_head_bytes; }

// Chooses what of the trunk is read every step so that it fits `room`. False when even all of it streamed does not.
bool plan_trunk(const ModelBytes& b, int64_t room, MemoryPlan& p) {
  const size_t layers = b.layer_arena.size();
  const std::vector<bool> none(layers, false);
  set_head(b, b.lm_head_rows, p);
  set_layers(b, none, p);
  if (trunk_total(p) <= room) return true;
  // lm_head can be cut at any row, which costs the smallest buffers.
  set_head(b, 0, p);
  set_layers(b, none, p);
  if (const int64_t spare = room - trunk_total(p); spare >= 0) {
    const int64_t block = p.lm_head_block_rows;
    set_head(b, std::min(b.lm_head_rows, spare / b.lm_head_row / block * block), p);
    set_layers(b, none, p);
    return true;
  }
  // Then whole layers, through two buffers of the largest of them: first only those of ordinary size.
  std::vector<int64_t> sorted = b.layer_arena, ordinary, all;
  std::sort(sorted.begin(), sorted.end());
  const int64_t most = sorted[layers / 2] + sorted[layers / 2] / 4;
  for (size_t l = 0; l < layers; ++l) {
    all.push_back(static_cast<int64_t>(l));
    if (b.layer_arena[l] <= most) ordinary.push_back(static_cast<int64_t>(l));
  }
  for (const std::vector<int64_t>& candidates : {ordinary, all}) {
    for (int64_t count = 1; count <= static_cast<int64_t>(candidates.size()); ++count) {
      set_layers(b, evenly(candidates, count, layers), p);
      if (trunk_total(p) <= room) return true;
    }
  }
  return false;
}

Error refusal(const ModelBytes& b, const MemoryPlan& p, int64_t slots) {
  const int64_t experts = slots * b.expert_slot, least = fixed_bytes(p) + trunk_total(p) + experts;
  struct Part {
    const char* name;
    int64_t bytes;
    const char* advice;
  };
  Part parts[] = {
      {"trunk buffers", trunk_total(p), "a machine with more memory is needed"},
      {"latents of the context", p.latent_bytes, "a shorter --ctx lowers it"},
      {"recurrent state", p.state_bytes, "fewer sequences lower it"},
      {"scratch and logits", p.scratch_bytes + p.logits_bytes, "fewer threads (-t) lower it"},
      {"experts in flight", experts, "a machine with more memory is needed"},
      {"program and index", p.program_bytes + p.embedding_bytes, "nothing lowers it"},
  };
  std::sort(std::begin(parts), std::end(parts), [](const Part& x, const Part& y) { return x.bytes > y.bytes; });
  std::string sum;
  for (const Part& part : parts)
    sum += fmt::format("{}{} {}", sum.empty() ? "" : " + ", part.name, format_bytes(part.bytes));
  return fail(Code::exhausted, "{} of memory cannot hold this model even with everything read from disk: {} = {}; {}: {}",
              format_bytes(p.limit_bytes), sum, format_bytes(least), parts[0].name, parts[0].advice);
}

}  // namespace

ModelBytes model_bytes(const Config& c) {
  ModelBytes b;
  b.layer_arena.assign(static_cast<size_t>(c.num_hidden_layers), 0);
  b.layer_read = b.layer_arena;
  b.topk = c.num_experts_per_token;
  b.experts_per_layer = c.num_experts;
  int64_t first_moe = -1;
  for_each_tensor(c, [&](const ParamTensor& t) {
    const Component component = t.family->component;
    if (component == Component::vision_tower || component == Component::projector) return;
    ++b.tensors;
    const int64_t read = t.size_bytes(), rows = t.dims[0];
    const int64_t widened = t.family->matrix || t.dtype == DType::f32 ? 0 : t.params * 4;
    const int64_t arena = slack_of(read, 1) + widened;
    if (t.expert >= 0) {
      // The tensors of an expert lie together and are one read; all experts are of one size.
      if (first_moe < 0) first_moe = t.layer;
      if (t.expert == 0 && t.layer == first_moe) b.expert_read += read;
    } else if (t.layer >= 0) {
      b.layer_arena[static_cast<size_t>(t.layer)] += arena;
      b.layer_read[static_cast<size_t>(t.layer)] += read;
    } else if (t.family->id == ParamId::embed_tokens) {
      b.embedding = read;
      b.embedding_row = read / rows;
    } else if (t.family->id == ParamId::lm_head && t.dtype == DType::u8) {
      b.lm_head_scales = read;
      b.lm_head += read;
    } else if (t.family->id == ParamId::lm_head) {
      b.lm_head = read;
      b.lm_head_rows = rows;
      b.lm_head_row = read / rows;
    } else {
      b.final_arena += arena;
    }
  });
  if (c.tie_word_embeddings) {
    b.lm_head = b.embedding;
    b.lm_head_row = b.embedding_row;
    b.lm_head_rows = c.vocab_size;
  }
  b.expert_slot = slack_of(b.expert_read, 1);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) b.experts += c.is_moe(l) ? c.num_experts : 0;
  return b;
}

Result<ModelBytes> model_bytes(const Checkpoint& checkpoint, const Config& c, const ExpertTable& experts) {
  ModelBytes b = model_bytes(c);
  b.tensors = checkpoint.tensor_count();
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    ArenaPlan plan(checkpoint, c, Slack::tensors);
    LayerWeights w;
    K3_TRY(wire_trunk(plan, c, l, w));
    b.layer_arena[static_cast<size_t>(l)] = plan.used();
    b.layer_read[static_cast<size_t>(l)] = plan.read_bytes();
  }
  ArenaPlan last(checkpoint, c, Slack::tensors);
  WeightSet w;
  K3_TRY(wire_final(last, c, w));
  b.final_arena = last.used();
  ArenaPlan tables(checkpoint, c, Slack::tensors);
  K3_TRY(wire_tables(tables, c, w));
  b.embedding = tables.jobs().front().info.size_bytes;
  // Behind the embedding, unless it is tied, lm_head and the scales that it may have.
  const std::vector<ReadJob>& jobs = tables.jobs();
  const int64_t codes = jobs[jobs.size() > 1 ? 1 : 0].info.size_bytes;
  b.lm_head_scales = jobs.size() > 2 ? jobs[2].info.size_bytes : 0;
  b.lm_head = codes + b.lm_head_scales;
  b.embedding_row = b.embedding / c.vocab_size;
  b.lm_head_row = codes / c.vocab_size;
  b.lm_head_rows = c.vocab_size;
  b.expert_slot = experts.slot_bytes();
  b.expert_read = experts.read_bytes();
  return b;
}

int64_t MemoryPlan::streamed_layers() const { return std::count(layer_streamed.begin(), layer_streamed.end(), true); }

int64_t MemoryPlan::total_bytes() const {
  if (everything) return fixed_bytes(*this) + weight_bytes;
  return fixed_bytes(*this) + trunk_total(*this) + expert_slots * expert_slot_bytes;
}

Result<MemoryPlan> plan_memory(const Config& c, const ModelBytes& b, const PlanRequest& r) {
  MemoryPlan p;
  // Enough for the top-k of two layers: what is computed and what is read ahead; at the least one expert in flight.
  const int64_t wanted_slots = std::min(b.experts, 2 * b.topk), least_slots = std::min<int64_t>(b.experts, b.topk);
  for (int64_t chunk = std::max<int64_t>(r.chunk_tokens, 1);; chunk = std::max(kLeastChunk, chunk / 2)) {
    plan_fixed(c, b, r, chunk, p);
    // With everything in memory no embedding rows are cached.
    int64_t weights = b.embedding + (c.tie_word_embeddings ? 0 : b.lm_head) + b.final_arena + b.experts * b.expert_slot;
    for (const int64_t bytes : b.layer_arena) weights += bytes;
    if (fixed_bytes(p) - p.embedding_bytes + weights <= r.limit_bytes) {
      p.everything = true;
      p.embedding_rows = p.embedding_bytes = 0;
      p.weight_bytes = weights;
      return p;
    }
    const bool last = chunk <= kLeastChunk;
    if (!last && p.scratch_bytes + p.logits_bytes > r.limit_bytes / kScratchShare) continue;
    const int64_t room = r.limit_bytes - fixed_bytes(p);
    for (const int64_t slots : {wanted_slots, least_slots}) {
      if (!plan_trunk(b, room - slots * b.expert_slot, p)) continue;
      const int64_t spare = room - trunk_total(p);
      p.expert_slots = b.expert_slot > 0 ? std::min(b.experts, spare / b.expert_slot) : 0;
      return p;
    }
    if (last) return refusal(b, p, least_slots);
  }
}

std::vector<PlanLine> plan_lines(const MemoryPlan& p) {
  std::vector<PlanLine> lines;
  const auto add = [&](std::string what, int64_t bytes, std::string remark) {
    if (bytes > 0) lines.push_back({std::move(what), bytes, std::move(remark)});
  };
  const auto layers = static_cast<int64_t>(p.layer_streamed.size()), streamed = p.streamed_layers();
  if (p.everything) {
    add("weights", p.weight_bytes, "all in memory");
  } else {
    add("trunk in memory", p.trunk_bytes, fmt::format("{} of {} layers", layers - streamed, layers));
    add("trunk buffers", 2 * p.stream_buffer_bytes, fmt::format("{} layers read every step", streamed));
    add("lm_head", p.lm_head_bytes,
        p.lm_head_buffers > 0 ? fmt::format("{} rows in memory, the rest read every step", p.lm_head_resident_rows)
                              : "in memory");
    add("embedding", p.embedding_bytes, fmt::format("{} rows, read on demand", p.embedding_rows));
    add("expert cache", p.expert_slots * p.expert_slot_bytes, fmt::format("{} of {} experts", p.expert_slots, p.experts));
  }
  if (p.pooled) {
    add("pool of states and latents", p.latent_bytes, fmt::format("up to {} sequences", p.sequences));
  } else {
    add("recurrent state", p.state_bytes, fmt::format("{} sequences", p.sequences));
    add("latents", p.latent_bytes, fmt::format("{} tokens of context", p.ctx_tokens));
  }
  add("scratch", p.scratch_bytes, fmt::format("steps of {} tokens", p.chunk_tokens));
  add("logits", p.logits_bytes, "");
  add("program", p.program_bytes, "code, index, heap");
  add("total", p.total_bytes(), fmt::format("of {}", format_bytes(p.limit_bytes)));
  return lines;
}

}  // namespace k3
