// logits, perplexity.
#include <algorithm>
#include <cmath>

#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/format/npy.h"

namespace k3::cli {
namespace {

// Of one forward: bounds its logits and scratch, which grow with the chunk, whatever --chunk says.
constexpr int64_t kMostChunk = 4096;

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

}  // namespace

Status logits_command(const LogitsOptions& options) {
  K3_TRY_ASSIGN(const std::vector<int32_t> ids, parse_ids(options.ids));
  if (ids.empty()) return fail(Code::invalid_argument, "--ids holds no token id");
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute));
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(options.compute, loaded.model->config()));
  run.ctx_tokens = std::max<int64_t>(run.ctx_tokens, static_cast<int64_t>(ids.size()));
  const int64_t chunk = std::min(kMostChunk, options.split > 0 ? options.split : run.chunk_tokens);
  K3_TRY(loaded.model->check_ids(ids));
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));
  const auto count = static_cast<int64_t>(ids.size());
  K3_TRY_ASSIGN(NpyWriter writer, NpyWriter::create(options.out, count, loaded.model->config().vocab_size));
  Progress bar("logits", count, "tokens");
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(count, begin + chunk);
    const StepInput input{0, std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                          StepInput::Logits::all};
    K3_TRY_ASSIGN(const Tensor logits, runner.step(std::span(&input, 1)));
    K3_TRY(writer.append(std::span(logits.f32(), static_cast<size_t>(logits.size()))));
    bar.update(end);
  }
  bar.finish();
  K3_TRY(writer.finish());
  if (options.json) {
    JsonWriter w;
    w.begin_object()
        .field("out", options.out)
        .field("tokens", count)
        .field("vocab", loaded.model->config().vocab_size)
        .end_object();
    print_out(w.text() + "\n");
  } else {
    note(fmt::format("wrote {}: float32 [{}, {}]", options.out, count, loaded.model->config().vocab_size));
  }
  return {};
}

Status perplexity_command(const PerplexityOptions& options) {
  if (options.compute.ctx_tokens > 0 && options.window + 1 > options.compute.ctx_tokens) {
    return fail(Code::invalid_argument, "a window of {} tokens and [BOS] does not fit --ctx {}", options.window,
                options.compute.ctx_tokens);
  }
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  std::vector<int32_t> ids;
  int64_t text_bytes = 0;
  const auto bos = tokenizer.special("[BOS]");
  if (options.ids) {
    K3_TRY_ASSIGN(ids, parse_ids(*options.ids));
    if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());  // every window gets its own
    K3_TRY_ASSIGN(const std::string text, tokenizer.decode(ids, /*skip_specials=*/true));
    text_bytes = static_cast<int64_t>(text.size());
  } else {
    K3_TRY_ASSIGN(const std::string text,
                  read_input({}, options.file, "text", "give a file with -f, ids with --ids, or text on stdin"));
    text_bytes = static_cast<int64_t>(text.size());
    K3_TRY_ASSIGN(ids, tokenizer.encode(text));
  }
  if (ids.empty()) return fail(Code::invalid_argument, "the text is empty");
  if (!bos) return fail(Code::unsupported, "this tokenizer has no [BOS] token to start a window with");

  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute));
  K3_TRY(loaded.model->check_ids(ids));
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(options.compute, loaded.model->config()));
  run.ctx_tokens = options.window + 1;
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));
  const auto count = static_cast<int64_t>(ids.size());
  Progress bar("perplexity", count, "tokens");
  double total = 0;
  int64_t windows = 0;
  std::vector<int32_t> window;
  for (int64_t begin = 0; begin < count; begin += options.window, ++windows) {
    const int64_t end = std::min(count, begin + options.window);
    // [BOS] and all but the last token go in; each position is asked for the next one.
    window.assign(1, *bos);
    window.insert(window.end(), ids.begin() + begin, ids.begin() + end - 1);
    runner.reset(0);
    const auto fed = static_cast<int64_t>(window.size());
    for (int64_t at = 0; at < fed; at += run.chunk_tokens) {
      const int64_t stop = std::min(fed, at + run.chunk_tokens);
      const StepInput input{0, std::span(window).subspan(static_cast<size_t>(at), static_cast<size_t>(stop - at)),
                            StepInput::Logits::all};
      K3_TRY_ASSIGN(const Tensor logits, runner.step(std::span(&input, 1)));
      for (int64_t i = 0; i < stop - at; ++i) {
        total += negative_log_likelihood(row_of(logits, i), ids[static_cast<size_t>(begin + at + i)]);
      }
      bar.update(begin + stop);
    }
  }
  bar.finish();
  if (!std::isfinite(total)) return fail(Code::internal, "the model gave logits that are not finite");
  const double nats = total / static_cast<double>(count);
  const double bits_per_byte = total / std::log(2.0) / static_cast<double>(std::max<int64_t>(text_bytes, 1));
  if (options.json) {
    JsonWriter w;
    w.begin_object()
        .field("tokens", count)
        .field("bytes", text_bytes)
        .field("windows", windows)
        .field("window", options.window);
    w.field("nats_per_token", nats).field("perplexity", std::exp(nats)).field("bits_per_byte", bits_per_byte).end_object();
    print_out(w.text() + "\n");
    return {};
  }
  print_out(fmt::format("{} tokens, {} bytes, {} windows of {}\n", count, text_bytes, windows, options.window));
  print_out(fmt::format("nats per token  {:.5f}\nperplexity      {:.3f}\nbits per byte   {:.5f}\n", nats, std::exp(nats),
                        bits_per_byte));
  return {};
}

}  // namespace k3::cli
