// k3 serve: load, say what fits, listen, drain.
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/memory.h"
#include "k3/base/units.h"
#include "k3/cli/common.h"
#include "k3/cli/serve/serve_options.h"
#include "k3/cli/version.h"
#include "k3/engine/engine.h"
#include "k3/engine/engine_setup.h"
#include "k3/engine/executor.h"
#include "k3/format/grammar/constraint.h"
#include "k3/model/summary.h"
#include "k3/server/api/service.h"

namespace k3::cli {
namespace {

std::atomic<int> g_signals{0};
void on_signal(int) { ++g_signals; }

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

Result<int64_t> bytes_or(const std::string& text, int64_t otherwise) {
  if (text.empty()) return otherwise;
  return parse_bytes(text);
}

cache::CheckpointPolicy checkpoint_policy(const std::vector<std::string>& names) {
  cache::CheckpointPolicy policy{.prompt_end = false, .turn_ends = false, .every_tokens = 0, .second_sighting = false};
  constexpr std::string_view kEvery = "every:";
  for (const std::string& name : names) {
    if (name == "end") policy.prompt_end = true;
    if (name == "turns") policy.turn_ends = true;
    if (name == "second") policy.second_sighting = true;
    if (name.starts_with(kEvery)) policy.every_tokens = std::stoll(name.substr(kEvery.size()));
  }
  return policy;
}

Result<EngineOptions> engine_options(const ServeOptions& o, const RunnerOptions& run) {
  EngineOptions e;
  e.policy = run.policy;
  e.isa = run.isa;
  e.deterministic = run.deterministic;
  e.int8_activations = run.int8_activations;
  e.ctx_tokens = run.ctx_tokens;
  e.step_tokens = o.compute.device == "cpu" ? o.compute.chunk_tokens : kGpuStepTokens;
  e.schedule = o.schedule == "slo" ? SchedulePolicy::slo : SchedulePolicy::fcfs;
  e.max_running = o.max_running;
  e.max_queued = o.max_queued;
  e.deadline_seconds = o.deadline_seconds;
  e.keep_idle = !o.no_keep_idle;
  e.slot_save_path = o.slot_save_path;
  const DType own = e.policy == ops::Policy::exact ? DType::f32 : DType::bf16;  // what k3 run keeps
  e.dtypes = {cache_dtype(o.state_dtype), o.conv_dtype.empty() ? own : cache_dtype(o.conv_dtype),
              o.latent_dtype.empty() ? own : cache_dtype(o.latent_dtype)};
  e.block_tokens = o.block_tokens;
  e.checkpoints = checkpoint_policy(o.checkpoints);
  e.prefix_cache = !o.no_prefix_cache;
  K3_TRY_ASSIGN(e.pool_bytes, bytes_or(o.pool_bytes, 0));
  K3_TRY_ASSIGN(e.host_bytes, bytes_or(o.host_bytes, 0));
  K3_TRY_ASSIGN(e.disk_bytes, bytes_or(o.disk_bytes, o.disk_folder.empty() ? 0 : int64_t{16} << 30));
  e.disk_folder = o.disk_folder;
  e.lose_device_at = o.lose_device_at;
  return e;
}

// What a memory plan has to know before the model is loaded.
Result<RunNeeds> run_needs(const ServeOptions& o) {
  K3_TRY_ASSIGN(const Config config, load_config(o.model));
  K3_TRY_ASSIGN(const RunnerOptions run, runner_options(o.compute, config));
  K3_TRY_ASSIGN(const EngineOptions e, engine_options(o, run));
  RunNeeds needs;
  needs.sequences = o.max_running;
  needs.logit_rows = o.max_running;
  if (o.compute.device == "cpu") {
    if (e.pool_bytes > 0) needs.cache_bytes = e.host_bytes > INT64_MAX - e.pool_bytes ? INT64_MAX : e.pool_bytes + e.host_bytes;
    return needs;
  }
  needs.chunk_tokens = e.step_tokens;
  needs.prompt_keys = e.ctx_tokens + kFurtherKeys;
  K3_TRY_ASSIGN(needs.pool, gpu_pool_request(config, e));
  return needs;
}

// One key a line; blank lines and lines that begin with # are left out.
Result<std::vector<std::string>> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (path.empty()) return keys;
  K3_TRY_ASSIGN(const std::string text, read_file(path, 1 << 20));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
  }
  if (keys.empty()) return fail(Code::invalid_argument, "{}: holds no key", path);
  return keys;
}

