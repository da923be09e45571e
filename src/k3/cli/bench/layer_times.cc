#include "k3/cli/bench/layer_times.h"

#include <algorithm>

#include "k3/cli/bench/bench_model.h"
#include "k3/cli/bench/route_counter.h"
#include "k3/model/layers.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/cuda/launch.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/elementwise/elementwise.h"

namespace k3::cli {
namespace {

double component_bytes(const ModelSummary& s, Component c) {
  const auto found = s.components.find(c);
  return found == s.components.end() ? 0 : static_cast<double>(found->second.size_bytes);
}
double component_params(const ModelSummary& s, Component c) {
  const auto found = s.components.find(c);
  return found == s.components.end() ? 0 : static_cast<double>(found->second.params);
}

class LayerTimer {
 public:
  LayerTimer(Runner& runner, const ModelSummary& summary, const BenchCase& test, const GpuCeilings& ceilings, int64_t repeats)
      : runner_(runner), config_(runner.model().config()), set_(runner.model().weights()), summary_(summary), test_(test),
        ceilings_(ceilings), repeats_(repeats) {
    const bool decode = test.phase == Phase::decode;
    tokens_ = test.batch * (decode ? 1 : test.tokens);
    // What one step adds to the weights, of all layers of a kind: the floors of `k3 bench` split by kind.
    const CostModel cost = cost_model(config_, summary, 2);
    step_ = decode ? decode_cost(cost, test.batch, test.depth, 1, 0.0) : prefill_cost(cost, test.batch, test.depth, test.tokens, tokens_, 0.0);
    states_ = static_cast<double>(test.batch) * 2 * cost.state_bytes;
  }

  Result<std::vector<LayerFigure>> run() {
    K3_TRY_ASSIGN(input_, Storage::allocate_on(runner_.model().device(), tokens_ * config_.hidden_size * 2));
    K3_TRY(ops::cuda::to_status(ops::cuda::fill_normal_bf16(input_.data(), tokens_ * config_.hidden_size, 17, 1.0F, nullptr), "inputs"));
    K3_TRY(synchronize(nullptr));
    K3_TRY(kda());
    K3_TRY(mla());
    K3_TRY(moe());
    K3_TRY(mlp());
    K3_TRY(sites());
    K3_TRY(head());
    return std::move(figures_);
  }

 private:
  // For each layer: its weights, number, input and output.
  using Layer = std::function<Status(const ops::Ctx&, const Batch&, const LayerWeights&, int64_t l, const Tensor& x, const Tensor& out)>;

  Tensor input() const { return {input_.data(), DType::bf16, {tokens_, config_.hidden_size}}; }
  double floor(double bytes, double flops) const {
    return std::max(bytes / ceilings_.copy_bytes_per_second, flops / ceilings_.gemm_flops_per_second);
  }

  Result<double> time(const Stepper::Part& part, int64_t repeats) {
    const int64_t of_each = tokens_ / test_.batch;
    const auto ids = random_ids(test_.batch, of_each, config_.vocab_size, 3);
    std::vector<StepInput> inputs;
    for (size_t s = 0; s < ids.size(); ++s) inputs.push_back({static_cast<int32_t>(s), ids[s], StepInput::Logits::last});
    return runner_.time_part(inputs, part, repeats);
  }

  Status add(const std::string& kind, int64_t layers, const Stepper::Part& part, double bytes, double flops, double experts = 0) {
    LayerFigure f;
    f.kind = kind;
    f.layers = layers;
    f.experts = experts;
    f.floor_seconds = floor(bytes, flops);
    f.read_bound = bytes / ceilings_.copy_bytes_per_second >= flops / ceilings_.gemm_flops_per_second;
    K3_TRY_ASSIGN(f.seconds, time(part, repeats_));
    figures_.push_back(std::move(f));
    return {};
  }

