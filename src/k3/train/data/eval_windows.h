// Purpose:  the windows over which bits per byte is measured: every document by itself, cut into windows without overlap, each a
//           sequence of its own (state starts anew), every token but a document's first predicted once.
// Shapes:   as PackedBatch: rows of window_tokens; whole windows share a row, each is a segment, the rest is padding.
// Units:    tokens; text_bytes in UTF-8 bytes.
// Memory:   borrows the source; 16 bytes a window.
// Threads:  immutable after create; fill() may be called concurrently.
// Errors:   create: invalid_argument for a window below 2 tokens or an empty source.
// Source:   docs/training.md, section Data: bits per byte = sum of nats over all targets / ln 2 / text_bytes(). A window of W holds
//           inputs p .. p + W - 1 of a document [BOS] ... [EOS] and predicts p + 1 .. p + W; [EOS] is predicted, [BOS] is not.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/base/result.h"
#include "k3/train/data/packed_batches.h"
#include "k3/train/data/token_shards.h"

namespace k3::train {

class EvalWindows {
 public:
  // At most most_tokens predicted (0: all), taken as whole documents spread evenly over the source.
  static Result<EvalWindows> create(const TokenShards& source, int32_t pad, int64_t window_tokens = 1024, int64_t most_tokens = 0);

  int64_t rows() const { return static_cast<int64_t>(row_begin_.size()) - 1; }
  int64_t windows() const { return static_cast<int64_t>(windows_.size()); }
  int64_t documents() const { return documents_; }
  int64_t predicted_tokens() const { return predicted_tokens_; }  // chat sources: the assistant's
  int64_t text_bytes() const { return text_bytes_; }

  // Rows [first, first + rows) as one batch; rows past the end are padding.
  void fill(int64_t first, int64_t rows, PackedBatch& out) const;

 private:
  EvalWindows() = default;
  struct Window {
    int64_t begin = 0;  // position of the first input
    int64_t size = 0;   // inputs
  };
  void add_document(int64_t document);
  void place_windows();

  const TokenShards* source_ = nullptr;
  int32_t pad_ = 0;
  int64_t window_tokens_ = 0, documents_ = 0, predicted_tokens_ = 0, text_bytes_ = 0;
  std::vector<Window> windows_;
  std::vector<int64_t> row_begin_;  // first window of each row, and windows()
};

}  // namespace k3::train
