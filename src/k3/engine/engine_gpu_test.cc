// The engine on a GPU: whatever a schedule does - chunks, prefix hits, forks, preemption, saved slots, tiers - every row of logits
// is that of the whole prefix read at once, as far as BF16 goes; where the same steps read the same bytes, to the bit.
#include "k3/engine/engine.h"

#include <cmath>
#include <future>
#include <limits>
#include <map>

#include "k3/base/rng.h"
#include "k3/cache/cuda_queue.h"
#include "k3/engine/tiny_model_test.h"

namespace k3::test {
namespace {

constexpr double kNormRatio = 3e-2;  // kernels.md 9: BF16 from one order of sums to another
constexpr float kGap = 0.25F;        // between the two best, from which the choice must be the same

// K3's kinds of layers and its initial weights (with wider ones BF16 alone moves rows by more than the bound), MXFP4 experts of which every
// token takes all (so that rounding cannot change the choice), two KDA groups.
constexpr const char* kConfig = R"json({"model_type":"kimi_linear","dtype":"bfloat16","hidden_size":256,
"num_hidden_layers":6,"vocab_size":1024,"rms_norm_eps":1e-05,"hidden_act":"situ","num_attention_heads":4,"num_key_value_heads":4,
"q_lora_rank":96,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"mla_use_nope":true,"num_experts":4,
"num_experts_per_token":4,"num_shared_experts":2,"moe_intermediate_size":64,"intermediate_size":512,"routed_scaling_factor":1.0,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","use_grouped_topk":true,"num_expert_group":1,"topk_group":1,
"moe_layer_freq":1,"first_k_dense_replace":1,"num_nextn_predict_layers":0,"bos_token_id":0,"eos_token_id":1,
"tie_word_embeddings":false,"linear_attn_config":{"num_heads":4,"head_dim":128,"short_conv_kernel_size":4,
"full_attn_layers":[3,6],"kda_layers":[1,2,4,5],"gate_lower_bound":-5.0,"use_full_rank_gate":true},
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"mla_use_output_gate":true,"routed_expert_hidden_size":128,
"latent_moe_use_norm":true,"attn_res_block_size":3,"max_position_embeddings":65536,"initializer_range":0.02,
"topk_method":"noaux_tc","quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized",
"config_groups":{"group_0":{"format":"mxfp4-pack-quantized","targets":["Linear"],"input_activations":null,"output_activations":null,
"weights":{"num_bits":4,"type":"float","group_size":32,"strategy":"group","symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"}}},
"ignore":[]}})json";

constexpr int64_t kVocab = 1024, kCtx = 1500;

struct GpuModelFolder {
  ThreadPool pool{2};
  std::string folder = testing::TempDir() + fmt::format("k3_engine_gpu_{}", ::getpid());
  std::optional<Model> model;

  GpuModelFolder() {
    std::filesystem::create_directories(folder);
    write_file(folder + "/config.json", kConfig).value();
    write_random_checkpoint(load_config(folder).value(), folder, 3, 1, pool, {}).value();
    LoadOptions options;
    options.device = Device{0};
    model.emplace(Model::load(folder, pool, options).value());
  }
  ~GpuModelFolder() { std::filesystem::remove_all(folder); }
};

GpuModelFolder& gpu() {
  static GpuModelFolder instance;
  return instance;
}

// Keeps every row of logits by the tokens that led to it; can spoil one.
class Recorder final : public Executor {
 public:
  explicit Recorder(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    Result<Tensor> logits = model_.step(items);
    if (!logits.ok()) return logits;
    int64_t row = 0;
    for (const StepItem& item : items) {
      if (item.logits == WantLogits::none) continue;
      const int32_t* begin = item.tokens.data() - item.history;
      if (item.history + item.token_count == spoil_at) logits->row(row)[7] = std::numeric_limits<float>::quiet_NaN();
      rows.emplace_back(std::vector<int32_t>(begin, begin + item.history + item.token_count),
                        std::vector<float>(logits->row(row), logits->row(row) + kVocab));
      ++row;
    }
    return logits;
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }

