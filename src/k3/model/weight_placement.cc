#include "k3/model/weight_placement.h"

namespace k3 {
namespace {

constexpr int64_t kGrain = 4;  // rows; the kernels' own differ a little, pages are larger

bool place_stream(const std::vector<ops::Weight>& weights, const NumaPlan& plan) {
  std::vector<StreamPart> parts;
  for (const ops::Weight& w : weights) {
    if (!w) continue;  // not in memory
    // Placement changes where the bytes lie, not what they are.
    parts.push_back({const_cast<void*>(w.data), w.rows, ops::scheme_row_bytes(w.scheme, w.cols), kGrain});
  }
  return bind_stream(plan, parts);
}

bool spread(const ops::Weight& w, const NumaPlan& plan) {
  if (!w) return true;
  return interleave(plan, const_cast<void*>(w.data), w.rows * ops::scheme_row_bytes(w.scheme, w.cols));
}

void add_stream(std::vector<std::vector<ops::Weight>>& streams, std::initializer_list<const ops::Weight*> weights) {
  std::vector<ops::Weight> stream;
  for (const ops::Weight* w : weights) {
    if (*w) stream.push_back(*w);
  }
  if (!stream.empty()) streams.push_back(std::move(stream));
}

}  // namespace

std::vector<std::vector<ops::Weight>> weight_streams(const LayerWeights& layer) {
  std::vector<std::vector<ops::Weight>> streams;
  const KdaWeights& kda = layer.kda;
  add_stream(streams, {&kda.q, &kda.k, &kda.v, &kda.f_a, &kda.b, &kda.g, &kda.g_a});
  const MlaWeights& mla = layer.mla;
  add_stream(streams, {&mla.q, &mla.q_a, &mla.kv_a, &mla.g});
  const MoeWeights& moe = layer.moe;
  add_stream(streams, {&moe.router, &moe.down, &moe.shared.gate, &moe.shared.up});
  add_stream(streams, {&layer.mlp.gate, &layer.mlp.up});
  for (const ops::Weight* alone :
       {&kda.f_b, &kda.g_b, &kda.o, &mla.q_b, &mla.o, &moe.up, &moe.shared.down, &layer.mlp.down}) {
    add_stream(streams, {alone});
  }
  return streams;
}

bool place_weights(const WeightSet& weights, const NumaPlan& plan) {
  if (!plan.several_memories()) return true;
  bool granted = place_stream({weights.lm_head}, plan);
  for (const LayerWeights& layer : weights.layers) {
    for (const auto& stream : weight_streams(layer)) granted &= place_stream(stream, plan);
    granted &= spread(layer.mla.kv_b, plan);
    for (const ops::ExpertWeights& expert : layer.moe.experts) {
      for (const ops::Weight* w : {&expert.w1, &expert.w2, &expert.w3}) granted &= spread(*w, plan);
    }
  }
  return granted;
}

}  // namespace k3
