// Purpose:  the tokens of one step and the views through which their history enters: whole prompts, chunks,
//           single tokens and mixtures of them are all a Batch.
// Shapes:   tokens [T] flattened; offsets [B + 1]; history [B] tokens already in the caches; caches [layers].
// Units:    tokens.
// Memory:   non-owning spans; the caches behind the views are read and advanced by a forward.
// Threads:  one forward at a time for the same caches.
// Errors:   none.
// Source:   architecture: "One model definition"; serving.md 1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "k3/ops/paged.h"
#include "k3/ops/sampling/cuda/sampling_rule.h"

namespace k3 {

struct LayerCache {
  ops::StateSlots state;                        // KDA layers
  std::span<const ops::StateExport> exports;    // KDA layers: checkpoints to write inside the pass
  std::span<const ops::PagedKv> pages;          // MLA layers, [B]; on a GPU:
  ops::PagedTable table;
  ops::DeviceExports device_exports;  // on a GPU: `exports`, in device memory
};

// How the token behind a row of logits is chosen where they are computed; none: the row comes to the host.
using RowChoice = std::optional<ops::cuda::SampleRow>;

struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int64_t> offsets;
  std::span<const int64_t> history;
  std::span<const LayerCache> caches;
  std::span<const int64_t> logit_rows;  // indices into tokens whose logits are wanted, ascending
  std::span<const RowChoice> choices = {};  // of logit_rows; empty: none

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequence_count() const { return static_cast<int64_t>(history.size()); }
};

}  // namespace k3
