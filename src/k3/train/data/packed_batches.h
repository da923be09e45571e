// Purpose:  the batches of one training phase as a pure function of (options, step): nothing is remembered between calls, so a
//           resumed run gets the same batches from the step number alone, and ranks need not talk.
// Shapes:   tokens and targets [S * L]: S sequences of L tokens. offsets [segments + 1]: begin of every segment over the flattened
//           batch and S * L at the end; a segment is a piece of one document (state, conv and attention start anew there).
//           Every multiple of L is among the offsets.
// Units:    tokens.
// Memory:   borrows the sources, which must outlive it. Chat sources keep 16 bytes a conversation. Batches are reused by fill().
// Threads:  fill() may be called concurrently (with different batches).
// Errors:   create: invalid_argument naming the option; not_found naming the source. fill() cannot fail.
// Source:   docs/training.md, section Data. Text: a source's stream is cut into windows of L tokens, begun at another offset each
//           epoch, visited in the order of a counter-based permutation (permutation.h), each once an epoch. Chat: conversations
//           are packed into sequences by best fit, longest first; only those longer than L are cut; each packed sequence comes
//           once an epoch, in permuted order. Which source a sequence comes from: mixture.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/train/data/token_shards.h"

namespace k3::train {

struct MixtureEntry {
  const TokenShards* source = nullptr;
  double weight = 1;            // how often its tokens come, relative to the other entries: 4 is four times an epoch
  std::optional<double> share = std::nullopt;  // instead of the weight: this part (0 to 1) of all sequences; the rest is divided by weight
  bool learn_all = false;       // chat: loss on every token, not only the assistant's
};

struct PackOptions {
  std::vector<MixtureEntry> mixture;
  int64_t seq_tokens = 1024;        // L, the context length of the phase
  int64_t tokens_per_step = 65536;  // of all ranks and micro-batches; a multiple of world x micro_batches x L
  int64_t micro_batches = 1;        // a step's share of a rank comes in so many batches
  int64_t rank = 0, world = 1;      // data parallel
  uint64_t seed = 0;
  uint64_t phase = 0;  // another number, another order
  int32_t pad = 0;     // id that fills sequences (no loss there)
};

struct PackedBatch {
  int64_t sequences = 0, seq_tokens = 0;
  std::vector<int32_t> tokens;   // [S * L]
  std::vector<int32_t> targets;  // [S * L]; the token to predict at each place, -1: no loss
  std::vector<int64_t> offsets;  // [segments + 1]
  int64_t loss_tokens = 0;       // targets that are not -1
  int64_t padding_tokens = 0;
};

class PackedBatches {
 public:
  static Result<PackedBatches> create(PackOptions options);
  PackedBatches(PackedBatches&&) noexcept;
  PackedBatches& operator=(PackedBatches&&) noexcept;
  ~PackedBatches();

  const PackOptions& options() const;
  int64_t sequences() const;           // S of one fill()
  int64_t sequences_per_step() const;  // of all ranks and micro-batches

  // Batch `micro` of `step` (counted from the start of the phase) for this rank. Rows are numbered over the whole step, rank by
  // rank and micro-batch by micro-batch, so another division of the same step yields the same rows.
  void fill(int64_t step, int64_t micro, PackedBatch& out) const;

  // Epochs of each entry of the mixture that are over before `step` (whole and part).
  std::vector<double> epochs_before(int64_t step) const;
  std::vector<double> shares() const;  // part of all sequences that each entry gets

 private:
  struct Impl;
  explicit PackedBatches(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::train