int64_t time_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_mtime) : 0;
}

server::ModelCard model_card(const ServeOptions& o, const Model& model, int64_t ctx_tokens) {
  const Config& config = model.config();
  const ModelSummary summary = summarise(config);
  server::ModelCard card;
  const std::string folder = std::filesystem::path(model.folder()).lexically_normal().filename().string();
  card.id = !o.names.empty() ? o.names.front() : folder.empty() || folder == "." ? "k3" : folder;
  for (size_t i = 1; i < o.names.size(); ++i) card.aliases.push_back(o.names[i]);
  card.created = time_of(join_path(model.folder(), "config.json"));
  card.ctx_tokens = ctx_tokens;
  card.parameters = summary.total.params;
  card.active_parameters = summary.active_params;
  card.layers = summary.kda_layers + summary.mla_layers;
  card.kda_layers = summary.kda_layers;
  card.mla_layers = summary.mla_layers;
  card.vocab = config.vocab_size;
  card.size_bytes = summary.total.size_bytes;
  card.weight_format = config.experts_mxfp4 ? "mxfp4" : config.trunk_int8 ? "int8" : "bf16";
  // "k3 0.1.0 (compiler, instruction set, threads)"
  const std::string text = version_text();
  const size_t begin = std::min(text.find(' ') + 1, text.size()), end = std::min(text.find(' ', begin), text.size());
  card.version = text.substr(begin, end - begin);
  card.build = text.substr(std::min(end + 1, text.size()));
  return card;
}

void print_capacity(const Engine& engine) {
  const EngineOptions& o = engine.options();
  const cache::CacheShape& shape = engine.cache_shape();
  const Device device = engine.model().device();
  // Pages on the host take their memory when they are first used.
  std::string left = fmt::format("{} of memory left beside it",
                                 format_bytes(std::max<int64_t>(0, available_memory_bytes() - o.pool_bytes - o.host_bytes)));
  if (const auto memory = device_memory(device); device.is_cuda() && memory.ok()) {
    left = fmt::format("{}: {} weights, {} scratch of steps, {} of {} still free", device_name(device),
                       format_bytes(engine.model().weights().size_bytes), format_bytes(engine.scratch_bytes()),
                       format_bytes(memory->free_bytes), format_bytes(memory->total_bytes));
  }
  note(fmt::format("k3: pool of {}: {} pages of {} ({} tokens), blocks of {} tokens; {}", format_bytes(o.pool_bytes),
                   o.pool_bytes / shape.page_bytes, format_bytes(shape.page_bytes), shape.page_tokens, shape.block_tokens, left));
  std::string line;
  for (const CapacityLine& c : engine.capacity()) {
    line += fmt::format("{}{} at {} tokens", line.empty() ? "" : ", ", c.sequences, format_grouped(c.ctx_tokens));
  }
  note(fmt::format("k3: users at once: {} (computed at once: at most {}; further ones wait)", line, o.max_running));
  if (!engine.capacity().empty() && engine.capacity().back().sequences == 0) {
    note(fmt::format("k3: warning: the pool has no room for a request of {} tokens: longer prompts than fit are refused, answers end when pages "
                     "are used up; see --pool-bytes and --ctx", format_grouped(o.ctx_tokens)));
  }
}

// The last frames get a second to leave.
void flush(server::Service& service) {
  service.interrupt();
  constexpr int kFlushSteps = 50;
  for (int i = 0; i < kFlushSteps && service.http_stats().exchanges > 0; ++i) sleep_ms(20);
}

// Until all is done, the time is over, or a further signal comes.
Status drain(server::Service& service, double seconds) {
  note(fmt::format("k3: stopping; requests under way have {} (a second signal stops at once)", format_seconds(seconds)));
  service.drain();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!service.drained() && g_signals < 2 && std::chrono::steady_clock::now() < end) sleep_ms(20);
  if (service.drained()) return {};
  flush(service);
  if (g_signals >= 2) return fail(Code::cancelled, "interrupted");
  note("k3: requests that were under way have been cut off");
  return {};
}

