// A step of training at k3-mini's shape (131,072 tokens in micro-batches of 65,536, sequences of 1,024): tokens a second, and where the time
// goes, op by op (events behind every launch; the sum is a little longer than the step).
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "k3/base/rng.h"
#include "k3/model/init.h"
#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/train/run/gradient.h"
#include "k3/train/run/optimizer.h"
#include "k3/train/run/train_flops.h"

namespace k3::train {
namespace {

const char* const kMini = R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear", "hidden_size": 384, "num_hidden_layers": 9,
  "vocab_size": 12288, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 1536, "hidden_act": "situ",
  "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05, "q_lora_rank": 192, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true, "mla_use_output_gate": true, "num_experts": 32,
  "num_experts_per_token": 4, "num_shared_experts": 2, "moe_intermediate_size": 192, "routed_expert_hidden_size": 192,
  "latent_moe_use_norm": true, "routed_scaling_factor": 1.0, "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
  "use_grouped_topk": true, "num_expert_group": 1, "topk_group": 1, "moe_layer_freq": 1, "first_k_dense_replace": 1,
  "topk_method": "noaux_tc", "attn_res_block_size": 3, "linear_attn_config": {"num_heads": 4, "head_dim": 128, "short_conv_kernel_size": 4,
  "full_attn_layers": [4, 8, 9], "kda_layers": [1, 2, 3, 5, 6, 7], "gate_lower_bound": -5.0, "use_full_rank_gate": true}}})";

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    fmt::print(stderr, "train: {}\n", result.error().message);
    std::exit(3);
  }
  return *std::move(result);
}
void must(const Status& status) {
  if (!status.ok()) {
    fmt::print(stderr, "train: {}\n", status.error().message);
    std::exit(3);
  }
}

struct Batches {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> offsets;
};

// Text that can be learned: each token follows from the one before, but for one in eight.
Batches make_batch(int64_t sequences, int64_t length, int64_t vocab, uint64_t seed) {
  Batches b;
  const Rng rng(seed, 1);
  for (int64_t t = 0; t < sequences * length; ++t) {
    const uint32_t bits = rng.bits(static_cast<uint64_t>(t));
    const int64_t next = b.tokens.empty() || bits % 8 == 0 ? (bits >> 8) % static_cast<uint32_t>(vocab) : (b.tokens.back() * 31 + 7) % vocab;
    b.tokens.push_back(static_cast<int32_t>(next));
  }
  b.targets.assign(b.tokens.begin() + 1, b.tokens.end());
  b.targets.push_back(-1);
  for (int64_t s = 0; s <= sequences; ++s) b.offsets.push_back(s * length);
  return b;
}

struct Run {
  ThreadPool pool{4};
  TrainWeights weights;
  Storage memory;
  Tensor grads;
  std::unique_ptr<Gradient> gradient;
  std::unique_ptr<Optimizer> optimizer;

  explicit Run(const Config& config) : weights(must(make_train_weights(config, DType::f32, Device{0}))) {
    TrainWeights host = must(make_train_weights(config, DType::f32));
    draw_train_weights(host, 1, pool);
    memory = must(Storage::allocate_on(Device{0}, weights.elements * 4));
    grads = Tensor(memory.data(), DType::f32, {weights.elements});
    gradient = std::make_unique<Gradient>(weights, grads, pool);
    must(gradient->open());
    must(copy_train_weights(gradient->ctx(), host, weights));
    optimizer = std::make_unique<Optimizer>(must(Optimizer::create(weights, {})));
    optimizer->watch(gradient->tape());
  }
  double step(const std::vector<Batches>& batches, int64_t number, StepReport* report = nullptr) {
    double tokens = 0;
    for (const Batches& b : batches) tokens += static_cast<double>(b.tokens.size());
    for (const Batches& b : batches) gradient->add({b.tokens, b.targets, b.offsets}, 1 / tokens);
    const StepReport done = must(optimizer->step(gradient->ctx(), grads, 1, number));
    if (report != nullptr) *report = done;
    return must(gradient->take_nats()) / tokens;
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void bench(int64_t micro_batches, int64_t sequences, int64_t length) {
  Config config = must(parse_config(kMini, "k3-mini"));
  settle_random(config);
  Run run(config);
  std::vector<Batches> batches;
  for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(make_batch(sequences, length, config.vocab_size, static_cast<uint64_t>(m) + 1));
  const auto tokens = static_cast<double>(micro_batches * sequences * length);
  StepReport report;
  int64_t number = 0;
  const double first_loss = run.step(batches, ++number);
  run.step(batches, ++number);
  constexpr int kSteps = 8;
  const auto start = std::chrono::steady_clock::now();
  double loss = 0;
  for (int i = 0; i < kSteps; ++i) loss = run.step(batches, ++number, &report);
  const double seconds = seconds_since(start) / kSteps;
  const TrainFlops flops = train_flops(config);
  const DeviceMemory left = must(device_memory(Device{0}));
  fmt::print("{{\"kernel\": \"train\", \"case\": \"k3-mini {} x {} x {}\", \"ms\": {:.2f}, \"tokens_s\": {:.0f}, \"mfu\": {:.3f}, \"memory_gb\": {:.1f}, "
             "\"loss\": [{:.4f}, {:.4f}], \"norm\": {:.3f}}}\n",
             micro_batches, sequences, length, seconds * 1e3, tokens / seconds, flops.per_token * tokens / seconds / 989e12,
             static_cast<double>(left.total_bytes - left.free_bytes) / 1e9, first_loss, loss, report.gradient_norm);
  must(run.gradient->ctx().gpu->start_profile(run.gradient->ctx().stream));
  run.step(batches, ++number);
  const auto profile = must(run.gradient->ctx().gpu->take_profile());
  double sum = 0;
  for (const auto& one : profile) sum += one.seconds;
  fmt::print("{:>34} {:>6} {:>9} {:>6}\n", "op", "count", "ms", "%");
  for (const auto& one : profile) fmt::print("{:>34} {:>6} {:>9.3f} {:>6.1f}\n", one.what, one.count, one.seconds * 1e3, 100 * one.seconds / sum);
  fmt::print("{:>34} {:>6} {:>9.3f}\n", "all", "", sum * 1e3);
  std::fflush(stdout);
}

const ops::cuda::BenchRegistration registration("train", [](ops::cuda::Bench& b) {
  if (b.wants("train", "k3-mini")) bench(2, 64, 1024);
});

}  // namespace
}  // namespace k3::train
