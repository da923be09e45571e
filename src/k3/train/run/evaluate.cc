#include "k3/train/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace k3::train {

EvaluationRecord evaluate(Gradient& model, const EvalWindows& windows, int64_t rows) {
  EvaluationRecord out;
  double nats = 0;
  PackedBatch batch;
  for (int64_t first = 0; first < windows.rows(); first += rows) {
    windows.fill(first, rows, batch);
    const ops::CrossEntropy loss = model.loss({batch.tokens, batch.targets, batch.offsets});
    nats += loss.nats;
    out.tokens += loss.tokens;
  }
  out.bytes = windows.text_bytes();
  if (out.tokens > 0) out.nats_per_token = nats / static_cast<double>(out.tokens);
  if (out.bytes > 0) out.bits_per_byte = nats / std::numbers::ln2 / static_cast<double>(out.bytes);
  return out;
}

Result<Sampler> Sampler::create(const std::string& tokenizer_folder) {
  K3_TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::load(tokenizer_folder));
  Sampler out(std::move(tokenizer));
  if (Result<ChatFormat> format = ChatFormat::load(tokenizer_folder, *out.tokenizer_); format.ok()) {
    out.chat_ = std::make_unique<ChatFormat>(*std::move(format));
  }
  return out;
}

Result<std::vector<int32_t>> Sampler::start(const std::string& kind, const std::string& prompt) const {
  if (kind == "chat") {
    if (chat_ == nullptr) return fail(Code::invalid_argument, "sample.chat: the tokenizer's folder has no chat format");
    ChatRequest request;
    request.messages.push_back(text_message(Role::user, prompt));
    K3_TRY_ASSIGN(const Prompt rendered, chat_->render(request));
    return rendered.encode(*tokenizer_);
  }
  std::vector<int32_t> ids;
  if (const auto bos = tokenizer_->special("[BOS]")) ids.push_back(*bos);
  K3_TRY(tokenizer_->encode(prompt, ids));
  return ids;
}

Status Sampler::check(const std::string& kind, const std::string& prompt, int64_t vocab) const {
  K3_TRY_ASSIGN(const std::vector<int32_t> ids, start(kind, prompt));
  const auto beyond = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= vocab; });
  if (beyond == ids.end()) return {};
  return fail(Code::invalid_argument, "the tokenizer gives id {}, but the model's vocabulary has {}; set vocab_size", *beyond, vocab);
}

Result<std::string> Sampler::write(Gradient& model, const std::string& kind, const std::string& prompt, int64_t tokens) const {
  K3_TRY_ASSIGN(std::vector<int32_t> ids, start(kind, prompt));
  StreamDecoder decoder(*tokenizer_);
  std::string text;
  for (int64_t n = 0; n < tokens; ++n) {
    const int32_t best = model.likeliest(ids);
    if (tokenizer_->is_special(best)) break;
    ids.push_back(best);
    text += decoder.push(best);
  }
  return text + decoder.finish();
}

}  // namespace k3::train
