// Purpose:  the caches of a fixed number of sequences outside a serving engine: KDA state, conv tail, latents.
// Shapes:   per KDA layer and sequence: state [H, Dv, Dk] f32 or bf16, conv [3, K - 1, H * D]; per MLA layer and sequence:
//           latents [ctx_tokens, R + rope]. Conv is FP32 in policy exact, BF16 in bf16; states and latents as SequenceDtypes says.
// Units:    tokens.
// Memory:   state is allocated at once; latents are reserved for ctx_tokens and cost memory as they fill.
// Threads:  one thread at a time.
// Errors:   create: exhausted when the memory is not there; unsupported for latents that are not BF16 on a GPU. Room is checked by room() before a step.
// Source:   model.md 3.3, 3.4, 7.3.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "k3/format/config.h"
#include "k3/model/batch.h"
#include "k3/ops/ctx.h"
#include "k3/tensor/tensor.h"

namespace k3 {

// What the policy would choose, unless said otherwise.
struct SequenceDtypes {
  std::optional<DType> state;   // f32 (either policy) or bf16
  std::optional<DType> latent;  // f32 in exact, bf16 in bf16; f8_e4m3
};

class SequencePool {
 public:
  static Result<SequencePool> create(const Config& config, ops::Policy policy, int64_t sequences, int64_t ctx_tokens,
                                     const SequenceDtypes& dtypes = {}, Device device = {});

  int64_t ctx_tokens() const { return ctx_tokens_; }
  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int32_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  int64_t room(int32_t sequence) const { return ctx_tokens_ - length(sequence); }
  void reset(int32_t sequence);
  void advance(int32_t sequence, int64_t tokens) { lengths_[static_cast<size_t>(sequence)] += tokens; }

  // All that a sequence holds, in a fixed order, as bytes; restore sets its length to `tokens`.
  Status save(int32_t sequence, const std::function<Status(std::span<const std::byte>)>& write) const;
  Status restore(int32_t sequence, int64_t tokens, const std::function<Status(std::span<std::byte>)>& read);

  // Every sequence as if it held so many tokens: random numbers of a usual size in its caches. For benches.
  Status pretend(int64_t tokens, uint64_t seed);

  // Views of the given sequences, in this order, for a Batch. Valid until the next call.
  std::span<const LayerCache> views(std::span<const int32_t> sequences);

 private:
  struct Layer {
    Storage recurrent, conv, latents;
  };
  // What belongs to a sequence of so many tokens, layer by layer.
  std::vector<std::span<std::byte>> parts(int32_t sequence, int64_t tokens) const;

  int64_t pages_of_sequence() const;
  void clear(std::byte* at, int64_t bytes) const;

  Device device_;
  Config config_;
  DType state_dtype_ = DType::f32, conv_dtype_ = DType::f32, latent_dtype_ = DType::f32;
  int64_t ctx_tokens_ = 0;
  std::vector<Layer> layers_;
  std::vector<int64_t> lengths_;
  std::vector<int32_t> slots_, page_numbers_;  // every sequence has its own pages, in order
  std::vector<LayerCache> views_;
  std::vector<std::vector<ops::PagedKv>> pages_;
};

}  // namespace k3