  // All layers that `is` picks, one after another, each with its own weights.
  template <class Is>
  Stepper::Part each(const Is& is, const Layer& layer) const {
    return [this, is, layer](const ops::Ctx& ctx, const Batch& batch) -> Status {
      const Tensor out = ctx.workspace->tensor({tokens_, config_.hidden_size}, ctx.activation());
      for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
        if (is(l)) K3_TRY(layer(ctx, batch, set_.layers[static_cast<size_t>(l)], l, input(), out));
      }
      return {};
    };
  }

  double products(std::initializer_list<Component> components) const {
    double params = 0;
    for (const Component c : components) params += component_params(summary_, c);
    return 2 * params * static_cast<double>(tokens_);
  }

  Status kda() {
    if (summary_.kda_layers == 0) return {};
    const auto part = each([this](int64_t l) { return config_.is_kda(l); },
                           [this](const ops::Ctx& ctx, const Batch& batch, const LayerWeights& w, int64_t l, const Tensor& x, const Tensor& out) -> Status {
                             kda_layer(ctx, config_, w.kda, batch, batch.caches[static_cast<size_t>(l)], {.out = x}, out);
                             return {};
                           });
    return add("KDA", summary_.kda_layers, part, component_bytes(summary_, Component::kda) + states_,
               products({Component::kda}) + step_.recurrence_flops);
  }

  Status mla() {
    if (summary_.mla_layers == 0) return {};
    const auto part = each([this](int64_t l) { return config_.is_mla(l); },
                           [this](const ops::Ctx& ctx, const Batch& batch, const LayerWeights& w, int64_t l, const Tensor& x, const Tensor& out) -> Status {
                             mla_layer(ctx, config_, w.mla, batch, batch.caches[static_cast<size_t>(l)], {.out = x}, out);
                             return {};
                           });
    return add("MLA", summary_.mla_layers, part, component_bytes(summary_, Component::mla) + step_.cache_bytes - states_,
               products({Component::mla}) + step_.attention_flops);
  }

  Status moe() {
    if (summary_.moe_layers == 0) return {};
    const auto part = each([this](int64_t l) { return config_.is_moe(l); },
                           [this](const ops::Ctx& ctx, const Batch&, const LayerWeights& w, int64_t l, const Tensor& x, const Tensor& out) {
                             return moe_layer(ctx, config_, w.moe, l, nullptr, {.out = x}, out);
                           });
    double experts = 0;
    {
      RouteCounter counter(runner_.ctx(), config_);
      K3_TRY_ASSIGN([[maybe_unused]] const double none, time(part, 0));
      K3_TRY(counter.end_step());
      K3_TRY_ASSIGN(experts, counter.mean());
    }
    const double routed = component_bytes(summary_, Component::routed_experts), here = static_cast<double>(config_.local_expert_count());
    double bytes = routed * experts / here;
    for (const Component c : {Component::router, Component::latent, Component::shared_experts}) bytes += component_bytes(summary_, c);
    const double share = static_cast<double>(config_.num_experts_per_token) / static_cast<double>(config_.num_experts);
    return add("MoE", summary_.moe_layers, part, bytes,
               products({Component::router, Component::latent, Component::shared_experts}) + share * products({Component::routed_experts}), experts);
  }

  Status mlp() {
    if (summary_.dense_layers == 0) return {};
    const auto part = each([this](int64_t l) { return !config_.is_moe(l); },
                           [this](const ops::Ctx& ctx, const Batch&, const LayerWeights& w, int64_t, const Tensor& x, const Tensor& out) -> Status {
                             mlp_layer(ctx, activation_of(config_), w.mlp, {.out = x}, out);
                             return {};
                           });
    return add("dense MLP", summary_.dense_layers, part, component_bytes(summary_, Component::dense_mlp), products({Component::dense_mlp}));
  }

