// Models whose routed experts lie in host memory: logits bit for bit those of the same steps with everything on the GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/model/init.h"
#include "k3/model/model.h"
#include "k3/model/stream/expert_stats.h"

namespace k3 {
namespace {

constexpr int64_t kCtx = 1024, kChunk = 512, kSequences = 2, kMost = 80;

// K3's kinds of layers; 24 experts of a layer. The quantization says whether experts are MXFP4.
std::string config_text(bool mxfp4) {
  const std::string quantization =
      R"json(,"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized",
"config_groups":{"group_0":{"format":"mxfp4-pack-quantized","targets":["Linear"],"input_activations":null,"output_activations":null,
"weights":{"num_bits":4,"type":"float","group_size":32,"strategy":"group","symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"}}},
"ignore":[]})json";
  return std::string(R"json({"model_type":"kimi_linear","dtype":"bfloat16","hidden_size":256,
"num_hidden_layers":5,"vocab_size":1024,"rms_norm_eps":1e-05,"hidden_act":"situ","num_attention_heads":4,"num_key_value_heads":4,
"q_lora_rank":96,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"mla_use_nope":true,"num_experts":24,
"num_experts_per_token":4,"num_shared_experts":2,"moe_intermediate_size":64,"intermediate_size":512,"routed_scaling_factor":1.0,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","use_grouped_topk":true,"num_expert_group":1,"topk_group":1,
"moe_layer_freq":1,"first_k_dense_replace":1,"num_nextn_predict_layers":0,"bos_token_id":0,"eos_token_id":1,
"tie_word_embeddings":false,"linear_attn_config":{"num_heads":4,"head_dim":128,"short_conv_kernel_size":4,
"full_attn_layers":[4,5],"kda_layers":[1,2,3],"gate_lower_bound":-5.0,"use_full_rank_gate":true},
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"mla_use_output_gate":true,"routed_expert_hidden_size":128,
"latent_moe_use_norm":true,"attn_res_block_size":3,"max_position_embeddings":65536,"initializer_range":0.06,
"topk_method":"noaux_tc")json") +
         (mxfp4 ? quantization : "") + "}";
}

class LargerThanGpu : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
    folder_ = testing::TempDir() + (GetParam() ? "k3_larger_mxfp4" : "k3_larger_bf16");
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(write_file(folder_ + "/config.json", config_text(GetParam())).ok());
    config_ = load_config(folder_).value();
    ASSERT_TRUE(write_random_checkpoint(config_, folder_, 3, 1, pool_, {}).ok());
    bytes_ = gpu_model_bytes(config_, kChunk);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  PlanRequest sizes() const {
    PlanRequest r;
    r.ctx_tokens = kCtx;
    r.sequences = kSequences;
    r.chunk_tokens = kChunk;
    r.logit_rows = kChunk;
    return r;
  }
  // A --vram that leaves so many slots and does not shorten steps.
  int64_t vram_for(int64_t slots) const {
    GpuPlanRequest r{sizes(), int64_t{1} << 40};
    for (int64_t vram = int64_t{512} << 20; vram < int64_t{4} << 30; vram += bytes_.expert / 2) {
      r.run.limit_bytes = vram;
      const auto plan = plan_gpu(config_, bytes_, r);
      if (plan.ok() && !plan->everything && plan->chunk_tokens == kChunk && plan->store.slots == slots) return vram;
    }
    K3_CHECK(false, "no budget has {} slots", slots);
  }
  Model load(std::optional<int64_t> vram, std::optional<int64_t> ram = {}, const std::string& stats = {}) {
    LoadOptions options;
    options.device = Device{0};
    options.vram_bytes = vram;
    options.ram_bytes = ram;
    options.run = sizes();
    options.stream.expert_stats = stats;
    Result<Model> model = Model::load(folder_, pool_, options);
    K3_CHECK(model.ok(), "{}", model.error().message);
    return *std::move(model);
  }

  // Prompts in steps of both kinds, single tokens (captured and not), two sequences at once, mixed lengths: all logits.
  std::vector<float> logits(const Model& model) {
    RunnerOptions options;
    options.sequences = kSequences;
    options.ctx_tokens = kCtx;
    options.chunk_tokens = kChunk;
    options.policy = ops::Policy::bf16;
    Result<Runner> runner = Runner::create(model, pool_, options);
    K3_CHECK(runner.ok(), "{}", runner.error().message);
    const Rng rng(7, 5);
    uint64_t at = 0;
    std::vector<int32_t> ids[2];
    std::vector<float> out;
    const auto step = [&](int64_t first, int64_t second) {
      const int64_t counts[2] = {first, second};
      std::vector<StepInput> inputs;
      for (int32_t s = 0; s < 2; ++s) {
        auto& mine = ids[s];
        mine.clear();
        for (int64_t i = 0; i < counts[s]; ++i) mine.push_back(static_cast<int32_t>(rng.uniform(at++) * 1024));
        if (!mine.empty()) inputs.push_back({s, mine, StepInput::Logits::all});
      }
      Result<Tensor> rows = runner->step(inputs);
      K3_CHECK(rows.ok(), "{}", rows.error().message);
      out.insert(out.end(), rows->f32(), rows->f32() + rows->size());
    };
    step(300, 0);
    for (int i = 0; i < 12; ++i) step(1, 0);
    step(40, 0);
    step(0, 9);
    step(1, 400);
    for (int i = 0; i < 20; ++i) step(1, 1);
    step(3, 1);
    step(200, 5);
    for (int i = 0; i < 6; ++i) step(0, 1);
    EXPECT_LE(runner->ctx().workspace->peak_bytes(), gpu_scratch_bytes(config_, kChunk, kChunk, kSequences * kCtx, kSequences));
    return out;
  }

  ThreadPool pool_{2};
  std::string folder_;
  Config config_;
  GpuModelBytes bytes_;
};

