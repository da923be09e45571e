// logits, perplexity.
#include <algorithm>

#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/cli/perplexity.h"
#include "k3/format/npy.h"

namespace k3::cli {
namespace {

// Of one forward: bounds its logits and scratch, which grow with the chunk, whatever --chunk says.
constexpr int64_t kMostChunk = 4096;

Result<PerplexityText> perplexity_input(const PerplexityOptions& options) {
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  if (options.documents) return perplexity_documents(tokenizer, model_folder(options.model), *options.documents, options.window);
  if (options.ids) {
    K3_TRY_ASSIGN(std::vector<int32_t> ids, parse_ids(*options.ids));
    return perplexity_ids(tokenizer, std::move(ids), options.window);
  }
  K3_TRY_ASSIGN(const std::string text,
                read_input({}, options.file, "text", "give a file with -f or --documents, ids with --ids, or text on stdin"));
  return perplexity_text(tokenizer, text, options.window);
}

void print_perplexity(const PerplexityOptions& options, const PerplexityResult& r) {
  if (options.json) {
    JsonWriter w;
    w.begin_object().field("tokens", r.tokens).field("bytes", r.text_bytes);
    if (options.documents) w.field("documents", r.documents);
    w.field("windows", r.windows).field("window", options.window);
    w.field("nats_per_token", r.nats_per_token)
        .field("perplexity", r.perplexity)
        .field("bits_per_byte", r.bits_per_byte)
        .end_object();
    print_out(w.text() + "\n");
    return;
  }
  const std::string documents = options.documents ? fmt::format("{} documents, ", r.documents) : "";
  print_out(fmt::format("{}{} tokens, {} bytes, {} windows of {}\n", documents, r.tokens, r.text_bytes, r.windows, options.window));
  print_out(fmt::format("nats per token  {:.5f}\nperplexity      {:.3f}\nbits per byte   {:.5f}\n", r.nats_per_token,
                        r.perplexity, r.bits_per_byte));
}

}  // namespace

Status logits_command(const LogitsOptions& options) {
  K3_TRY_ASSIGN(const std::vector<int32_t> ids, parse_ids(options.ids));
  if (ids.empty()) return fail(Code::invalid_argument, "--ids holds no token id");
  const auto count = static_cast<int64_t>(ids.size());
  // The context need not be longer than the ids unless that is asked for.
  RunNeeds needs;
  needs.ctx_tokens = std::max(options.compute.ctx_tokens, count);
  needs.chunk_tokens = std::min({kMostChunk, options.split > 0 ? options.split : options.compute.chunk_tokens, count});
  needs.logit_rows = 0;
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute, needs));
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(options.compute, loaded.model->config()));
  run.ctx_tokens = needs.ctx_tokens;
  run.chunk_tokens = needs.chunk_tokens;
  K3_TRY(loaded.model->check_ids(ids));
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));
  const int64_t chunk = runner.options().chunk_tokens;  // a memory plan may have made it shorter
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
  K3_TRY_ASSIGN(const PerplexityText text, perplexity_input(options));
  RunNeeds needs;
  needs.ctx_tokens = options.window + 1;
  needs.logit_rows = 0;
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute, needs));
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(options.compute, loaded.model->config()));
  if (!options.state_dtype.empty()) run.dtypes.state = cache_dtype(options.state_dtype);
  if (!options.latent_dtype.empty()) run.dtypes.latent = cache_dtype(options.latent_dtype);
  Progress bar("perplexity", static_cast<int64_t>(text.inputs.size()), "tokens");
  K3_TRY_ASSIGN(const PerplexityResult r, measure_perplexity(*loaded.model, *loaded.pool, run, text, options.window,
                                                             [&](int64_t done) { bar.update(done); }));
  bar.finish();
  print_perplexity(options, r);
  return {};
}

}  // namespace k3::cli
