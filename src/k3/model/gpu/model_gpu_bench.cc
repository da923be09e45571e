// Whole steps of random models on one GPU, weights made on the device: Kimi-Linear-48B, and layers of one rank of K3 (12 heads,
// an eighth of the shared experts and of the vocabulary, 112 local experts of 896, other routes dropped, no collectives).
// Decode steps are graphs, replayed as they are in serving; floors count every weight once (of the routed experts those that
// so many tokens touch on average), states read and written, latents read.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "k3/model/forward.h"
#include "k3/model/run/device_step.h"
#include "k3/model/run/stepper.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3 {
namespace {

using ops::cuda::Bench;
using ops::cuda::DeviceArray;
using ops::cuda::gpu_check;

constexpr int64_t kPageTokens = 64;

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.error().message);
    std::_Exit(3);
  }
  return *std::move(result);
}
void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.error().message);
  std::_Exit(3);
}

Config kimi_linear(int64_t layers, bool mxfp4) {
  Config c;
  c.vocab_size = 163840, c.hidden_size = 2304, c.num_hidden_layers = layers, c.num_attention_heads = 32;
  c.intermediate_size = 9216;
  c.kv_lora_rank = 512, c.qk_nope_head_dim = 128, c.qk_rope_head_dim = 64, c.v_head_dim = 128;
  c.first_k_dense_replace = 1;
  c.num_experts = 256, c.num_experts_per_token = 8, c.num_shared_experts = 1, c.moe_intermediate_size = 1024;
  c.routed_scaling_factor = 2.446;
  c.kda_num_heads = 32, c.kda_head_dim = 128;
  c.experts_mxfp4 = mxfp4;
  for (int64_t l = 0; l < layers; ++l) c.attention.push_back(l % 4 == 3 ? AttentionKind::mla : AttentionKind::kda);
  if (layers == 27) c.attention.back() = AttentionKind::mla;
  return c;
}

Config k3_rank(int64_t layers, AttentionKind kind) {
  Config c;
  c.vocab_size = 20480, c.hidden_size = 7168, c.num_hidden_layers = layers, c.num_attention_heads = 12;
  c.intermediate_size = 33792 / 8;
  c.hidden_act = Activation::situ;
  c.activation_situ_beta = 4, c.activation_situ_linear_beta = 25;
  c.q_lora_rank = 1536, c.kv_lora_rank = 512, c.qk_nope_head_dim = 128, c.qk_rope_head_dim = 64, c.v_head_dim = 128;
  c.mla_use_output_gate = true;
  c.num_experts = 896, c.num_experts_per_token = 16, c.num_shared_experts = 2, c.moe_intermediate_size = 3072;
  c.routed_expert_hidden_size = 3584, c.latent_moe_use_norm = true;
  c.attn_res_block_size = 12;
  c.kda_num_heads = 12, c.kda_head_dim = 128, c.use_full_rank_gate = true, c.gate_lower_bound = -5;
  c.experts_mxfp4 = true;
  c.attention.assign(static_cast<size_t>(layers), kind);
  return c;
}

