#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/cli/chat_setup.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/engine/chat_session.h"

namespace k3::cli {
namespace {

std::atomic<bool> g_interrupted{false};

void on_interrupt(int) { g_interrupted = true; }

std::string speeds(int64_t prompt_tokens, int64_t reasoning_tokens, const GenerateResult& g) {
  std::string text = fmt::format("prompt {} tokens, {:.1f} tokens/s", prompt_tokens,
                                 g.prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / g.prefill_seconds : 0.0);
  text += fmt::format("; answer {} tokens", g.ids.size());
  if (reasoning_tokens > 0) text += fmt::format(" ({} of them thinking)", reasoning_tokens);
  if (g.decode_tokens_per_second() > 0) text += fmt::format(", {:.1f} tokens/s", g.decode_tokens_per_second());
  return text;
}

struct Answer {
  std::string text, reasoning, finish;
  GenerateResult generated;
  int64_t prompt_tokens = 0, reasoning_tokens = 0;
};

void print_json(const Answer& answer) {
  JsonWriter w;
  w.begin_object().field("text", answer.text);
  if (!answer.reasoning.empty()) w.field("reasoning", answer.reasoning);
  w.field("finish_reason", answer.finish).field("prompt_tokens", answer.prompt_tokens);
  w.field("completion_tokens", static_cast<int64_t>(answer.generated.ids.size()));
  w.field("prefill_seconds", answer.generated.prefill_seconds).field("decode_seconds", answer.generated.decode_seconds);
  w.key("ids").begin_array();
  for (const int32_t id : answer.generated.ids) w.value(id);
  w.end_array().end_object();
  print_out(w.text() + "\n");
}

void stream(const RunOptions& options, const std::string& text) {
  if (options.json || text.empty()) return;
  print_out(text);
  if (!flush_out()) g_interrupted = true;  // nobody can read the rest
}

Result<Answer> answer_chat(const RunOptions& options, const ChatFormat& format, const Tokenizer& tokenizer, Runner& runner,
                           const GenerateOptions& generation, const std::string& prompt) {
  ChatSession session(runner, format, tokenizer);
  if (options.system) session.set_system(*options.system);
  session.set_thinking(thinking_request(options.thinking));
  // Thinking goes where notes go: stdout holds the answer alone.
  const bool show_thinking = ::isatty(STDERR_FILENO) == 1 && !options.json;
  bool thought = false;
  K3_TRY_ASSIGN(const ChatTurn turn, session.send(prompt, generation, options.sampling.stop, [&](const ChatEvent& event) {
    if (event.kind == ChatEvent::Kind::content) {
      if (std::exchange(thought, false)) std::fputs("\n", stderr);
      stream(options, event.text);
    } else if (event.kind == ChatEvent::Kind::reasoning && show_thinking) {
      thought = true;
      std::fprintf(stderr, "%s", event.text.c_str());
    }
  }));
  Answer answer;
  answer.text = turn.message.content.value_or("");
  answer.reasoning = turn.message.reasoning;
  answer.generated = turn.generated;
  answer.prompt_tokens = turn.prompt_tokens;
  answer.reasoning_tokens = turn.reasoning_tokens;
  answer.finish = turn.ended                                       ? "stop"
                  : turn.stop_string                               ? "stop"
                  : turn.generated.reason == StopReason::cancelled ? "cancelled"
                                                                   : "length";
  return answer;
}

Result<Answer> answer_raw(const RunOptions& options, const Tokenizer& tokenizer, Runner& runner,
                          const GenerateOptions& generation, const std::string& prompt) {
  std::vector<int32_t> ids;
  if (const auto bos = tokenizer.special("[BOS]")) ids.push_back(*bos);
  K3_TRY(tokenizer.encode(prompt, ids));
  if (ids.empty()) return fail(Code::invalid_argument, "the prompt is empty and this tokenizer has no [BOS] to start from");
  StreamDecoder decoder(tokenizer);
  StopMatcher matcher(options.sampling.stop);
  Answer answer;
  const auto show = [&](const std::string& text) {
    answer.text += text;
    stream(options, text);
  };
  K3_TRY_ASSIGN(answer.generated, generate(runner, 0, {}, ids, generation, [&](int32_t id) {
                  show(matcher.push(decoder.push(id)));
                  return !matcher.matched();
                }));
  show(matcher.push(decoder.finish()));
  show(matcher.finish());
  answer.prompt_tokens = answer.generated.prompt_tokens_fed;
  const StopReason reason = answer.generated.reason;
  answer.finish = reason == StopReason::cancelled                                 ? "cancelled"
                  : reason == StopReason::length || reason == StopReason::context ? "length"
                                                                                  : "stop";
  return answer;
}

}  // namespace

Status run_command(const RunOptions& options) {
  for (const std::string& stop : options.sampling.stop) {
    if (stop.empty()) return fail(Code::invalid_argument, "--stop needs a text");
  }
  K3_TRY_ASSIGN(const std::string prompt,
                read_input(options.prompt, options.file, "prompt", "give it with -p TEXT, with -f FILE, or on stdin"));
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  std::optional<ChatFormat> format;
  if (!options.raw) {
    K3_TRY_ASSIGN(format, ChatFormat::load(model_folder(options.model), tokenizer));
  }
  K3_TRY_ASSIGN(const GenerationConfig defaults, load_generation_config(model_folder(options.model)));
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute));
  const Config& config = loaded.model->config();
  K3_TRY(check_sampling_defaults(model_folder(options.model), defaults, config.vocab_size));
  K3_TRY_ASSIGN(const RunnerOptions run, runner_options(options.compute, config));
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));

  GenerateOptions generation;
  generation.sampling = sampling_params(options.sampling, defaults);
  generation.max_tokens = options.sampling.max_tokens;
  generation.stop_ids = stop_ids(config, defaults, tokenizer, format ? format->end_token() : "[EOS]");
  generation.stop = &g_interrupted;
  std::optional<Progress> bar;
  generation.on_prefill = [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace("reading", total, "tokens");
    bar->update(done);
    if (done == total) bar->finish();
  };
  const auto before = std::signal(SIGINT, on_interrupt);
  auto result = options.raw ? answer_raw(options, tokenizer, runner, generation, prompt)
                            : answer_chat(options, *format, tokenizer, runner, generation, prompt);
  std::signal(SIGINT, before);
  if (!result.ok()) return std::move(result).take_error();
  if (options.json) {
    print_json(*result);
  } else {
    print_out("\n");
    flush_out();
    note(fmt::format("k3: loaded in {}; {}", format_seconds(loaded.load_seconds),
                     speeds(result->prompt_tokens, result->reasoning_tokens, result->generated)));
  }
  if (result->generated.reason == StopReason::context) {
    note(fmt::format("k3: the answer was cut: the context of {} tokens is full (see --ctx)", run.ctx_tokens));
  } else if (result->generated.reason == StopReason::length && !options.json) {
    note(fmt::format("k3: the answer was cut after {} tokens (see --max-tokens)", result->generated.ids.size()));
  }
  if (result->generated.reason == StopReason::cancelled) return fail(Code::cancelled, "interrupted");
  return {};
}

}  // namespace k3::cli