  std::vector<std::pair<std::vector<int32_t>, std::vector<float>>> rows;
  int64_t spoil_at = -1;

 private:
  Executor& model_;
};

struct GpuEngine {
  cache::CacheOptions cache_options;
  CoreOptions options;
  std::shared_ptr<cache::CudaQueue> queue;
  std::unique_ptr<ModelExecutor> executor;
  std::unique_ptr<cache::HybridCache> cache;
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<EngineCore> core;
  uint64_t next_id = 1;

  explicit GpuEngine(int64_t block, int64_t pages, const std::function<void(GpuEngine&)>& set = {}) {
    const cache::CacheDtypes dtypes{DType::f32, DType::bf16, DType::bf16};
    cache_options.shape = cache::make_shape(layer_counts(gpu().model->config()), dtypes, block).value();
    cache_options.pool_bytes = pages * cache_options.shape.page_bytes;
    cache_options.poison = true;
    options.ctx_tokens = kCtx;
    options.step_tokens = 512;
    options.max_running = 4;
    options.vocab = kVocab;
    options.block_tokens = block;
    options.identity = cache_options.identity = "gpu";
    options.separate_phases = true;
    options.prefill_keys = kCtx + kFurtherKeys;
    if (set) set(*this);
    executor = ModelExecutor::create(*gpu().model, gpu().pool, ComputeMode{}, cache_options.shape,
                                     {options.step_tokens, options.max_running, options.ctx_tokens}).value();
    executor->rehearse().value();
    queue = cache::CudaQueue::create(Device{0}).value();
    cache_options.queue = queue;
    cache = cache::HybridCache::create(cache_options).value();
    queue->follow(executor->stream()).value();
    executor->use(*cache);
    options.key_seed = cache->key_seed();
    recorder = std::make_unique<Recorder>(*executor);
    core = std::make_unique<EngineCore>(options, *cache, *recorder);
  }

  Outcome answer(Request r) {
    Outcome out;
    listen(r, out);
    core->submit(RequestId{next_id++}, std::move(r));
    run();
    EXPECT_EQ(out.done, 1);
    return out;
  }
  void run() {
    for (int i = 0; core->has_work(); ++i) {
      ASSERT_LT(i, 5000);
      core->step();
    }
    const Status status = cache->check();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
};

std::vector<int32_t> ids(size_t count, uint64_t seed) {
  const Rng rng(seed, 7);
  std::vector<int32_t> out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(rng.bits(i) % kVocab));
  return out;
}

Request request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EngineOnGpu : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
  }

  // The row after these tokens, read at once by a runner with caches of its own.
  const std::vector<float>& whole(const std::vector<int32_t>& prefix) {
    std::vector<float>& row = whole_[prefix];
    if (!row.empty()) return row;
    if (!runner_) {
      RunnerOptions options;
      options.ctx_tokens = kCtx;
      options.chunk_tokens = kCtx;
      runner_.emplace(Runner::create(*gpu().model, gpu().pool, options).value());
    }
    runner_->reset(0);
    const std::span<const float> got = runner_->feed(0, prefix).value();
    row.assign(got.begin(), got.end());
    return row;
  }

  void expect_rows(const Recorder& recorder, const std::string& what) {
    double worst = 0, sum = 0;
    for (const auto& [prefix, got] : recorder.rows) {
      const std::vector<float>& want = whole(prefix);
      double error = 0, norm = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
        norm += std::pow(static_cast<double>(want[i]), 2);
      }
      const double ratio = std::sqrt(error / norm);
      worst = std::max(worst, std::isfinite(ratio) ? ratio : 1e9);
      sum += ratio;
      EXPECT_LE(ratio, kNormRatio) << what << ", after " << prefix.size() << " tokens";
      std::vector<float> sorted = want;
      std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
      if (*std::max_element(want.begin(), want.end()) - sorted[1] > kGap) {
        EXPECT_EQ(std::max_element(got.begin(), got.end()) - got.begin(), std::max_element(want.begin(), want.end()) - want.begin())
            << what << ", after " << prefix.size() << " tokens";
      }
    }
    fmt::print("block {} {}: {} rows, mean {:.2e}, worst {:.2e}\n", GetParam(), what, recorder.rows.size(),
               sum / static_cast<double>(recorder.rows.size()), worst);
  }

  std::map<std::vector<int32_t>, std::vector<float>> whole_;
  std::optional<Runner> runner_;
};