// Weights of a model, random, in device memory.
class RandomModel {
 public:
  RandomModel(const Config& config, int64_t local_experts, int64_t shared_width, Stream stream)
      : config_(config), local_experts_(local_experts), shared_width_(shared_width), stream_(stream) {
    const int64_t hidden = config.hidden_size;
    set_.embed = matrix(config.vocab_size, hidden, 1);
    set_.lm_head = matrix(config.vocab_size, hidden);
    set_.final_norm = floats(hidden, 1);
    if (config.attn_res_block_size) set_.output_res_query = floats(hidden, 0.01F);
    set_.layers.resize(static_cast<size_t>(config.num_hidden_layers));
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) layer(l, set_.layers[static_cast<size_t>(l)]);
    must(synchronize(stream));
  }
  const Config& config() const { return config_; }
  const WeightSet& set() const { return set_; }
  int64_t dense_bytes() const { return dense_bytes_; }    // all but embedding and routed experts
  int64_t expert_bytes() const { return expert_bytes_; }  // of one
  int64_t local_experts() const { return local_experts_; }

 private:
  std::byte* take(int64_t bytes) {
    set_.arenas.push_back(must(Storage::allocate_on(Device{0}, bytes)));
    return set_.arenas.back().data();
  }
  void normal(void* to, int64_t count, float scale) {
    gpu_check(ops::cuda::fill_normal_bf16(to, count, ++seed_, scale, stream_).code, "fill");
  }
  ops::Weight matrix(int64_t rows, int64_t cols, float scale = 0) {
    ops::Weight w{.data = take(rows * cols * 2), .scheme = ops::Scheme::bf16, .rows = rows, .cols = cols};
    normal(const_cast<void*>(w.data), rows * cols, scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(cols)));
    if (scale == 0) dense_bytes_ += rows * cols * 2;
    return w;
  }
  Tensor floats(int64_t count, float value) {
    const std::vector<float> host(static_cast<size_t>(count), value);
    Tensor t(take(count * 4), DType::f32, {count});
    gpu_check(cudaMemcpy(t.data, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "copy");
    return t;
  }

  void kda(KdaWeights& w) {
    const int64_t hidden = config_.hidden_size, width = config_.kda_width(), dim = config_.kda_head_dim;
    for (ops::Weight* m : {&w.q, &w.k, &w.v}) *m = matrix(width, hidden);
    w.f_a = matrix(dim, hidden);
    w.f_b = matrix(width, dim);
    w.b = matrix(config_.kda_num_heads, hidden);
    w.o = matrix(hidden, width);
    if (config_.use_full_rank_gate) {
      w.g = matrix(width, hidden);
    } else {
      w.g_a = matrix(dim, hidden);
      w.g_b = matrix(width, dim);
    }
    for (Tensor* t : {&w.q_conv, &w.k_conv, &w.v_conv}) *t = floats(width * 4, 0.5F).reshape({width, 4});
    w.a_log = floats(config_.kda_num_heads, -1);
    w.dt_bias = floats(width, -2);
    w.o_norm = floats(dim, 1);
  }
  void mla(MlaWeights& w) {
    const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
    if (config_.q_lora_rank) {
      w.q_a = matrix(*config_.q_lora_rank, hidden);
      w.q_b = matrix(heads * 192, *config_.q_lora_rank);
      w.q_a_norm = floats(*config_.q_lora_rank, 1);
    } else {
      w.q = matrix(heads * 192, hidden);
    }
    w.kv_a = matrix(576, hidden);
    w.kv_a_norm = floats(512, 1);
    w.kv_b = matrix(heads * 256, 512);
    w.o = matrix(hidden, heads * 128);
    if (config_.mla_use_output_gate.value_or(false)) w.g = matrix(heads * 128, hidden);
  }
  void moe(MoeWeights& w) {
    const int64_t hidden = config_.hidden_size;
    w.router = matrix(config_.num_experts, hidden);
    w.router_bias = floats(config_.num_experts, 0);
    if (config_.routed_expert_hidden_size) {
      w.down = matrix(config_.expert_width(), hidden);
      w.up = matrix(hidden, config_.expert_width());
      w.latent_norm = floats(config_.expert_width(), 1);
    }
    w.shared = {matrix(shared_width_, hidden), matrix(shared_width_, hidden), matrix(hidden, shared_width_)};
    ops::ExpertBank& bank = w.bank;
    bank.scheme = config_.experts_mxfp4 ? ops::Scheme::mxfp4 : ops::Scheme::bf16;
    bank.experts = local_experts_;
    bank.width = config_.expert_width();
    bank.hidden = config_.moe_intermediate_size;
    const ops::cuda::ExpertBankBytes bytes = ops::cuda::expert_bank_bytes(bank);
    expert_bytes_ = (bytes.gate_up + bytes.down) / bank.experts;
    std::byte *gate_up = take(bytes.gate_up), *down = take(bytes.down), *factors = take(bytes.factors);
    bank.gate_up = gate_up;
    bank.down = down;
    bank.factors = reinterpret_cast<const float*>(factors);
    if (!config_.experts_mxfp4) {  // packing permutes numbers
      normal(gate_up, bytes.gate_up / 2, 0.03F);
      normal(down, bytes.down / 2, 0.03F);
      return;
    }
    const int64_t numbers = bank.width * bank.hidden;
    if (codes_.size() == 0) {
      codes_ = DeviceArray<uint16_t>(numbers * 3 / 4);
      scales_ = DeviceArray<uint8_t>(numbers / 32);
      normal(codes_.data(), codes_.size(), 1);  // any bits are codes
      gpu_check(cudaMemset(scales_.data(), 120, scales_.bytes()), "memset");
    }
    const auto weight = [&](int64_t i, int64_t rows, int64_t cols) {
      return ops::Weight{codes_.data() + i * numbers / 4, scales_.data(), ops::Scheme::mxfp4, rows, cols};
    };
    must(ops::cuda::pack_expert(bank, 0, weight(0, bank.hidden, bank.width), weight(1, bank.width, bank.hidden),
                                weight(2, bank.hidden, bank.width), stream_));
    for (int64_t e = 1; e < bank.experts; ++e) {
      for (auto [at, each] : {std::pair{gate_up, bytes.gate_up / bank.experts}, std::pair{down, bytes.down / bank.experts},
                              std::pair{factors, bytes.factors / bank.experts}}) {
        must(copy_async(at + e * each, at, each, stream_));
      }
    }
  }
  void layer(int64_t l, LayerWeights& w) {
    const int64_t hidden = config_.hidden_size;
    w.input_norm = floats(hidden, 1);
    w.post_attention_norm = floats(hidden, 1);
    if (config_.attn_res_block_size) {
      w.attention_res_query = floats(hidden, 0.01F);
      w.mlp_res_query = floats(hidden, 0.01F);
    }
    config_.is_kda(l) ? kda(w.kda) : mla(w.mla);
    if (config_.is_moe(l)) {
      moe(w.moe);
    } else {
      w.mlp = {matrix(config_.intermediate_size, hidden), matrix(config_.intermediate_size, hidden), matrix(hidden, config_.intermediate_size)};
    }
  }

  Config config_;
  int64_t local_experts_, shared_width_, dense_bytes_ = 0, expert_bytes_ = 0;
  Stream stream_;
  uint64_t seed_ = 0;
  DeviceArray<uint16_t> codes_;
  DeviceArray<uint8_t> scales_;
  WeightSet set_;
};