  // forward() without its layers: two sites a layer. A site reads delta, the prefix and the banked rows and writes the prefix and
  // the mix; one that starts a block writes the bank, too, and the layer's output replaces the prefix.
  Status sites() {
    const bool res = config_.attn_res_block_size.has_value();
    const int64_t block = config_.attn_res_block_size.value_or(1);
    const int64_t blocks = res ? (config_.num_hidden_layers + block - 1) / block : 0;
    const auto part = [this, res, block, blocks](const ops::Ctx& ctx, const Batch&) -> Status {
      const auto scratch = [&] { return ctx.workspace->tensor({tokens_, config_.hidden_size}, ctx.activation()); };
      const Tensor prefix = scratch(), mixed = scratch(), rest = ctx.activation() == DType::bf16 ? scratch() : Tensor();
      bool exact = true;
      const Tensor bank = ctx.workspace->tensor({blocks, tokens_, config_.hidden_size}, ctx.activation());
      ops::copy(ctx, input(), prefix);
      int64_t banked = 0;
      for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
        const LayerWeights& w = set_.layers[static_cast<size_t>(l)];
        const bool starts = res && l % block == 0;
        const auto site = [&](const Tensor& query, const Tensor& norm, bool starts_block, const Tensor& delta) {
          ops::attn_res_site(ctx, {.delta = delta,
                                   .prefix = prefix,
                                   .rest = rest,
                                   .exact = exact,
                                   .bank_to = starts_block ? bank.at(banked) : Tensor(),
                                   .blocks = bank.slice(0, banked),
                                   .query = query,
                                   .norm = norm,
                                   .eps = static_cast<float>(config_.rms_norm_eps),
                                   .out = mixed});
          if (starts_block) ++banked;
          exact = starts_block || (exact && !delta);
        };
        site(w.attention_res_query, w.input_norm, starts, l > 0 ? input() : Tensor());
        site(w.mlp_res_query, w.post_attention_norm, false, starts ? Tensor() : input());
      }
      return {};
    };
    double rows = 2;  // the copy into the prefix
    int64_t banked = 0;
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      const bool starts = res && l % block == 0;
      rows += (l > 0 ? 4 : 2) + static_cast<double>(banked) + (starts ? 1 : 0);  // prefix and mix; delta read and prefix written
      banked += starts ? 1 : 0;
      rows += (starts ? 2 : 4) + static_cast<double>(banked);
    }
    const double bytes = rows * static_cast<double>(tokens_ * config_.hidden_size) * 2;
    return add(res ? "AttnRes, norms" : "residual, norms", config_.num_hidden_layers, part, bytes, 0);
  }

  Status head() {
    const auto part = [this](const ops::Ctx& ctx, const Batch& batch) -> Status {
      const auto rows = static_cast<int64_t>(batch.logit_rows.size());
      const Tensor last = ctx.workspace->tensor({rows, config_.hidden_size}, ctx.activation());
      ops::gather_rows(ctx, input(), batch.logit_rows, last);
      const Tensor logits = ctx.workspace->tensor({rows, config_.vocab_size});
      return runner_.model().source().lm_head(ctx, last, logits);
    };
    const Component table = config_.tie_word_embeddings ? Component::embedding : Component::lm_head;
    const auto rows = static_cast<double>(test_.batch);
    return add("head", 1, part, component_bytes(summary_, table) + rows * static_cast<double>(config_.vocab_size) * 4,
               2 * component_params(summary_, table) * rows);
  }

  Runner& runner_;
  const Config& config_;
  const WeightSet& set_;
  const ModelSummary& summary_;
  const BenchCase& test_;
  const GpuCeilings& ceilings_;
  int64_t repeats_, tokens_ = 0;
  StepCost step_;
  double states_ = 0;
  Storage input_;
  std::vector<LayerFigure> figures_;
};

}  // namespace

Result<std::vector<LayerFigure>> layer_times(Runner& runner, const ModelSummary& summary, const BenchCase& test,
                                             const GpuCeilings& ceilings, int64_t repeats) {
  return LayerTimer(runner, summary, test, ceilings, repeats).run();
}

}  // namespace k3::cli
