#include "k3/cli/bench/bench_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/progress.h"
#include "k3/base/rng.h"
#include "k3/format/config_edit.h"
#include "k3/model/init.h"
#include "k3/model/rank_share.h"

namespace k3::cli {
namespace {

constexpr std::string_view kPacked = "experts=mxfp4", kUnpacked = "experts=bf16";

Result<Config> random_config(const BenchOptions& options) {
  const std::string path = is_directory(options.random) ? join_path(options.random, "config.json") : options.random;
  K3_TRY_ASSIGN(std::string json, read_file(path, int64_t{16} << 20));
  const std::string before = json;
  std::vector<std::string> fields;
  for (const std::string& assignment : options.set) {
    if (assignment.starts_with("experts=") && assignment != kPacked && assignment != kUnpacked) {
      return fail(Code::invalid_argument, "--set {}: experts is mxfp4 or bf16", assignment);
    }
    if (assignment != kPacked && assignment != kUnpacked) {
      fields.push_back(assignment);
      continue;
    }
    K3_TRY_ASSIGN(json, set_expert_packing(json, assignment == kPacked).with_context(path));
  }
  K3_TRY_ASSIGN(json, remove_vision(json).with_context(path));
  K3_TRY_ASSIGN(json, edit_config(json, fields).with_context(path));
  K3_TRY_ASSIGN(json, set_trunk_packing(json, false).with_context(path));  // random weights are in the released layout
  K3_TRY_ASSIGN(Config config, edited_config(before, json, path, options.set));
  settle_random(config);
  return rank_config(config, {.tp = options.tp, .ep = options.ep, .rank = options.rank});
}

}  // namespace

Status check_bench_model(const BenchOptions& options) {
  const bool random = !options.random.empty();
  if (options.model.empty() && !random) {
    return fail(Code::invalid_argument,
                "no model: give a model folder, --random CONFIG for one of random weights, or 'ceiling' to measure the machine alone");
  }
  if (random && !options.model.empty()) {
    return fail(Code::invalid_argument, "{} and --random {}: give one of them", options.model, options.random);
  }
  if (!random && (!options.set.empty() || options.tp != 1 || options.ep != 1 || options.rank != 0)) {
    return fail(Code::invalid_argument, "--set, --tp, --ep and --rank change a random model (--random CONFIG), not a checkpoint");
  }
  if (random && options.quality) return fail(Code::invalid_argument, "--quality: random weights have none");
  if (random && !options.compute.ram.empty()) {
    return fail(Code::invalid_argument, "--ram reads weights from a checkpoint; random ones (--random) are in memory");
  }
  if (random && (!options.compute.vram.empty() || !options.compute.expert_stats.empty())) {
    return fail(Code::invalid_argument, "--vram and --expert-stats are for the experts of a checkpoint; random ones (--random) lie in one memory");
  }
  return {};
}

Result<LoadedModel> bench_model(const BenchOptions& options, Device device, const ComputeOptions& compute, const RunNeeds& needs) {
  if (options.random.empty()) return load_model(options.model, compute, needs);
  const auto start = std::chrono::steady_clock::now();
  K3_TRY_ASSIGN(const Config config, random_config(options));
  LoadedModel loaded;
  loaded.pool = make_pool(compute.threads > 0 ? compute.threads : available_threads());
  std::optional<Progress> bar;
  auto model = Model::random(config, options.seed, device, *loaded.pool, [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace("random weights", total, "B");
    bar->update(done);
  });
  bar.reset();
  if (!model.ok()) return std::move(model).take_error().with_context(options.random);
  loaded.model = std::make_unique<Model>(*std::move(model));
  loaded.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

Result<ModelSummary> bench_summary(const BenchOptions& options, const Model& model) {
  ModelSummary summary = summarise(model.config());
  if (!options.random.empty()) return summary;
  K3_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model.folder()));
  K3_TRY(use_stored_sizes(checkpoint, model.config(), summary));
  return summary;
}

std::string bench_model_name(const BenchOptions& options) {
  if (options.random.empty()) return options.model;
  std::string name = "random " + std::filesystem::path(options.random).filename().string();
  for (const std::string& assignment : options.set) name += ", " + assignment;
  if (options.tp > 1 || options.ep > 1) name += fmt::format(", rank {} of tp {}, ep {}", options.rank, options.tp, options.ep);
  return name;
}

std::vector<std::vector<int32_t>> random_ids(int64_t sequences, int64_t tokens, int64_t vocab, uint64_t stream) {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(sequences));
  for (size_t s = 0; s < out.size(); ++s) {
    const Rng rng(1 + s, stream);
    out[s].resize(static_cast<size_t>(tokens));
    for (size_t i = 0; i < out[s].size(); ++i) {
      out[s][i] = static_cast<int32_t>(rng.bits(i) % static_cast<uint64_t>(vocab));
    }
  }
  return out;
}

}  // namespace k3::cli
