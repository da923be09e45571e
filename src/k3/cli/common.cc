#include "k3/cli/common.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "k3/base/numa/cgroup.h"
#include "k3/base/file.h"
#include "k3/base/log.h"
#include "k3/base/numa/numa_plan.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/model/weight_placement.h"

namespace k3::cli {
namespace {

constexpr int64_t kDefaultCtx = 32768;
constexpr int64_t kMaxInputBytes = int64_t{1} << 30;

int g_output_errno = 0;  // of the first failed write to stdout

int threads_of(int wanted) { return wanted > 0 ? wanted : available_threads(); }

}  // namespace

namespace {

// On a machine of several memories the rows of a worker go into its own; on others nothing happens.
void place_in_memories(const LoadedModel& loaded) {
  const WeightSet& weights = loaded.model->weights();
  const NumaPlan plan = plan_numa(this_machine(), loaded.pool->size(), weights.size_bytes);
  if (!place_weights(weights, plan)) log_info("the system does not let memory be placed; weights stay where they are");
}

void print_plan(const std::vector<PlanLine>& lines, int64_t streamed_read_bytes) {
  Table table({"memory plan", "bytes", ""});
  for (const PlanLine& line : lines) table.row({"  " + line.what, format_bytes(line.bytes), line.remark});
  std::string text = table.text();
  if (streamed_read_bytes > 0) text += fmt::format("  read every step  {}\n", format_bytes(streamed_read_bytes));
  text.pop_back();
  note(text);
}

Result<LoadOptions> load_options(const std::string& path, const ComputeOptions& options, const RunNeeds& needs) {
  LoadOptions load;
  K3_TRY_ASSIGN(load.device, parse_device(options.device));
  load.ram_auto = options.ram == "auto";
  if (!options.ram.empty() && !load.ram_auto) {
    K3_TRY_ASSIGN(load.ram_bytes, parse_bytes(options.ram));
  }
  if (!options.vram.empty()) {
    K3_TRY_ASSIGN(load.vram_bytes, parse_bytes(options.vram));
  }
  K3_TRY_ASSIGN(const Config config, load_config(path));
  K3_TRY_ASSIGN(const RunnerOptions run, runner_options(options, config));
  load.run.ctx_tokens = needs.ctx_tokens > 0 ? needs.ctx_tokens : run.ctx_tokens;
  load.run.chunk_tokens = needs.chunk_tokens > 0 ? needs.chunk_tokens : run.chunk_tokens;
  load.run.logit_rows = needs.logit_rows;
  load.run.sequences = needs.sequences;
  load.run.cache_bytes = needs.cache_bytes;
  load.run.prompt_keys = needs.prompt_keys;
  load.pool = needs.pool;
  load.run.policy = run.policy;
  load.run.threads = threads_of(options.threads);
  load.stream.expert_stats = options.expert_stats;
  load.on_plan = print_plan;
  return load;
}

}  // namespace

LoadedModel::~LoadedModel() {
  if (model == nullptr) return;
  if (const auto s = model->stream_stats(); s && s->tokens > 0) {
    const int64_t wanted = std::max<int64_t>(s->expert_hits + s->expert_misses, 1);
    note(fmt::format("k3: read {} from disk in {} steps; {:.0f} % of {} experts were in memory; waited {} for experts, {} for the "
                     "trunk",
                     format_bytes(s->read_bytes), s->steps, 100.0 * static_cast<double>(s->expert_hits) / static_cast<double>(wanted),
                     wanted, format_seconds(s->expert_wait_seconds), format_seconds(s->trunk_wait_seconds)));
  }
  if (const auto stored = model->expert_store_stats(); stored.ok() && *stored) {
    const ops::ExpertStoreStats& s = **stored;
    const int64_t wanted = std::max<int64_t>(s.wanted, 1);
    note(fmt::format("k3: {} came over the bus: {:.0f} % of {} experts of short steps were on the GPU, {} of experts in parts for long ones",
                     format_bytes(s.bus_bytes()), 100.0 * static_cast<double>(s.wanted - s.missing) / static_cast<double>(wanted), s.wanted,
                     format_bytes(s.staged_bytes)));
  }
  if (const Status saved = model->save_expert_stats(); !saved.ok()) note("k3: " + saved.error().message);
}

std::unique_ptr<ThreadPool> make_pool(int threads) {
  const Topology machine = this_machine();
  return std::make_unique<ThreadPool>(threads, worker_cpus(machine, plan_numa(machine, threads, 0), cpu_quota()));
}

Result<LoadedModel> load_model(const std::string& path, const ComputeOptions& options, const RunNeeds& needs) {
  const auto start = std::chrono::steady_clock::now();
  K3_TRY_ASSIGN(LoadOptions load, load_options(path, options, needs));
  LoadedModel loaded;
  loaded.pool = make_pool(threads_of(options.threads));
  std::optional<Progress> bar;
  load.progress = [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace("loading", total, "B");
    bar->update(done);
  };
  auto model = Model::load(path, *loaded.pool, load);
  bar.reset();
  if (!model.ok()) return std::move(model).take_error();
  loaded.model = std::make_unique<Model>(*std::move(model));
  if (!loaded.model->stream_stats() && !loaded.model->device().is_cuda()) {
    place_in_memories(loaded);
    if (!options.expert_stats.empty()) {
      note(fmt::format("k3: --expert-stats {}: every expert is in memory, so none is counted and the file stays as it is (see --ram)",
                       options.expert_stats));
    }
  }
  if (loaded.model->device().is_cuda() && loaded.model->weights().experts == nullptr && !options.expert_stats.empty()) {
    note(fmt::format("k3: --expert-stats {}: every expert is on the GPU, so none is counted and the file stays as it is (see --vram)", options.expert_stats));
  }
  loaded.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

DType cache_dtype(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "f8_e4m3" ? DType::f8_e4m3 : DType::f32;
}

Result<RunnerOptions> runner_options(const ComputeOptions& options, const Config& config) {
  RunnerOptions out;
  out.policy = options.policy == "exact" ? ops::Policy::exact : ops::Policy::bf16;
  if (options.isa != "auto") out.isa = *ops::isa_from_name(options.isa);
  out.deterministic = options.deterministic;
  out.int8_activations = options.act == "int8";
  out.chunk_tokens = options.chunk_tokens;
  const int64_t limit = config.max_position_embeddings > 0 ? config.max_position_embeddings : kDefaultCtx;
  out.ctx_tokens = options.ctx_tokens > 0 ? options.ctx_tokens : std::min(kDefaultCtx, limit);
  if (out.ctx_tokens > limit) {
    return fail(Code::invalid_argument, "--ctx {} is more than the {} tokens this model was made for", out.ctx_tokens,
                limit);
  }
  return out;
}

Result<Config> edited_config(std::string_view before, std::string_view after, const std::string& path, const std::vector<std::string>& set) {
  if (set.empty()) return parse_config(after, path);
  auto config = parse_config(after, fmt::format("{} with --set {}", path, fmt::join(set, " --set ")));
  if (config.ok() || config.error().code != Code::corrupt || !parse_config(before, path).ok()) return config;
  return fail(Code::invalid_argument, "{}", config.error().message);
}

Result<Tokenizer> load_tokenizer(const std::string& model) {
  if (!path_exists(model)) return fail(Code::not_found, "{}: no such file or folder", model);
  return Tokenizer::load(model_folder(model));
}

ops::SamplingParams sampling_params(const SamplingOptions& options, const GenerationConfig& defaults) {
  ops::SamplingParams p;
  p.temperature = options.temperature.value_or(static_cast<float>(defaults.temperature.value_or(1.0)));
  p.top_p = options.top_p.value_or(static_cast<float>(defaults.top_p.value_or(0.95)));
  p.top_k = options.top_k.value_or(defaults.top_k.value_or(0));
  p.min_p = options.min_p.value_or(0.0F);
  p.repetition_penalty = options.repetition_penalty.value_or(1.0F);
  p.presence_penalty = options.presence_penalty.value_or(0.0F);
  p.seed = options.seed ? *options.seed : std::random_device{}();
  return p;
}

Status check_sampling_defaults(const std::string& folder, const GenerationConfig& defaults, int64_t vocab) {
  const Status valid = sampling_params({}, defaults).validate(vocab);
  if (valid.ok()) return {};
  return fail(Code::corrupt, "{}: {}", join_path(folder, "generation_config.json"), valid.error().message);
}

std::vector<int32_t> stop_ids(const Config& config, const GenerationConfig& generation, const Tokenizer& tokenizer,
                              std::string_view end_token) {
  std::vector<int32_t> ids = generation.eos_token_ids;
  if (config.eos_token_id) ids.push_back(*config.eos_token_id);
  for (const std::string_view name : {end_token, std::string_view("[EOS]")}) {
    if (const auto id = tokenizer.special(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Result<std::string> read_stdin() {
  std::string text;
  char buffer[1 << 16];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) {
    text.append(buffer, n);
    if (static_cast<int64_t>(text.size()) > kMaxInputBytes) return fail(Code::exhausted, "stdin is over 1 GiB");
  }
  if (std::ferror(stdin) != 0) return fail(Code::unavailable, "cannot read stdin");
  return text;
}

Result<std::string> read_input(const std::optional<std::string>& text, const std::optional<std::string>& file,
                               std::string_view what, std::string_view options_hint) {
  std::string out;
  if (text) {
    out = *text;
  } else if (file && *file != "-") {
    K3_TRY_ASSIGN(out, read_file(*file, kMaxInputBytes));
  } else {
    if (!file && ::isatty(STDIN_FILENO) == 1) return fail(Code::invalid_argument, "no {}: {}", what, options_hint);
    K3_TRY_ASSIGN(out, read_stdin());
  }
  const size_t valid = utf8_valid_prefix(out);
  if (valid != out.size()) return fail(Code::invalid_argument, "the {} is not UTF-8 text: byte {} is wrong", what, valid);
  return out;
}

Result<std::vector<int32_t>> parse_ids(const std::string& given) {
  std::string text = given;
  if (text.starts_with('@')) {
    K3_TRY_ASSIGN(text, text == "@-" ? read_stdin() : read_file(text.substr(1), kMaxInputBytes));
  }
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (std::string_view(" \t\r\n,[]").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc()) {
      const std::string around = utf8_repair(std::string_view(at, std::min<size_t>(16, static_cast<size_t>(end - at))));
      return fail(Code::invalid_argument,
                  "'{}' at byte {} of the ids is not a token id; write for example 12,34,56 or @file", around,
                  at - text.data());
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

std::string Table::text(const std::vector<size_t>& left) const {
  const auto columns_of = [](std::string_view text) { return static_cast<size_t>(utf8_length(text)); };
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], columns_of(row[c]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - columns_of(row[c]), ' ');
      if (c > 0) out += "  ";
      out += std::ranges::find(left, c) != left.end() ? row[c] + pad : pad + row[c];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

void note(const std::string& text) {
  const bool colour = use_colour(STDERR_FILENO);
  std::fprintf(stderr, "%s%s%s\n", colour ? "\x1b[2m" : "", text.c_str(), colour ? "\x1b[0m" : "");
}

void print_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && g_output_errno == 0) g_output_errno = errno;
}

bool flush_out() {
  errno = 0;
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && g_output_errno == 0)
    g_output_errno = errno != 0 ? errno : EIO;
  return g_output_errno == 0;
}

Status output_status() {
  if (flush_out()) return {};
  const bool full = g_output_errno == ENOSPC || g_output_errno == EDQUOT;
  return fail(full ? Code::exhausted : Code::unavailable, "cannot write to stdout: {}", std::strerror(g_output_errno));
}

Status prepare_output_folder(const std::string& folder, bool force) {
  for (const char* name : {"model.safetensors.index.json", "config.json"}) {
    if (!force && path_exists(join_path(folder, name))) {
      return fail(Code::invalid_argument, "{} already holds a model ({}); choose another folder or add --force", folder,
                  name);
    }
  }
  return make_directories(folder);
}

}  // namespace k3::cli