server::ServerOptions server_options(const ServeOptions& o, std::vector<std::string> keys) {
  server::ServerOptions s;
  s.param_policy = o.param_policy == "kimi" ? server::ParamPolicy::kimi : server::ParamPolicy::open;
  s.strict_tools = o.strict_tools;
  s.vllm_metrics = o.metrics_compat == "vllm";
  s.developer = o.developer;
  s.cors = o.cors;
  s.allowed_hosts = o.allowed_hosts;
  s.ping_seconds = o.ping_seconds;
  s.api_keys = std::move(keys);
  return s;
}

}  // namespace

Status serve_command(const ServeOptions& o) {
  K3_TRY_ASSIGN(std::vector<std::string> keys, read_keys(o.api_key_file));
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(o.model));
  K3_TRY_ASSIGN(const RunNeeds needs, run_needs(o));
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(o.model, o.compute, needs));
  const Model& model = *loaded.model;
  auto format = ChatFormat::load(model.folder(), tokenizer);
  if (!format.ok() && format.error().code != Code::unsupported) return format.error();
  K3_TRY_ASSIGN(const GenerationConfig defaults, load_generation_config(model.folder()));
  K3_TRY(check_sampling_defaults(model.folder(), defaults, model.config().vocab_size));
  K3_TRY_ASSIGN(const RunnerOptions run, runner_options(o.compute, model.config()));
  K3_TRY_ASSIGN(const EngineOptions options, engine_options(o, run));
  K3_TRY_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(model, *loaded.pool, options));

  server::Context context;
  context.engine = server::engine_api(*engine);
  context.tokenizer = &tokenizer;
  context.format = format.ok() ? &*format : nullptr;
  context.card = model_card(o, model, engine->options().ctx_tokens);
  context.options = server_options(o, std::move(keys));
  context.defaults = sampling_params({}, defaults);
  if (format.ok()) context.stop_ids = stop_ids(model.config(), defaults, tokenizer, format->end_token());
  context.text_stop_ids = stop_ids(model.config(), defaults, tokenizer, "[EOS]");
  const std::shared_ptr<const TokenTrie> trie = TokenTrie::build(tokenizer);
  context.compile_text_grammar = [trie](server::TextGrammar kind, std::string_view text) {
    switch (kind) {
      case server::TextGrammar::json_schema: return Grammar::json_schema(trie, text);
      case server::TextGrammar::regex: return Grammar::regex(trie, text);
      case server::TextGrammar::ebnf: break;
    }
    return Grammar::ebnf(trie, text);
  };
  if (format.ok()) {
    context.compile_grammar = [&tokenizer, &format, trie](const ChatRequest& request, const Prompt& prompt) {
      return Grammar::for_chat(*format, tokenizer, trie, request, prompt);
    };
  }
  if (!o.quiet) context.log = [](const std::string& line) { note(line); };
  http::Options http;
  http.host = o.host;
  http.port = static_cast<uint16_t>(o.port);
  K3_TRY_ASSIGN(const int64_t most_body, parse_bytes(o.max_body));
  http.limits.body_bytes = static_cast<uint64_t>(most_body);
  const bool open = context.options.api_keys.empty();
  const std::string name = context.card.id;
  std::signal(SIGPIPE, SIG_IGN);
  K3_TRY_ASSIGN(const std::unique_ptr<server::Service> service, server::Service::start(std::move(context), std::move(http)));

  note(fmt::format("k3: loaded {} in {}", name, format_seconds(loaded.load_seconds)));
  print_capacity(*engine);
  if (!format.ok()) note("k3: this model has no chat format: text completions alone");
  if (open && !http::is_loopback(o.host)) {
    note(fmt::format("k3: warning: {} may be reached by others and asks for no key; see --api-key-file", o.host));
  }
  const std::string shown = o.host.find(':') == std::string::npos ? o.host : "[" + o.host + "]";
  std::signal(SIGINT, on_signal);  // before anybody is told that it runs
  std::signal(SIGTERM, on_signal);
  note(fmt::format("k3: listening on http://{}:{} (Ctrl-C stops)", shown, service->port()));
  while (g_signals == 0 && engine->device_status().ok()) sleep_ms(50);
  if (Status lost = engine->device_status(); !lost.ok()) {
    flush(*service);
    return std::move(lost).with_context("the GPU cannot be used any more; start again");
  }
  return drain(*service, o.drain_seconds);
}

}  // namespace k3::cli
