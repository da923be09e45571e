// Purpose:  a model of about 70,000 parameters with every kind of layer, the plain loop as its oracle, and an engine core on a
//           small cache. Test code only.
// Shapes:   none.
// Units:    tokens.
// Memory:   one model a process, written to the test folder.
// Threads:  single-threaded.
// Errors:   failed set-up is a CHECK.
// Source:   serving.md 11.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "k3/base/file.h"
#include "k3/engine/core.h"
#include "k3/engine/generate.h"
#include "k3/format/config.h"
#include "k3/model/init.h"
#include "k3/model/model.h"

namespace k3::test {

// 6 KDA and 2 MLA layers: three KDA groups of two. Endpoint 16 gives pages of 48 tokens.
inline constexpr const char* kTinyConfig = R"json({"model_type":"kimi_linear","dtype":"bfloat16","hidden_size":32,
"num_hidden_layers":8,"vocab_size":96,"rms_norm_eps":1e-05,"hidden_act":"situ","num_attention_heads":2,"num_key_value_heads":2,
"q_lora_rank":16,"kv_lora_rank":24,"qk_nope_head_dim":8,"qk_rope_head_dim":8,"v_head_dim":8,"mla_use_nope":true,"num_experts":4,
"num_experts_per_token":2,"num_shared_experts":1,"moe_intermediate_size":16,"intermediate_size":48,"routed_scaling_factor":1.0,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","use_grouped_topk":true,"num_expert_group":1,"topk_group":1,
"moe_layer_freq":1,"first_k_dense_replace":1,"num_nextn_predict_layers":0,"bos_token_id":0,"eos_token_id":1,
"tie_word_embeddings":false,"linear_attn_config":{"num_heads":2,"head_dim":16,"short_conv_kernel_size":4,
"full_attn_layers":[4,8],"kda_layers":[1,2,3,5,6,7],"gate_lower_bound":-5.0,"use_full_rank_gate":true},
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"mla_use_output_gate":true,"routed_expert_hidden_size":32,
"latent_moe_use_norm":true,"attn_res_block_size":2,"max_position_embeddings":4096,"initializer_range":0.2,
"topk_method":"noaux_tc"})json";

struct TinyModel {
  ThreadPool pool{1};
  std::string folder;
  std::optional<Model> model;

  TinyModel() {
    folder = testing::TempDir() + fmt::format("k3_engine_{}", ::getpid());
    std::filesystem::create_directories(folder);
    write_file(folder + "/config.json", kTinyConfig).value();
    const Config config = load_config(folder).value();
    write_random_checkpoint(config, folder, 1, 1, pool, {}).value();
    model.emplace(Model::load(folder, pool).value());
  }
  ~TinyModel() { std::filesystem::remove_all(folder); }
};

inline TinyModel& tiny() {
  static TinyModel instance;
  return instance;
}

inline cache::CacheShape tiny_shape(const cache::CacheDtypes& dtypes = {}) {
  return cache::make_shape(layer_counts(tiny().model->config()), dtypes, 16).value();
}

// What a request must answer: the plain loop, fresh caches, the same random numbers.
inline std::vector<int32_t> plain_answer(const Request& r, int32_t choice, const ComputeMode& mode, int64_t ctx_tokens) {
  RunnerOptions options;
  static_cast<ComputeMode&>(options) = mode;
  options.ctx_tokens = ctx_tokens;
  Runner runner = Runner::create(*tiny().model, tiny().pool, options).value();
  ops::Sampler sampler(r.sampling, tiny().model->config().vocab_size, static_cast<uint64_t>(choice));
  std::vector<int32_t> ids;
  std::span<const float> logits = runner.feed(0, r.prompt).value();
  for (;;) {
    const int32_t id = sampler.sample(logits, r.prompt, ids).value();
    ids.push_back(id);
    if (std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end()) break;
    if (r.max_tokens > 0 && static_cast<int64_t>(ids.size()) >= r.max_tokens) break;
    if (static_cast<int64_t>(r.prompt.size() + ids.size()) >= ctx_tokens) break;
    logits = runner.feed(0, std::span(&ids.back(), 1)).value();
  }
  return ids;
}

// Cache, executor and core of one engine.
struct TinyEngine {
  cache::CacheOptions cache_options;
  CoreOptions options;
  std::unique_ptr<cache::HybridCache> cache;
  std::unique_ptr<ModelExecutor> executor;
  std::unique_ptr<EngineCore> core;
  uint64_t next_id = 1;

  explicit TinyEngine(const ComputeMode& mode, int64_t pages, const std::function<void(TinyEngine&)>& set = {}) {
    const DType small = mode.policy == ops::Policy::exact ? DType::f32 : DType::bf16;  // as Runner's own caches
    cache_options.shape = tiny_shape({DType::f32, small, small});
    cache_options.pool_bytes = pages * cache_options.shape.page_bytes;
    cache_options.poison = true;
    cache_options.identity = "tiny";
    options.ctx_tokens = 400;
    options.step_tokens = 64;
    options.max_running = 4;
    options.vocab = tiny().model->config().vocab_size;
    options.block_tokens = 16;
    options.identity = "tiny";
    if (set) set(*this);
    cache = cache::HybridCache::create(cache_options).value();
    options.key_seed = cache->key_seed();
    executor = ModelExecutor::create(*tiny().model, tiny().pool, mode, cache->shape()).value();
    executor->use(*cache);
    core = std::make_unique<EngineCore>(options, *cache, *executor);
  }
  RequestId submit(Request request) {
    check_request(options, request).value();
    const RequestId id{next_id++};
    core->submit(id, std::move(request));
    return id;
  }
};

// What a request told.
struct Outcome {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::optional<EndReason>> ends;
  std::optional<Admitted> admitted;
  std::optional<RequestSummary> summary;
  int64_t done = 0;
};

inline void listen(Request& request, Outcome& outcome) {
  outcome.ids.resize(static_cast<size_t>(request.choices));
  outcome.ends.resize(static_cast<size_t>(request.choices));
  request.callbacks.on_admitted = [&outcome](const Admitted& admitted) { outcome.admitted = admitted; };
  request.callbacks.on_token = [&outcome](const GeneratedToken& token) {
    std::vector<int32_t>& ids = outcome.ids[static_cast<size_t>(token.choice)];
    EXPECT_EQ(token.index, static_cast<int64_t>(ids.size()));
    ids.push_back(token.id);
    return true;
  };
  request.callbacks.on_choice_end = [&outcome](const ChoiceEnd& end) {
    EXPECT_FALSE(outcome.ends[static_cast<size_t>(end.choice)].has_value());
    outcome.ends[static_cast<size_t>(end.choice)] = end.reason;
  };
  request.callbacks.on_done = [&outcome](const RequestSummary& summary) {
    outcome.summary = summary;
    ++outcome.done;
  };
}

}  // namespace k3::test