// Says where the first difference is.
testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " logits instead of " << b.size();
  if (std::memcmp(a.data(), b.data(), a.size() * 4) == 0) return testing::AssertionSuccess();
  size_t first = a.size(), different = 0, no_numbers = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], 4) != 0) first = std::min(first, i), ++different;
    no_numbers += std::isnan(a[i]);
  }
  return testing::AssertionFailure() << different << " of " << a.size() << " logits differ, the first in row " << first / 1024 << " ("
                                     << a[first] << ", not " << b[first] << "); " << no_numbers << " are NaN";
}

TEST_P(LargerThanGpu, SameLogitsWhateverTheBudget) {
  const Model whole = load({});
  ASSERT_FALSE(whole.gpu_plan());
  const std::vector<float> want = logits(whole);
  ASSERT_TRUE(same_bits(logits(whole), want));
  const int64_t all = 4 * 24;
  for (const int64_t slots : {int64_t{0}, int64_t{3}, int64_t{20}, all / 2, kMost}) {
    const Model model = load(vram_for(slots));
    ASSERT_TRUE(model.gpu_plan() && !model.gpu_plan()->everything);
    ASSERT_EQ(model.gpu_plan()->store.slots, slots);
    EXPECT_GE(model.gpu_plan()->trunk_bytes, model.weights().size_bytes);
    EXPECT_TRUE(same_bits(logits(model), want)) << slots << " slots";
    const ops::ExpertStoreStats once = model.expert_store_stats().value().value();
    EXPECT_TRUE(same_bits(logits(model), want)) << slots << " slots, which others have now";
    const ops::ExpertStoreStats twice = model.expert_store_stats().value().value();
    EXPECT_EQ(twice.wanted, 2 * once.wanted);
    EXPECT_EQ(once.missing == once.wanted, slots == 0) << once.missing;
    EXPECT_EQ(once.admitted > 0, slots > 0);
    // Long steps bring what has no slot in every layer: two of them.
    EXPECT_EQ(once.staged_bytes, 2 * (all - slots) * once.expert_bytes);
    fmt::print("{} slots: {} of {} over the bus, {} kept\n", slots, once.missing, once.wanted, once.admitted);
  }
}