// Steps of `sequences` sequences with `history` cached tokens each.
class Steps {
 public:
  Steps(const RandomModel& model, int64_t sequences, int64_t history, int64_t tokens, Stream stream)
      : model_(model), stream_(stream), sequences_(sequences), history_(history), tokens_(tokens), workspace_(Device{0}) {
    const Config& c = model.config();
    state_ = ops::cuda::OpStateHandle(ops::cuda::new_op_state());
    const int64_t pages = (history + tokens + kPageTokens - 1) / kPageTokens;
    buffers_ = std::make_unique<DeviceStepBuffers>(must(DeviceStepBuffers::create(
        Device{0}, {.tokens = sequences * tokens, .sequences = sequences, .table_pages = pages, .exports = 0})));
    for (int64_t i = 0; i < sequences * pages; ++i) table_.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i < sequences; ++i) slots_.push_back(static_cast<int32_t>(i));
    const int64_t width = c.kda_width(), state = width * 128, conv = 9 * width;
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
      LayerCache cache;
      if (c.is_kda(l)) {
        cache.state.recurrent = take(sequences * state * 4);
        cache.state.recurrent_stride = state;
        cache.state.conv = take(sequences * conv * 2);
        cache.state.conv_dtype = DType::bf16;
        cache.state.conv_stride = conv;
        cache.state.slots = slots_.data();
        bytes_ += static_cast<double>(sequences * (state * 8 + conv * 4));
      } else {
        void* base = take(sequences * pages * kPageTokens * 576 * 2);
        gpu_check(ops::cuda::fill_normal_bf16(base, sequences * pages * kPageTokens * 576, 7, 1, stream).code, "fill");
        pages_.emplace_back();
        for (int64_t s = 0; s < sequences; ++s) {
          pages_.back().push_back({.base = base,
                                   .dtype = DType::bf16,
                                   .width = 576,
                                   .page_tokens = kPageTokens,
                                   .page_stride = kPageTokens * 576,
                                   .row_stride = 576,
                                   .block_table = table_.data() + s * pages});
        }
        cache.pages = pages_.back();
        bytes_ += static_cast<double>(sequences * (history + tokens) * 576 * 2);
      }
      caches_.push_back(cache);
    }
    flat_.clear();
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int64_t s = 0; s < sequences; ++s) {
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((static_cast<int64_t>(i) * 7919 + s * 104729 + 13) % c.vocab_size);
      flat_.add(ids, history, WantLogits::last);
    }
    logits_ = must(Storage::allocate_on(Device{0}, sequences * c.vocab_size * 4));
    ctx_.device = Device{0};
    ctx_.stream = stream;
    ctx_.gpu = state_.get();
    ctx_.workspace = &workspace_;
    ctx_.policy = ops::Policy::bf16;
    prepare();
  }

  double bytes() const {
    const Config& c = model_.config();
    const double share = static_cast<double>(c.num_experts_per_token) / static_cast<double>(c.num_experts);
    const double touched = static_cast<double>(model_.local_experts()) * (1 - std::pow(1 - share, static_cast<double>(sequences_ * tokens_)));
    int64_t moe_layers = 0;
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) moe_layers += c.is_moe(l);
    return bytes_ + static_cast<double>(model_.dense_bytes()) +
           static_cast<double>(moe_layers) * touched * static_cast<double>(model_.expert_bytes());
  }
  void stage() { must(buffers_->stage(flat_.batch(caches_), stream_)); }
  void compute() {
    Batch batch = flat_.batch(caches_);
    batch.caches = buffers_->caches();
    ctx_.step = &buffers_->step();
    const int64_t rows = sequences_;
    WeightSource source{.all = &model_.set()};
    must(forward(ctx_, model_.config(), source, batch, Tensor(logits_.data(), DType::f32, {rows, model_.config().vocab_size})));
    must(ops::cuda::take_error(state_.get()));
  }
  void check() const {
    std::vector<float> host(static_cast<size_t>(model_.config().vocab_size));
    gpu_check(cudaMemcpy(host.data(), logits_.data(), host.size() * 4, cudaMemcpyDeviceToHost), "logits");
    if (!std::all_of(host.begin(), host.end(), [](float x) { return std::isfinite(x); })) fmt::print("logits are not finite\n");
  }

 private:
  std::byte* take(int64_t bytes) {
    memory_.push_back(must(Storage::allocate_on(Device{0}, bytes)));
    return memory_.back().data();
  }
  void prepare() {
    const int64_t tokens = sequences_ * tokens_;
    if (tokens <= 16) return;
    const auto one = [&](const ops::Weight& w, DType out, int64_t rows) {
      if (w) must(ops::cuda::prepare_product(state_.get(), w, out, rows, stream_));
    };
    for (const LayerWeights& l : model_.set().layers) {
      for (const ops::Weight* w : {&l.kda.q, &l.kda.k, &l.kda.v, &l.kda.f_a, &l.kda.f_b, &l.kda.b, &l.kda.o, &l.kda.g, &l.kda.g_a,
                                   &l.kda.g_b, &l.mla.q, &l.mla.q_a, &l.mla.q_b, &l.mla.kv_a, &l.mla.kv_b, &l.mla.o, &l.mla.g,
                                   &l.mlp.gate, &l.mlp.up, &l.mlp.down, &l.moe.down, &l.moe.up, &l.moe.shared.gate,
                                   &l.moe.shared.up, &l.moe.shared.down}) {
        one(*w, DType::bf16, tokens);
      }
      one(l.moe.router, DType::f32, tokens);
    }
    one(model_.set().lm_head, DType::f32, sequences_);
  }

  const RandomModel& model_;
  Stream stream_;
  int64_t sequences_, history_, tokens_;
  double bytes_ = 0;
  Workspace workspace_;
  ops::cuda::OpStateHandle state_;
  std::unique_ptr<DeviceStepBuffers> buffers_;
  std::vector<Storage> memory_;
  std::vector<int32_t> table_, slots_;
  std::vector<std::vector<ops::PagedKv>> pages_;
  std::vector<LayerCache> caches_;
  FlatStep flat_;
  Storage logits_;
  ops::Ctx ctx_;
};

