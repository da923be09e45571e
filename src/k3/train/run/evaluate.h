// Purpose:  what a model in training is worth: held-out loss in bits per byte, and text it writes.
// Shapes:   none.
// Units:    nats, bits, UTF-8 bytes.
// Memory:   that of one forward.
// Threads:  one.
// Errors:   those of the data and of the tokenizer.
// Source:   training.md; bits per byte = nats summed / ln 2 / UTF-8 bytes of the texts (data/eval_windows.h says which windows).
#pragma once

#include <memory>

#include "k3/format/chat/chat.h"
#include "k3/format/tokenizer.h"
#include "k3/train/data/eval_windows.h"
#include "k3/train/log/run_log.h"
#include "k3/train/run/gradient.h"

namespace k3::train {

// Nats and bytes of all windows, `rows` at a time.
EvaluationRecord evaluate(Gradient& model, const EvalWindows& windows, int64_t rows);

// Continues a text, or answers a message, choosing the likeliest token each time.
class Sampler {
 public:
  static Result<Sampler> create(const std::string& tokenizer_folder);
  // `kind` as in SampleRecord. Whether the prompt can be written for a model of so many ids.
  Status check(const std::string& kind, const std::string& prompt, int64_t vocab) const;
  Result<std::string> write(Gradient& model, const std::string& kind, const std::string& prompt, int64_t tokens) const;

 private:
  Sampler(Tokenizer tokenizer) : tokenizer_(std::make_unique<Tokenizer>(std::move(tokenizer))) {}
  Result<std::vector<int32_t>> start(const std::string& kind, const std::string& prompt) const;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatFormat> chat_;  // where the folder has one
};

}  // namespace k3::train