TEST_P(LargerThanGpu, LittleHostMemoryKeepsWholeLayersOnTheGpu) {
  const std::vector<float> want = logits(load({}));
  const int64_t layer = 24 * bytes_.expert, vram = vram_for(kMost);
  GpuPlanRequest r{sizes(), int64_t{1} << 40};
  r.run.limit_bytes = vram;
  const Model model = load(vram, 2 * layer + layer / 2 + plan_gpu(config_, bytes_, r)->staging_bytes);
  EXPECT_EQ(model.gpu_plan()->whole_layers, 2);
  EXPECT_EQ(model.gpu_plan()->store.layers, 2);
  EXPECT_TRUE(same_bits(logits(model), want));
}

// What one run counted decides which experts have slots when the next begins.
TEST_P(LargerThanGpu, ExpertStatsAreCountedAndLoadedFirst) {
  const std::string path = folder_ + "/stats.json";
  const std::vector<float> want = logits(load({}));
  {
    const Model model = load(vram_for(20), {}, path);
    EXPECT_TRUE(same_bits(logits(model), want));
    ASSERT_TRUE(model.save_expert_stats().ok());
  }
  const std::vector<uint64_t> counts = read_expert_stats(path, 5, 24).value();
  const auto tokens = static_cast<uint64_t>(want.size() / 1024);  // each has a row of logits
  for (int64_t l = 0; l < 5; ++l) {
    uint64_t sum = 0;
    for (int64_t e = 0; e < 24; ++e) sum += counts[static_cast<size_t>(l * 24 + e)];
    EXPECT_EQ(sum, l == 0 ? 0 : 4 * tokens) << l;
  }
  const Model model = load(vram_for(20), {}, path);
  ops::ExpertStore& store = *model.weights().experts;
  for (int64_t l = 0; l < 4; ++l) {
    const ops::ExpertStore::Layer layer = store.layer(l);
    std::vector<int32_t> slot(24);
    ASSERT_TRUE(copy_async(slot.data(), layer.slot, 24 * 4, nullptr).ok() && synchronize(nullptr).ok());
    uint64_t least_kept = ~uint64_t{0}, most_left = 0;
    int64_t kept = 0;
    for (int64_t e = 0; e < 24; ++e) {
      const uint64_t n = counts[static_cast<size_t>((l + 1) * 24 + e)];
      const bool has = slot[static_cast<size_t>(e)] >= 0;
      kept += has ? 1 : 0;
      (has ? least_kept : most_left) = has ? std::min(least_kept, n) : std::max(most_left, n);
    }
    EXPECT_EQ(kept, layer.slot_count);
    EXPECT_GE(least_kept, most_left) << l;
  }
  EXPECT_TRUE(same_bits(logits(model), want));
  ASSERT_TRUE(model.save_expert_stats().ok());
  const std::vector<uint64_t> both = read_expert_stats(path, 5, 24).value();
  for (size_t i = 0; i < both.size(); ++i) EXPECT_EQ(both[i], 2 * counts[i]);
  EXPECT_FALSE(Model::load(folder_, pool_, [&] {
                 LoadOptions options;
                 options.device = Device{0};
                 options.vram_bytes = vram_for(20);
                 options.run = sizes();
                 options.stream.expert_stats = folder_ + "/none/stats.json";
                 return options;
               }()).ok());
}

TEST_P(LargerThanGpu, TwoRunnersTakeTurns) {
  const Model model = load(vram_for(20));
  const std::vector<float> want = logits(load({}));
  std::vector<float> got[2];
  std::thread other([&] { got[0] = logits(model); });
  got[1] = logits(model);
  other.join();
  EXPECT_TRUE(same_bits(got[0], want));
  EXPECT_TRUE(same_bits(got[1], want));
}

INSTANTIATE_TEST_SUITE_P(Experts, LargerThanGpu, testing::Bool(), [](const auto& p) { return p.param ? "mxfp4" : "bf16"; });

}  // namespace
}  // namespace k3
