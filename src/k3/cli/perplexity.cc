#include "k3/cli/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "k3/format/chat/chat.h"
#include "k3/train/data/prepare/document_ids.h"
#include "k3/train/data/prepare/document_reader.h"

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

Result<int32_t> special_id(const Tokenizer& tokenizer, std::string_view name) {
  if (const auto id = tokenizer.special(name)) return *id;
  return fail(Code::unsupported, "this tokenizer has no {} token to put around a text", name);
}

Result<PerplexityText> windows_of(const Tokenizer& tokenizer, std::vector<int32_t> ids, int64_t text_bytes, int64_t window) {
  if (ids.empty()) return fail(Code::invalid_argument, "the text is empty");
  K3_TRY_ASSIGN(const int32_t bos, special_id(tokenizer, "[BOS]"));
  PerplexityText out;
  const auto count = static_cast<int64_t>(ids.size());
  out.inputs.reserve(ids.size());
  for (int64_t i = 0; i < count; ++i) out.inputs.push_back(i % window == 0 ? bos : ids[static_cast<size_t>(i - 1)]);
  for (int64_t end = window; end < count; end += window) out.window_ends.push_back(end);
  out.window_ends.push_back(count);
  out.targets = std::move(ids);
  out.asked = count;
  out.documents = 1;
  out.text_bytes = text_bytes;
  return out;
}

void add_document(PerplexityText& out, const train::DocumentIds& document, int64_t window) {
  const std::vector<int32_t>& ids = document.ids;
  const auto begin = static_cast<int64_t>(out.inputs.size());
  out.inputs.insert(out.inputs.end(), ids.begin(), ids.end() - 1);
  for (size_t i = 1; i < ids.size(); ++i) {
    const bool asked = document.learned.empty() || document.learned[i] != 0;
    out.targets.push_back(asked ? ids[i] : PerplexityText::kNotAsked);
    out.asked += asked ? 1 : 0;
  }
  const auto end = static_cast<int64_t>(out.inputs.size());
  for (int64_t at = begin + window; at < end; at += window) out.window_ends.push_back(at);
  out.window_ends.push_back(end);
  ++out.documents;
  out.text_bytes += document.text_bytes;
}

// The nats of one window, fed in pieces of at most the runner's chunk.
Result<double> window_nats(Runner& runner, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                           const std::function<void(int64_t)>& progress) {
  const auto chunk = static_cast<size_t>(runner.options().chunk_tokens);  // a memory plan may have made it shorter
  double nats = 0;
  runner.reset(0);
  for (size_t at = 0; at < inputs.size(); at += chunk) {
    const StepInput input{0, inputs.subspan(at, std::min(chunk, inputs.size() - at)), StepInput::Logits::all};
    K3_TRY_ASSIGN(const Tensor logits, runner.step(std::span(&input, 1)));
    for (size_t i = 0; i < input.tokens.size(); ++i) {
      const int32_t target = targets[at + i];
      if (target != PerplexityText::kNotAsked) nats += negative_log_likelihood(row_of(logits, static_cast<int64_t>(i)), target);
    }
    progress(static_cast<int64_t>(at + input.tokens.size()));
  }
  return nats;
}

Status check_targets(const Model& model, std::span<const int32_t> targets) {
  std::vector<int32_t> asked(targets.begin(), targets.end());
  std::replace(asked.begin(), asked.end(), PerplexityText::kNotAsked, 0);
  return model.check_ids(asked);
}

}  // namespace

Result<PerplexityText> perplexity_text(const Tokenizer& tokenizer, std::string_view text, int64_t window) {
  K3_TRY_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(text));
  return windows_of(tokenizer, std::move(ids), static_cast<int64_t>(text.size()), window);
}

Result<PerplexityText> perplexity_ids(const Tokenizer& tokenizer, std::vector<int32_t> ids, int64_t window) {
  const auto bos = tokenizer.special("[BOS]");
  if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());
  K3_TRY_ASSIGN(const std::string text, tokenizer.decode(ids, /*skip_specials=*/true));
  return windows_of(tokenizer, std::move(ids), static_cast<int64_t>(text.size()), window);
}

Result<PerplexityText> perplexity_documents(const Tokenizer& tokenizer, const std::string& folder, const std::string& file,
                                            int64_t window) {
  K3_TRY_ASSIGN(train::DocumentReader reader, train::DocumentReader::open(file));
  K3_TRY_ASSIGN(const int32_t bos, special_id(tokenizer, "[BOS]"));
  K3_TRY_ASSIGN(const int32_t eos, special_id(tokenizer, "[EOS]"));
  std::optional<ChatFormat> format;
  if (reader.kind() == train::SourceKind::chat) {
    K3_TRY_ASSIGN(format, ChatFormat::load(folder, tokenizer));
  }
  const auto ids_of = [&](const std::string& text) -> Result<train::DocumentIds> {
    if (!format) return train::text_ids(tokenizer, text, bos, eos);
    K3_TRY_ASSIGN(const ChatRequest conversation, train::parse_conversation(text));
    return train::chat_ids(tokenizer, *format, conversation);
  };
  PerplexityText out;
  for (train::Document document;;) {
    K3_TRY_ASSIGN(const bool more, reader.next(document));
    if (!more) break;
    if (document.text.empty()) continue;
    Result<train::DocumentIds> ids = ids_of(document.text);
    if (!ids.ok()) return std::move(ids).with_context(fmt::format("{}: line {}", file, document.line)).take_error();
    add_document(out, *ids, window);
  }
  if (out.asked == 0) return fail(Code::invalid_argument, "{} holds no document", file);
  return out;
}

Result<PerplexityResult> measure_perplexity(const Model& model, ThreadPool& pool, RunnerOptions options,
                                            const PerplexityText& text, int64_t window_tokens,
                                            const std::function<void(int64_t)>& progress) {
  K3_TRY(check_targets(model, text.targets));
  options.ctx_tokens = window_tokens + 1;
  options.sequences = 1;
  K3_TRY_ASSIGN(Runner runner, Runner::create(model, pool, options));
  double total = 0;
  int64_t begin = 0;
  for (const int64_t end : text.window_ends) {
    const auto at = static_cast<size_t>(begin), size = static_cast<size_t>(end - begin);
    const auto in_window = [&](int64_t done) {
      if (progress) progress(begin + done);
    };
    K3_TRY_ASSIGN(const double nats, window_nats(runner, std::span(text.inputs).subspan(at, size), std::span(text.targets).subspan(at, size), in_window));
    total += nats;
    begin = end;
  }
  if (!std::isfinite(total)) return fail(Code::internal, "the model gave logits that are not finite");
  PerplexityResult result;
  result.tokens = text.asked;
  result.text_bytes = text.text_bytes;
  result.windows = static_cast<int64_t>(text.window_ends.size());
  result.documents = text.documents;
  result.nats_per_token = total / static_cast<double>(text.asked);
  result.perplexity = std::exp(result.nats_per_token);
  result.bits_per_byte = total / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(text.text_bytes, 1));
  return result;
}

}  // namespace k3::cli
