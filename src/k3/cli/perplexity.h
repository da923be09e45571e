// How well a model predicts a text: what `k3 perplexity` and `k3 bench --quality` share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/format/tokenizer.h"
#include "k3/model/model.h"

namespace k3::cli {

// Windows of a text, each a sequence of its own: token i goes in and token targets[i] is asked for (kNotAsked: none is).
struct PerplexityText {
  static constexpr int32_t kNotAsked = -1;
  std::vector<int32_t> inputs, targets;
  std::vector<int64_t> window_ends;
  int64_t asked = 0, documents = 0, text_bytes = 0;
};

struct PerplexityResult {
  int64_t tokens = 0, text_bytes = 0, windows = 0, documents = 0;
  double nats_per_token = 0, perplexity = 0, bits_per_byte = 0;
};

// One text in windows of `window` tokens, each begun anew with [BOS]; every token of the text is asked for once.
// invalid_argument for an empty text, unsupported for a tokenizer without [BOS].
Result<PerplexityText> perplexity_text(const Tokenizer& tokenizer, std::string_view text, int64_t window);
Result<PerplexityText> perplexity_ids(const Tokenizer& tokenizer, std::vector<int32_t> ids, int64_t window);

// The documents of a file that `k3 prepare` reads, each by itself, as the trainer evaluates (docs/training.md, "Bits per byte"):
// [BOS] ... [EOS] in windows of `window` inputs, the last of which asks for the document's next token; of a conversation what the
// assistant says is asked for. `folder` has the tokenizer and, for conversations, the chat format.
Result<PerplexityText> perplexity_documents(const Tokenizer& tokenizer, const std::string& folder, const std::string& file,
                                            int64_t window);

Result<PerplexityResult> measure_perplexity(const Model& model, ThreadPool& pool, RunnerOptions options,
                                            const PerplexityText& text, int64_t window,
                                            const std::function<void(int64_t done_tokens)>& progress);

}  // namespace k3::cli
