// How well a model predicts a text: what `k3 perplexity` and `k3 bench --quality` share.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "k3/format/tokenizer.h"
#include "k3/model/model.h"

namespace k3::cli {

struct PerplexityText {
  std::vector<int32_t> ids;  // without [BOS]: every window gets its own
  int64_t text_bytes = 0;
  int32_t bos = 0;
};

struct PerplexityResult {
  int64_t tokens = 0, text_bytes = 0, windows = 0;
  double nats_per_token = 0, perplexity = 0, bits_per_byte = 0;
};

// invalid_argument for an empty text, unsupported for a tokenizer without [BOS].
Result<PerplexityText> perplexity_text(const Tokenizer& tokenizer, std::string_view text);
Result<PerplexityText> perplexity_ids(const Tokenizer& tokenizer, std::vector<int32_t> ids);

// Windows of `window` tokens, each begun anew with [BOS]; every token of the text is predicted once.
Result<PerplexityResult> measure_perplexity(const Model& model, ThreadPool& pool, RunnerOptions options,
                                            const PerplexityText& text, int64_t window,
                                            const std::function<void(int64_t done_tokens)>& progress);

}  // namespace k3::cli
