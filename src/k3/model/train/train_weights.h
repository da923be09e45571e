// Purpose:  the weights of a model in training: one arena of parameters in the layers' order, and the views that layers want.
// Shapes:   those of weights.h; every parameter unpacked.
// Units:    elements.
// Memory:   TrainWeights owns the arena. On a GPU it lies there, in FP32, with a BF16 copy of all parameters beside it, which is what
//           matrices of `set` are then; vectors are the arena's. Each tensor begins at a multiple of 16 elements; gaps are zero and stay zero. Routed
//           experts lie one after another, w1 w2 w3 of each, so each of the three has one stride.
// Threads:  none while it is made; then that of its users.
// Errors:   those below are of host weights: values are made and read there. exhausted: no memory; invalid_argument: a config without text model sizes, an 8-bit trunk; load: what load_weights says.
// Source:   model.md 2.2; params.h (optimizer groups).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "k3/model/params.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"
#include "k3/ops/ctx.h"

namespace k3 {

struct TrainTensor {
  const ParamFamily* family = nullptr;
  std::string name;
  std::vector<int64_t> dims;
  int64_t layer = -1, expert = -1;
  int64_t at = 0;     // first element in the arena
  int64_t count = 0;  // elements
};

struct TrainWeights {
  Config config;
  DType dtype = DType::f32;  // or f64
  Device device;
  Storage arena;
  Storage compute;  // on a GPU: BF16 [elements]
  int64_t elements = 0;
  std::vector<TrainTensor> tensors;  // in the order of for_each_param
  WeightSet set;                     // views into the arena
  std::vector<Fold> folds;  // their queries are made anew in every forward (fold_query)

  Tensor all() const { return Tensor(arena.data(), dtype, {elements}); }
  Tensor computed() const { return Tensor(compute.data(), DType::bf16, {elements}); }
  Tensor tensor(const TrainTensor& t) const { return all().slice(t.at, t.at + t.count); }
  const TrainTensor* find(std::string_view name) const;
};

// Zeroed; settle the config before (settle_random, or resolve_by_tensors of a checkpoint).
Result<TrainWeights> make_train_weights(const Config& config, DType dtype, Device device = {});
// Of one config, on whatever devices; waits. `ctx` is that of the GPU among them.
Status copy_train_weights(const ops::Ctx& ctx, const TrainWeights& from, const TrainWeights& to);
// unsupported: a size that no kernel of training on a GPU takes.
Status check_trainable_on_gpu(const Config& config);
// Every matrix of the layers and tables, routed experts included.
void for_each_matrix(WeightSet& set, const std::function<void(ops::Weight&)>& visit);
// The values that `k3 init` would write, before any rounding.
void draw_train_weights(TrainWeights& weights, uint64_t seed, ThreadPool& pool);
// From a checkpoint of the same shape (packed experts are decoded).
Status read_train_weights(const Checkpoint& checkpoint, TrainWeights& weights);
// In the released layout of the config: experts packed when it says so.
Status write_train_weights(const TrainWeights& weights, const std::string& folder, int64_t shards);

}  // namespace k3