TEST_P(EngineOnGpu, WholeChunkedBatchedAndHitPromptsAgree) {
  const std::vector<int32_t> prompt = ids(315, 1);
  for (const int64_t step : {512, 70, 9}) {
    GpuEngine e(GetParam(), 60, [&](GpuEngine& g) {
      g.options.step_tokens = step;
      g.options.keep_idle = step == 70;
    });
    const Outcome first = e.answer(request(prompt, 10));  // past an endpoint, whose state is copied
    EXPECT_FALSE(first.summary->error.has_value());
    const Outcome hit = e.answer(request(joined(prompt, ids(30, 2)), 6));
    EXPECT_GE(hit.admitted->cached_tokens, 304 / GetParam() * GetParam());
    std::vector<int32_t> history = joined(joined(prompt, first.ids[0]), ids(40, 3));
    const Outcome resumed = e.answer(request(history, 6));
    EXPECT_GE(resumed.admitted->cached_tokens, 320);
    EXPECT_EQ(resumed.admitted->resumed_idle, step == 70);
    // Four at once, one of them long.
    std::vector<Outcome> outs(4);
    for (size_t i = 0; i < outs.size(); ++i) {
      Request r = request(joined(std::vector<int32_t>(prompt.begin(), prompt.begin() + 70 * static_cast<int64_t>(i)), ids(i == 2 ? 900 : 20, 10 + i)), 12);
      listen(r, outs[i]);
      e.core->submit(RequestId{100 + i}, std::move(r));
    }
    e.run();
    for (const Outcome& out : outs) EXPECT_FALSE(out.summary->error.has_value());
    expect_rows(*e.recorder, fmt::format("steps of {}", step));
    // The last endpoint of the prompt, then that of the answer; what others share with the prompt ends before its checkpoint.
    if (step != 70) {
      EXPECT_EQ(hit.admitted->cached_tokens, 304 / GetParam() * GetParam());
      EXPECT_EQ(e.cache->stats().hit_tokens, hit.admitted->cached_tokens + 320);
    }
  }
}

TEST_P(EngineOnGpu, ForkedChoicesAndPreemptedSequencesAgree) {
  GpuEngine e(GetParam(), 60);
  Request r = request(ids(100, 5), 20);
  r.choices = 4;
  r.sampling.temperature = 1;
  r.sampling.seed = 11;
  const Outcome out = e.answer(std::move(r));
  EXPECT_EQ(out.summary->computed_tokens, 100);
  EXPECT_NE(out.ids[0], out.ids[1]);
  expect_rows(*e.recorder, "four choices");

  // Three states pages a sequence and one page of latents: room for two to their end.
  GpuEngine small(GetParam(), 2 * (e.cache->shape().pages_for(420) + e.cache->shape().groups()) + 1,
                  [](GpuEngine& g) { g.options.max_running = 3; });
  std::vector<Outcome> outs(3);
  for (size_t i = 0; i < outs.size(); ++i) {
    Request one = request(ids(230, 20 + i), 60);
    one.ignore_eos = true;
    listen(one, outs[i]);
    small.core->submit(RequestId{1 + i}, std::move(one));
  }
  small.run();
  EXPECT_GT(small.core->stats().preemptions, 0);
  for (const Outcome& o : outs) EXPECT_EQ(o.ids[0].size(), 60u);
  expect_rows(*small.recorder, "preempted");
}

