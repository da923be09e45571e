#include "k3/train/run/run_data.h"

#include <algorithm>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"

namespace k3::train {
namespace {

// The ids of the shards mean what this tokenizer says.
Status check_tokenizer(const TrainConfig& config, const DataManifest& manifest) {
  const std::string path = config.tokenizer + "/tiktoken.model";
  K3_TRY_ASSIGN(const std::string ranks, read_file(path));
  if (manifest.tokenizer_sha256.empty() || sha256_hex(ranks) == manifest.tokenizer_sha256) return {};
  return fail(Code::invalid_argument, "{}: {} was prepared with another tokenizer; give that one, or run `k3 prepare` with this one", path, config.data);
}

}  // namespace

Result<RunData> RunData::open(const TrainConfig& config) {
  RunData out(config);
  K3_TRY_ASSIGN(out.manifest_, load_manifest(config.data));
  if (out.manifest_.vocab > config.model.vocab_size) {
    return fail(Code::invalid_argument, "{}: ids up to {}, but the model's vocabulary has {}; set vocab_size", config.data, out.manifest_.vocab - 1,
                config.model.vocab_size);
  }
  K3_TRY(check_tokenizer(config, out.manifest_));
  K3_TRY(out.open_held_out());
  // Every phase is tried now, not when its turn comes.
  for (size_t p = 0; p < config.phases.size(); ++p) {
    if (config.phases[p].steps > 0) K3_TRY(out.batches_of(p));
  }
  return out;
}

Status RunData::open_held_out() {
  const auto& wanted = config_->evaluate_sources;
  for (const SourceInfo& info : manifest_.sources) {
    if (info.split != Split::valid) continue;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), info.name) == wanted.end()) continue;
    // A small part of few documents may be none: nothing to measure, and nothing that hinders the training.
    if (wanted.empty() && info.documents == 0) continue;
    K3_TRY_ASSIGN(const TokenShards* const source, shards_of(info));
    K3_TRY_ASSIGN(EvalWindows windows, EvalWindows::create(*source, manifest_.pad, 1024, config_->evaluate_tokens));
    held_out_.emplace_back(info.name, std::move(windows));
  }
  for (const std::string& name : wanted) {
    if (manifest_.find(name, Split::valid) != nullptr) continue;
    return fail(Code::not_found, "evaluate_sources: {} has no held-out source '{}'; there are: {}", config_->data, name, manifest_.names(Split::valid));
  }
  return {};
}

Result<const TokenShards*> RunData::shards_of(const SourceInfo& info) {
  for (const auto& opened : shards_) {
    if (opened->info().name == info.name && opened->info().split == info.split) return opened.get();
  }
  K3_TRY_ASSIGN(TokenShards opened, TokenShards::open(config_->data, manifest_, info));
  shards_.push_back(std::make_unique<TokenShards>(std::move(opened)));
  return shards_.back().get();
}

Result<PackedBatches> RunData::batches_of(size_t p) {
  const Phase& wanted = config_->phases[p];
  PackOptions pack;
  for (const SourceShare& source : wanted.sources) {
    const SourceInfo* const info = manifest_.find(source.name, Split::train);
    if (info == nullptr) {
      return fail(Code::not_found, "phases[{}]: {} has no source '{}'; there are: {}", p, config_->data, source.name, manifest_.names(Split::train));
    }
    K3_TRY_ASSIGN(const TokenShards* const shards, shards_of(*info));
    pack.mixture.push_back({shards, source.weight, source.share, source.learn_all});
  }
  pack.seq_tokens = wanted.sequence_tokens;
  pack.tokens_per_step = wanted.tokens_per_step;
  pack.micro_batches = wanted.micro_batches;
  pack.seed = config_->seed;
  pack.phase = p;
  pack.pad = manifest_.pad;
  return PackedBatches::create(std::move(pack)).with_context("phases[" + std::to_string(p) + "]");
}

}  // namespace k3::train
