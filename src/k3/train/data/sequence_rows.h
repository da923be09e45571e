// Internal to train/data. The sequences of one epoch of one source, by number: windows of its stream of tokens (text) or packed
// conversations (chat); and the row of a batch that is filled with them.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/train/data/packed_batches.h"
#include "k3/train/data/token_shards.h"

namespace k3::train {

// Part of one document.
struct Piece {
  int64_t begin = 0;  // position in the source
  int64_t size = 0;
};

// Fills the rows of a batch from left to right; segments, targets and padding are its business.
class RowFiller {
 public:
  RowFiller(PackedBatch& batch, int64_t sequences, int64_t seq_tokens, int32_t pad);
  void begin_row(int64_t row);
  // The piece lies within one document; its last target is the token after it, if that belongs to the document, too.
  void add(const TokenShards& source, Piece piece, bool learn_all);
  void end_row();
  void finish();  // after the last row

 private:
  PackedBatch& batch_;
  int32_t pad_;
  int64_t at_ = 0, row_end_ = 0;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> mask_;
};

// Windows of seq_tokens of the stream. What is left of tokens / seq_tokens is left out, another part every epoch; a source
// shorter than one window is one (padded) sequence.
class StreamWindows {
 public:
  StreamWindows(const TokenShards& source, int64_t seq_tokens);
  int64_t count() const { return count_; }
  void pieces(int64_t window, uint64_t epoch_key, std::vector<Piece>& out) const;

 private:
  const TokenShards* source_;
  int64_t seq_tokens_, count_, slack_;
};

// Conversations packed into sequences by best fit, longest first; those longer than a sequence are cut.
class ChatBins {
 public:
  ChatBins(const TokenShards& source, int64_t seq_tokens);
  int64_t count() const { return static_cast<int64_t>(bin_begin_.size()) - 1; }
  void pieces(int64_t bin, std::vector<Piece>& out) const;

 private:
  std::vector<Piece> pieces_;       // bin after bin
  std::vector<int64_t> bin_begin_;  // [count() + 1] into pieces_
};

}  // namespace k3::train
