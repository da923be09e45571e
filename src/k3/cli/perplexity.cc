#include "k3/cli/perplexity.h"

#include <algorithm>
#include <cmath>

namespace k3::cli {
namespace {

// -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value) - top);
  return top + std::log(sum) - logits[static_cast<size_t>(target)];
}

std::span<const float> row_of(const Tensor& logits, int64_t i) {
  return {logits.row(i), static_cast<size_t>(logits.dim(1))};
}

Result<PerplexityText> checked(const Tokenizer& tokenizer, std::vector<int32_t> ids, int64_t text_bytes) {
  if (ids.empty()) return fail(Code::invalid_argument, "the text is empty");
  const auto bos = tokenizer.special("[BOS]");
  if (!bos) return fail(Code::unsupported, "this tokenizer has no [BOS] token to start a window with");
  return PerplexityText{std::move(ids), text_bytes, *bos};
}

}  // namespace

Result<PerplexityText> perplexity_text(const Tokenizer& tokenizer, std::string_view text) {
  K3_TRY_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(text));
  return checked(tokenizer, std::move(ids), static_cast<int64_t>(text.size()));
}

Result<PerplexityText> perplexity_ids(const Tokenizer& tokenizer, std::vector<int32_t> ids) {
  const auto bos = tokenizer.special("[BOS]");
  if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());
  K3_TRY_ASSIGN(const std::string text, tokenizer.decode(ids, /*skip_specials=*/true));
  return checked(tokenizer, std::move(ids), static_cast<int64_t>(text.size()));
}

Result<PerplexityResult> measure_perplexity(const Model& model, ThreadPool& pool, RunnerOptions options,
                                            const PerplexityText& text, int64_t window_tokens,
                                            const std::function<void(int64_t)>& progress) {
  K3_TRY(model.check_ids(text.ids));
  options.ctx_tokens = window_tokens + 1;
  options.sequences = 1;
  K3_TRY_ASSIGN(Runner runner, Runner::create(model, pool, options));
  const auto count = static_cast<int64_t>(text.ids.size());
  const int64_t chunk = runner.options().chunk_tokens;  // a memory plan may have made it shorter
  double total = 0;
  PerplexityResult result;
  std::vector<int32_t> window;
  for (int64_t begin = 0; begin < count; begin += window_tokens, ++result.windows) {
    const int64_t end = std::min(count, begin + window_tokens);
    // [BOS] and all but the last token go in; each position is asked for the next one.
    window.assign(1, text.bos);
    window.insert(window.end(), text.ids.begin() + begin, text.ids.begin() + end - 1);
    runner.reset(0);
    const auto fed = static_cast<int64_t>(window.size());
    for (int64_t at = 0; at < fed; at += chunk) {
      const int64_t stop = std::min(fed, at + chunk);
      const StepInput input{0, std::span(window).subspan(static_cast<size_t>(at), static_cast<size_t>(stop - at)),
                            StepInput::Logits::all};
      K3_TRY_ASSIGN(const Tensor logits, runner.step(std::span(&input, 1)));
      for (int64_t i = 0; i < stop - at; ++i) {
        total += negative_log_likelihood(row_of(logits, i), text.ids[static_cast<size_t>(begin + at + i)]);
      }
      if (progress) progress(begin + stop);
    }
  }
  if (!std::isfinite(total)) return fail(Code::internal, "the model gave logits that are not finite");
  result.tokens = count;
  result.text_bytes = text.text_bytes;
  result.nats_per_token = total / static_cast<double>(count);
  result.perplexity = std::exp(result.nats_per_token);
  result.bits_per_byte = total / std::log(2.0) / static_cast<double>(std::max<int64_t>(text.text_bytes, 1));
  return result;
}

}  // namespace k3::cli
