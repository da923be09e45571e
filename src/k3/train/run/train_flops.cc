#include "k3/train/run/train_flops.h"

#include "k3/model/params.h"

namespace k3::train {

TrainFlops train_flops(const Config& config) {
  TrainFlops out;
  Config text = config;
  text.vision.reset();
  double met = 0;
  for_each_param(text, [&](const ParamFamily& family, int64_t, int64_t) {
    const int64_t count = element_count(family.shape(text));
    out.parameters += count;
    double share = 1;
    if (family.scope == ParamScope::expert) share = static_cast<double>(text.num_experts_per_token) / static_cast<double>(text.num_experts);
    if (family.id == ParamId::embed_tokens) share = text.tie_word_embeddings ? 1 : 0;
    met += share * static_cast<double>(count);
  });
  out.active_parameters = static_cast<int64_t>(met);
  out.per_token = 6 * met;
  return out;
}

}  // namespace k3::train