TEST_P(EngineOnGpu, SavedSlotsAndTiersGoOnToTheBit) {
  const std::string file = testing::TempDir() + fmt::format("k3_gpu_slot_{}", ::getpid());
  const std::vector<int32_t> prompt = ids(300, 8), more = ids(25, 9);
  GpuEngine first(GetParam(), 60);
  const Outcome begun = first.answer(request(prompt, 9));
  const std::vector<int32_t> history = joined(joined(prompt, begun.ids[0]), more);
  ASSERT_TRUE(first.core->save_slot(0, file).ok());
  GpuEngine second(GetParam(), 60);
  ASSERT_TRUE(second.core->restore_slot(1, file).ok());
  std::filesystem::remove(file);
  std::vector<GpuEngine*> both = {&first, &second};
  for (GpuEngine* e : both) {
    e->recorder->rows.clear();
    EXPECT_TRUE(e->answer(request(history, 8)).admitted->resumed_idle);
  }
  EXPECT_EQ(first.recorder->rows, second.recorder->rows);
  expect_rows(*second.recorder, "restored");

  // The same hit from the pool, from host memory, and from disk after a restart.
  const std::string folder = testing::TempDir() + fmt::format("k3_gpu_disk_{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::vector<std::vector<std::pair<std::vector<int32_t>, std::vector<float>>>> rows;
  for (const std::string where : {"pool", "host", "disk"}) {
    const auto make = [&] {
      return std::make_unique<GpuEngine>(GetParam(), where == "pool" ? 60 : 16, [&](GpuEngine& g) {
        g.options.keep_idle = false;
        if (where == "host") g.cache_options.host_bytes = 200 * g.cache_options.shape.page_bytes;
        if (where != "disk") return;
        g.cache_options.disk_folder = folder;
        g.cache_options.disk_bytes = 200 * (g.cache_options.shape.page_bytes + 8192);
      });
    };
    auto e = make();
    e->answer(request(prompt, 1));
    if (where == "host") {
      for (uint64_t i = 0; i < 4; ++i) e->answer(request(ids(400, 50 + i), 1));
    }
    if (where == "disk") {
      ASSERT_TRUE(e->cache->flush().ok());
      e.reset();
      e = make();
    }
    e->recorder->rows.clear();
    const Outcome out = e->answer(request(joined(prompt, more), 8));
    EXPECT_GE(out.admitted->cached_tokens, 256) << where;
    EXPECT_EQ(out.admitted->fetched_bytes > 0, where != "pool") << where;
    EXPECT_EQ(e->cache->stats().tier_errors, 0);
    rows.push_back(e->recorder->rows);
    expect_rows(*e->recorder, "hit from " + where);
  }
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_EQ(rows[0], rows[2]);
  std::filesystem::remove_all(folder);
}

TEST_P(EngineOnGpu, AFaultIsItsRequestsAloneAndItsPagesAreZeroed) {
  GpuEngine e(GetParam(), 60);
  e.recorder->spoil_at = 153;
  Outcome bad, good;
  Request a = request(ids(150, 30), 10), b = request(ids(90, 31), 10);
  listen(a, bad);
  listen(b, good);
  e.core->submit(RequestId{1}, std::move(a));
  e.core->submit(RequestId{2}, std::move(b));
  e.run();
  EXPECT_TRUE(bad.summary->error.has_value());
  EXPECT_FALSE(good.summary->error.has_value());
  EXPECT_GT(e.cache->stats().quarantined_pages, 0);
  e.recorder->spoil_at = -1;
  std::erase_if(e.recorder->rows, [](const auto& row) { return !std::isfinite(row.second[7]); });
  expect_rows(*e.recorder, "beside a fault");
  EXPECT_EQ(e.answer(request(ids(150, 30), 2)).admitted->matched_tokens, 0);
}

// The same steps with and without: the recorder hides that the executor can choose.
TEST_P(EngineOnGpu, TokensChosenOnTheGpuAreThoseOfTheHost) {
  std::vector<Request> plain(6, request({}, 40));
  for (size_t i = 0; i < plain.size(); ++i) {
    plain[i].prompt = ids(40 + 60 * i, 60 + i);
    plain[i].sampling.temperature = i == 0 ? 0.0F : 1.0F;
    plain[i].sampling.seed = 7 + i;
    plain[i].ignore_eos = true;
  }
  plain[2].sampling.top_k = 40;
  plain[3].sampling.top_p = 0.8F;
  plain[4].sampling.frequency_penalty = 0.5F;
  plain[5].choices = 2;
  std::vector<std::vector<Outcome>> both;
  for (const bool on_gpu : {false, true}) {
    GpuEngine e(GetParam(), 120, [](GpuEngine& g) { g.options.max_running = 8; });
    EngineCore core(e.options, *e.cache, on_gpu ? static_cast<Executor&>(*e.executor) : *e.recorder);
    EXPECT_TRUE(e.executor->can_choose());
    std::vector<Outcome> outs(plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      Request r = plain[i];
      listen(r, outs[i]);
      core.submit(RequestId{1 + i}, std::move(r));
    }
    for (int i = 0; core.has_work(); ++i) {
      ASSERT_LT(i, 1000);
      core.step();
    }
    both.push_back(std::move(outs));
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_FALSE(both[1][i].summary->error.has_value());
    EXPECT_EQ(both[0][i].ids, both[1][i].ids) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, EngineOnGpu, testing::Values(64, 16));

// The engine with its thread: the pool that it takes by itself, and sizes that do not fit.
TEST(EngineWithGpu, SizesItsPoolAndServes) {
  if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
  EngineOptions o;
  o.dtypes = {DType::f32, DType::bf16, DType::bf16};
  o.ctx_tokens = kCtx;
  o.pool_bytes = int64_t{1} << 42;
  const auto refused = Engine::create(*gpu().model, gpu().pool, o);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  fmt::print("{}\n", refused.error().message);
  EngineOptions wrong = o;
  wrong.dtypes.latent = DType::f8_e4m3;
  EXPECT_EQ(Engine::create(*gpu().model, gpu().pool, wrong).error().code, Code::unsupported);
  for (const int64_t bytes : {int64_t{0}, int64_t{256} << 20}) {
    o.pool_bytes = bytes;
    const auto begin = std::chrono::steady_clock::now();
    const auto engine = Engine::create(*gpu().model, gpu().pool, o).value();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const DeviceMemory left = device_memory(Device{0}).value();
    fmt::print("pool of {:.2f} GiB made in {:.2f} s, {:.2f} GiB free\n", static_cast<double>(engine->options().pool_bytes) / 1073741824.0,
               seconds.count(), static_cast<double>(left.free_bytes) / 1073741824.0);
    EXPECT_TRUE(bytes == 0 || engine->options().pool_bytes == bytes);
    std::vector<std::future<RequestSummary>> done;
    for (uint64_t i = 0; i < 40; ++i) {
      Request r = request(ids(40 + 20 * i, i), 16);
      auto promise = std::make_shared<std::promise<RequestSummary>>();
      done.push_back(promise->get_future());
      r.callbacks.on_done = [promise](const RequestSummary& summary) { promise->set_value(summary); };
      ASSERT_TRUE(engine->submit(std::move(r)).ok());
    }
    for (auto& one : done) EXPECT_FALSE(one.get().error.has_value());
    EXPECT_TRUE(engine->device_status().ok());
  }
}

}  // namespace
}  // namespace k3::test
