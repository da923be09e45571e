#include "k3/train/run/start_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/format/config_edit.h"

namespace k3::train {
namespace {

std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return fmt::format("{}", value); }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(Activation value) { return value == Activation::situ ? "situ" : "silu"; }
std::string text_of(const std::vector<AttentionKind>& layers) {
  std::string full;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l] == AttentionKind::mla) full += (full.empty() ? "" : ", ") + std::to_string(l + 1);
  }
  return "[" + full + "]";
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "absent";
}

// Keeps the first pair that differs.
struct Comparison {
  std::string found;

  template <class T>
  void field(const char* name, const T& config, const T& start) {
    if (found.empty() && config != start)
      found = fmt::format("{} is {} in this config, {} in that model", name, text_of(config), text_of(start));
  }
};

Status check_tokenizer(const TrainConfig& config) {
  const std::string here = config.tokenizer + "/tiktoken.model", there = config.start + "/tiktoken.model";
  if (!path_exists(there)) return {};
  K3_TRY_ASSIGN(const std::string ranks, read_file(here));
  K3_TRY_ASSIGN(const std::string started, read_file(there));
  if (ranks == started) return {};
  return fail(Code::invalid_argument,
              "its tokenizer is not that of {}: the same ids would mean other texts; set tokenizer to the model's folder",
              here);
}

Status read_weights(TrainConfig& config, TrainWeights& weights) {
  K3_TRY_ASSIGN(Config found, load_config(config.start));
  K3_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(config.start));
  resolve_by_tensors(checkpoint, found);
  const std::string difference = first_difference(config.model, found);
  if (!difference.empty()) {
    return fail(Code::invalid_argument, "{}; a run begins from a model of its own shape: set model to {}/config.json",
                difference, config.start);
  }
  K3_TRY(check_tokenizer(config));
  K3_TRY(read_train_weights(checkpoint, weights));
  K3_TRY_ASSIGN(const std::string hash, start_sha256(checkpoint));
  if (config.start_sha256 == hash) return {};
  if (!config.start_sha256.empty()) {
    return fail(
        Code::invalid_argument,
        "start_sha256 is {}, but the tensors there have {}: another model; give the one that is meant, or drop the field",
        config.start_sha256, hash);
  }
  constexpr std::string_view kField[] = {"start_sha256"};
  K3_TRY_ASSIGN(config.json, edit_config(config.json, std::vector<std::string>{"start_sha256=\"" + hash + "\""}, kField));
  config.start_sha256 = hash;
  return {};
}

}  // namespace

std::string first_difference(const Config& config, const Config& start) {
  Comparison c;
  const auto field = [&](const char* name, auto Config::*member) { c.field(name, config.*member, start.*member); };
  field("text_config (tensor names begin with language_model.)", &Config::nested);
  field("vocab_size", &Config::vocab_size);
  field("hidden_size", &Config::hidden_size);
  field("num_hidden_layers", &Config::num_hidden_layers);
  field("num_attention_heads", &Config::num_attention_heads);
  field("intermediate_size", &Config::intermediate_size);
  field("hidden_act", &Config::hidden_act);
  field("activation_situ_beta", &Config::activation_situ_beta);
  field("activation_situ_linear_beta", &Config::activation_situ_linear_beta);
  field("rms_norm_eps", &Config::rms_norm_eps);
  field("q_lora_rank", &Config::q_lora_rank);
  field("kv_lora_rank", &Config::kv_lora_rank);
  field("qk_nope_head_dim", &Config::qk_nope_head_dim);
  field("qk_rope_head_dim", &Config::qk_rope_head_dim);
  field("v_head_dim", &Config::v_head_dim);
  field("mla_use_output_gate", &Config::mla_use_output_gate);
  field("first_k_dense_replace", &Config::first_k_dense_replace);
  field("moe_layer_freq", &Config::moe_layer_freq);
  field("num_experts", &Config::num_experts);
  field("num_experts_per_token", &Config::num_experts_per_token);
  field("num_shared_experts", &Config::num_shared_experts);
  field("moe_intermediate_size", &Config::moe_intermediate_size);
  field("routed_expert_hidden_size", &Config::routed_expert_hidden_size);
  field("latent_moe_use_norm", &Config::latent_moe_use_norm);
  field("moe_renormalize", &Config::moe_renormalize);
  field("routed_scaling_factor", &Config::routed_scaling_factor);
  field("attn_res_block_size", &Config::attn_res_block_size);
  field("linear_attn_config.full_attn_layers", &Config::attention);
  field("linear_attn_config.num_heads", &Config::kda_num_heads);
  field("linear_attn_config.head_dim", &Config::kda_head_dim);
  field("linear_attn_config.short_conv_kernel_size", &Config::short_conv_kernel_size);
  field("linear_attn_config.use_full_rank_gate", &Config::use_full_rank_gate);
  field("linear_attn_config.gate_lower_bound", &Config::gate_lower_bound);
  field("tie_word_embeddings", &Config::tie_word_embeddings);
  return c.found;
}

Result<std::string> start_sha256(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  checkpoint.for_each_name([&](std::string_view name, int32_t) { names.emplace_back(name); });
  std::sort(names.begin(), names.end());
  std::string list, bytes;
  for (const std::string& name : names) {
    K3_TRY_ASSIGN(const TensorInfo info, checkpoint.find(name));
    bytes.resize(static_cast<size_t>(info.size_bytes));
    K3_TRY(checkpoint.read(name, info, std::as_writable_bytes(std::span(bytes))));
    list += name + " " + sha256_hex(bytes) + "\n";
  }
  return sha256_hex(list);
}

Status read_start(TrainConfig& config, TrainWeights& weights) {
  return read_weights(config, weights).with_context(config.path + ": start: " + config.start);
}

Status check_same_start(const TrainConfig& config, const std::string& run_folder) {
  const std::string path = run_folder + "/train.json";
  const Result<std::string> json = read_file(path, int64_t{16} << 20);
  if (!json.ok()) return {};
  const Result<TrainConfig> begun = parse_train_config(*json, path);
  if (!begun.ok() || begun->start_sha256 == config.start_sha256) return {};
  const auto name = [](const TrainConfig& c) {
    return c.start.empty() ? std::string("drawn weights") : "the model of hash " + c.start_sha256;
  };
  return fail(Code::invalid_argument,
              "{}: this run was begun from {} ({}), not from {}; resume it with that one, or take another folder",
              run_folder, name(*begun), path, name(config));
}

}  // namespace k3::train
