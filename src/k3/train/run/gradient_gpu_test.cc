// Loss and gradients of whole models on a GPU against the CPU in FP32 on the same BF16 matrices.
//
// Tolerance: each op's result and gradient is within 8e-3 of its norm (ops/cuda/train_ops_gpu_test.cc), and a gradient of the first layer has
// come through about ten ops a layer on the way up and as many back; for five layers and independent errors 8e-3 sqrt(100) = 8e-2 of each
// parameter's norm. Which experts a token takes flips with rounding where two scores lie close, and then everything behind it
// changes as a whole; so models here take all their experts, or have biases that leave no choice.
#include "k3/train/run/gradient.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/base/rng.h"
#include "k3/model/init.h"
#include "k3/ops/cuda/gpu_test_util.h"

namespace k3::train {
namespace {

using ops::cuda::from_bf16;
using ops::cuda::gpu_check;

struct Model {
  const char* name;
  const char* json;  // of text_config
  int64_t experts, topk;
  std::vector<int64_t> offsets;
};

const char* const kMini = R"("hidden_size": 384, "num_hidden_layers": 5, "vocab_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4,
  "intermediate_size": 1536, "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05,
  "q_lora_rank": 192, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_output_gate": true,
  "num_shared_experts": 2, "moe_intermediate_size": 192, "routed_expert_hidden_size": 192, "latent_moe_use_norm": true,
  "routed_scaling_factor": 1.0, "attn_res_block_size": 3, "linear_attn_config": {"num_heads": 4, "head_dim": 128, "short_conv_kernel_size": 4,
  "full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "gate_lower_bound": -5.0, "use_full_rank_gate": true})";
const char* const kK3e = R"("hidden_size": 128, "num_hidden_layers": 5, "vocab_size": 512, "num_attention_heads": 1, "num_key_value_heads": 1,
  "intermediate_size": 256, "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05,
  "q_lora_rank": 96, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_output_gate": true,
  "num_shared_experts": 2, "moe_intermediate_size": 64, "routed_expert_hidden_size": 64, "latent_moe_use_norm": true,
  "routed_scaling_factor": 1.0, "attn_res_block_size": 3, "linear_attn_config": {"num_heads": 3, "head_dim": 128, "short_conv_kernel_size": 4,
  "full_attn_layers": [4, 5], "kda_layers": [1, 2, 3], "gate_lower_bound": -5.0, "use_full_rank_gate": true})";
const char* const kKlb = R"("hidden_size": 96, "num_hidden_layers": 5, "vocab_size": 384, "num_attention_heads": 2, "num_key_value_heads": 2,
  "intermediate_size": 256, "hidden_act": "silu", "rms_norm_eps": 1e-05, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "num_shared_experts": 1, "moe_intermediate_size": 32, "routed_scaling_factor": 2.446,
  "linear_attn_config": {"num_heads": 2, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": [4, 5], "kda_layers": [1, 2, 3]})";
const char* const kOdd = R"("hidden_size": 72, "num_hidden_layers": 4, "vocab_size": 200, "num_attention_heads": 3, "num_key_value_heads": 3,
  "intermediate_size": 144, "hidden_act": "situ", "activation_situ_beta": 4.0, "rms_norm_eps": 1e-05, "q_lora_rank": 40, "kv_lora_rank": 40,
  "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 24, "mla_use_output_gate": true, "num_shared_experts": 1,
  "moe_intermediate_size": 64, "routed_expert_hidden_size": 32, "latent_moe_use_norm": true, "routed_scaling_factor": 1.0,
  "attn_res_block_size": 2, "linear_attn_config": {"num_heads": 2, "head_dim": 40, "short_conv_kernel_size": 4, "full_attn_layers": [3, 4],
  "kda_layers": [1, 2], "gate_lower_bound": -5.0, "use_full_rank_gate": true})";

Config config_of(const Model& m) {
  const std::string json = R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear", )" + std::string(m.json) +
                           R"(, "mla_use_nope": true, "num_experts": )" + std::to_string(m.experts) + R"(, "num_experts_per_token": )" +
                           std::to_string(m.topk) + R"(, "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "use_grouped_topk": true,
    "num_expert_group": 1, "topk_group": 1, "moe_layer_freq": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc"}})";
  Config config = parse_config(json, m.name).value();
  settle_random(config);
  return config;
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t seed) {
  const Rng rng(seed, 3);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  return ids;
}

// Weights with BF16 matrices on the host, the same on the GPU, gradients of both.
struct Pair {
  ThreadPool pool{2};
  TrainWeights host, device;
  Storage host_grads, device_grads;
  std::unique_ptr<Gradient> cpu, gpu;