// Lines: ns of a whole step; graph_us is the time of one step in a graph of one.
void decode(Bench& bench, const RandomModel& model, const std::string& name, int64_t batch, int64_t history) {
  const std::string line = fmt::format("{} B={} at {}", name, batch, history);
  if (!bench.wants("model", line)) return;
  Steps steps(model, batch, history, 1, bench.stream());
  steps.stage();
  steps.compute();
  bench.run({.kernel = "model", .name = line, .bytes = steps.bytes(), .note = "a step"}, [&](cudaStream_t, int) { steps.compute(); }, 1);
  steps.check();
}

void prefill(Bench& bench, const RandomModel& model, const std::string& name, int64_t tokens) {
  const std::string line = fmt::format("{} prompt of {}", name, tokens);
  if (!bench.wants("model", line)) return;
  Steps steps(model, 1, 0, tokens, bench.stream());
  steps.stage();
  steps.compute();
  bench.run({.kernel = "model", .name = line, .bytes = steps.bytes(), .note = "a step"}, [&](cudaStream_t, int) { steps.compute(); }, 0);
  steps.check();
}

void family(Bench& bench, const std::string& name, const Config& config, int64_t local_experts, int64_t shared_width,
            const std::vector<int64_t>& batches) {
  const auto any = [&] {
    if (bench.wants("model", fmt::format("{} prompt of 8192", name))) return true;
    return std::any_of(batches.begin(), batches.end(), [&](int64_t b) { return bench.wants("model", fmt::format("{} B={} at 4096", name, b)); });
  };
  if (!any()) return;
  const RandomModel model(config, local_experts, shared_width, bench.stream());
  for (const int64_t b : batches) decode(bench, model, name, b, 4096);
  prefill(bench, model, name, 8192);
}

const ops::cuda::BenchRegistration registration("model", [](Bench& bench) {
  family(bench, "kimi-linear 27 layers", kimi_linear(27, false), 256, 1024, {1, 8, 32, 128});
  family(bench, "kimi-linear mxfp4 27 layers", kimi_linear(27, true), 256, 1024, {1, 32, 128});
  family(bench, "kimi-linear 5 layers", kimi_linear(5, false), 256, 1024, {1, 8, 32});
  family(bench, "k3 rank 8 kda", k3_rank(8, AttentionKind::kda), 112, 768, {1, 8, 64});
  family(bench, "k3 rank 8 mla", k3_rank(8, AttentionKind::mla), 112, 768, {1, 8, 64});
});

}  // namespace
}  // namespace k3
