#include "k3/model/step_cost.h"

#include <algorithm>
#include <cmath>

#include "k3/base/check.h"

namespace k3 {
namespace {

constexpr double kChunk = 16;  // of KDA's chunk form

// A layer's and head's FLOPs a token in chunks of C: the two triangles and their inverse, the products with the state.
double chunk_head_flops(double d) {
  return 4 * kChunk * d + 4 * (std::log2(kChunk) - 1) * kChunk * kChunk + 4 * kChunk * d + 2 * kChunk * d + 6 * d * d +
         d * d / kChunk;
}

double component_bytes(const ModelSummary& summary, Component component) {
  const auto found = summary.components.find(component);
  return found == summary.components.end() ? 0 : static_cast<double>(found->second.size_bytes);
}

}  // namespace

double distinct_experts(int64_t experts, int64_t topk, int64_t tokens) {
  if (experts == 0 || tokens == 0) return 0;
  const auto e = static_cast<double>(experts);
  return e * (1 - std::pow(1 - static_cast<double>(topk) / e, static_cast<double>(tokens)));
}

CostModel cost_model(const Config& config, const ModelSummary& summary, int64_t cache_element_bytes) {
  CostModel m;
  m.experts = summary.moe_layers > 0 ? config.num_experts : 0;
  m.topk = summary.moe_layers > 0 ? config.num_experts_per_token : 0;
  const double routed = component_bytes(summary, Component::routed_experts);
  m.expert_bytes = m.experts > 0 ? routed / static_cast<double>(m.experts) : 0;
  // A tied table is the head as well, and active then.
  m.head_bytes = component_bytes(summary, config.tie_word_embeddings ? Component::embedding : Component::lm_head);
  m.trunk_bytes = static_cast<double>(summary.active_bytes) - m.expert_bytes * static_cast<double>(m.topk) - m.head_bytes;
  m.state_bytes = static_cast<double>(summary.cache_bytes_per_sequence(cache_element_bytes));
  m.latent_bytes = static_cast<double>(summary.cache_bytes_per_token(cache_element_bytes));
  m.head_flops = 2.0 * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  m.trunk_flops = summary.matrix_flops_per_token - m.head_flops;
  m.recurrence_flops = summary.recurrence_flops_per_token;
  m.chunk_flops = static_cast<double>(summary.kda_layers * config.kda_num_heads) *
                  chunk_head_flops(static_cast<double>(config.kda_head_dim));
  m.absorbed_pair_flops = summary.attention_flops_per_context;
  m.expanded_pair_flops = 2.0 * static_cast<double>(summary.mla_layers * config.num_attention_heads *
                                                    (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim));
  return m;
}

StepCost decode_cost(const CostModel& m, int64_t batch, int64_t history, int64_t steps, std::optional<double> touched) {
  K3_CHECK(batch >= 0 && history >= 0 && steps >= 0, "decode of {} x {} steps at {}", batch, steps, history);
  const auto b = static_cast<double>(batch), n = static_cast<double>(steps);
  // Step i sees the history, the steps before it and itself.
  const double pairs = b * (n * static_cast<double>(history) + n * (n + 1) / 2);
  StepCost c;
  c.weight_bytes = n * (m.trunk_bytes + m.head_bytes + m.expert_bytes * touched.value_or(distinct_experts(m.experts, m.topk, batch)));
  c.cache_bytes = n * b * 2 * m.state_bytes + pairs * m.latent_bytes;
  c.matrix_flops = n * b * (m.trunk_flops + m.head_flops);
  c.recurrence_flops = n * b * m.recurrence_flops;
  c.attention_flops = pairs * m.absorbed_pair_flops;
  return c;
}

StepCost prefill_cost(const CostModel& m, int64_t batch, int64_t history, int64_t tokens, int64_t chunk_tokens,
                      std::optional<double> touched) {
  K3_CHECK(batch >= 0 && history >= 0 && tokens >= 0 && chunk_tokens >= 1, "prefill of {} x {} tokens in chunks of {}",
           batch, tokens, chunk_tokens);
  const auto b = static_cast<double>(batch), n = static_cast<double>(tokens), p = static_cast<double>(history);
  StepCost c;
  c.matrix_flops = b * (n * m.trunk_flops + (tokens > 0 ? m.head_flops : 0));
  c.recurrence_flops = b * n * m.chunk_flops;
  c.attention_flops = b * (n * p + n * (n + 1) / 2) * m.expanded_pair_flops;
  const int64_t slice = std::max<int64_t>(1, chunk_tokens / std::max<int64_t>(1, batch));
  for (int64_t done = 0; done < tokens && batch > 0; done += slice) {
    const int64_t now = std::min(slice, tokens - done);
    c.weight_bytes += m.trunk_bytes + m.expert_bytes * touched.value_or(distinct_experts(m.experts, m.topk, batch * now));
    c.cache_bytes += b * (2 * m.state_bytes + (p + static_cast<double>(done + now)) * m.latent_bytes);
  }
  if (tokens > 0 && batch > 0) c.weight_bytes += m.head_bytes;
  return c;
}

Floor floor_of(const StepCost& cost, double read_bytes_per_second, double flops_per_second) {
  const double reading = cost.bytes() / read_bytes_per_second, computing = cost.flops() / flops_per_second;
  return {std::max(reading, computing), reading >= computing};
}

}  // namespace k3