  explicit Pair(const Config& config) : host(make_train_weights(config, DType::f32).value()), device(make_train_weights(config, DType::f32, Device{0}).value()) {
    draw_train_weights(host, 11, pool);
    for (const TrainTensor& t : host.tensors) {
      // Queries of AttnRes begin at zero: others show more.
      const Tensor values = host.tensor(t);
      if (t.name.find("res_proj") == std::string::npos) continue;
      for (int64_t i = 0; i < t.count; ++i) values.f32()[i] = 0.02F * static_cast<float>(i % 13 - 6);
    }
    if (config.num_experts_per_token < config.num_experts) {
      for (const LayerWeights& layer : host.set.layers) {
        const Tensor bias = layer.moe.router_bias;
        for (int64_t e = 0; bias && e < bias.size(); ++e) bias.f32()[e] = e % (config.num_experts / config.num_experts_per_token) == 1 ? 2.0F : 0.0F;
      }
    }
    for_each_matrix(host.set, [](ops::Weight& w) {
      auto* const values = static_cast<float*>(const_cast<void*>(w.data));
      for (int64_t i = 0; i < w.rows * w.cols; ++i) values[i] = round_to_bf16(values[i]);
    });
    host_grads = Storage::allocate(host.elements * 4).value();
    device_grads = Storage::allocate_on(Device{0}, host.elements * 4).value();
    cpu = std::make_unique<Gradient>(host, Tensor(host_grads.data(), DType::f32, {host.elements}), pool);
    gpu = std::make_unique<Gradient>(device, Tensor(device_grads.data(), DType::f32, {host.elements}), pool);
    const Status opened = gpu->open();
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    const Status copied = copy_train_weights(gpu->ctx(), host, device);
    EXPECT_TRUE(copied.ok()) << copied.error().message;
  }
  std::vector<float> fetched() const {
    std::vector<float> out(static_cast<size_t>(host.elements));
    gpu_check(cudaMemcpy(out.data(), device_grads.data(), out.size() * 4, cudaMemcpyDeviceToHost), "copy");
    return out;
  }
};

class GradientGpu : public testing::TestWithParam<Model> {};

TEST_P(GradientGpu, LossAndGradientsAreThoseOfTheCpu) {
  K3_NEEDS_GPU();
  const Config config = config_of(GetParam());
  Pair pair(config);
  const int64_t tokens = GetParam().offsets.back();
  const std::vector<int32_t> ids = random_ids(tokens, config.vocab_size, 5);
  std::vector<int32_t> targets = random_ids(tokens, config.vocab_size, 6);
  targets[3] = -1;
  const MicroBatch batch{ids, targets, GetParam().offsets};
  const double scale = 1.0 / static_cast<double>(tokens);
  const ops::CrossEntropy loss = pair.cpu->add(batch, scale);
  EXPECT_EQ(loss.tokens, pair.gpu->add(batch, scale).tokens);
  const Result<double> nats = pair.gpu->take_nats();
  ASSERT_TRUE(nats.ok()) << nats.error().message;
  EXPECT_NEAR(loss.nats, *nats, 2e-3 * loss.nats);
  EXPECT_NEAR(*nats, pair.gpu->loss(batch).nats, 1e-6 * *nats);
  fmt::print("  {}: {} tokens, {:.5f} and {:.5f} nats a token\n", GetParam().name, loss.tokens, loss.nats * scale, *nats * scale);
  const std::vector<float> got = pair.fetched();
  const auto* const wanted = reinterpret_cast<const float*>(pair.host_grads.data());
  double worst = 0;
  for (const TrainTensor& t : pair.host.tensors) {
    if (t.family->optimizer == OptimizerGroup::none) continue;
    double error = 0, norm = 0;
    for (int64_t i = t.at; i < t.at + t.count; ++i) {
      const double w = static_cast<double>(wanted[i]), d = w - static_cast<double>(got[static_cast<size_t>(i)]);
      error += d * d;
      norm += w * w;
    }
    const double ratio = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    EXPECT_LE(ratio, 8e-2) << t.name << " of norm " << std::sqrt(norm);
    worst = std::max(worst, ratio);
  }
  fmt::print("  worst ratio {:.3e}\n", worst);
}

// The same bits twice, and with regions computed again.
TEST_P(GradientGpu, TheSameStepGivesTheSameBits) {
  K3_NEEDS_GPU();
  const Config config = config_of(GetParam());
  Pair pair(config);
  const int64_t tokens = GetParam().offsets.back();
  const std::vector<int32_t> ids = random_ids(tokens, config.vocab_size, 5), targets = random_ids(tokens, config.vocab_size, 6);
  std::vector<float> first;
  for (const bool recompute : {false, false, true}) {
    pair.gpu->tape().recompute = recompute;
    gpu_check(cudaMemset(pair.device_grads.data(), 0, static_cast<size_t>(pair.device_grads.size_bytes())), "zero");
    pair.gpu->add({ids, targets, GetParam().offsets}, 0.01);
    ASSERT_TRUE(pair.gpu->take_nats().ok());
    const std::vector<float> got = pair.fetched();
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * 4)) << recompute;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GradientGpu,
                         testing::Values(Model{"k3-mini", kMini, 8, 8, {0, 100, 260, 300}}, Model{"k3-mini-routed", kMini, 32, 4, {0, 300}},
                                         Model{"k3-e", kK3e, 4, 4, {0, 1, 65, 65, 200}}, Model{"kl-b", kKlb, 4, 4, {0, 90, 150}},
                                         Model{"odd", kOdd, 5, 5, {0, 33, 70}}),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace k3::train
