// Purpose:  writes a random checkpoint of a config in the released layout.
// Shapes:   by the parameter table.
// Units:    bytes.
// Memory:   one tensor at a time.
// Threads:  values are drawn in parallel; a value depends only on (seed, tensor name, index).
// Errors:   invalid_argument for a config that cannot be stored; those of CheckpointWriter.
// Source:   model.md 2; init rules: matrices normal(0, initializer_range), norms 1, A_log 0 (model.md 3.3), AttnRes
//           projections 0 (an even mix), dt_bias so that the initial decay of a head's channels spans fast to slow.
#pragma once

#include <string>
#include <vector>

#include "k3/base/threads.h"
#include "k3/format/checkpoint.h"
#include "k3/model/params.h"
#include "k3/model/weights.h"

namespace k3 {

// Cuts the tensors (in checkpoint order) into `shards` files of about equal bytes; an expert is never split.
std::vector<std::vector<TensorSpec>> shard_plan(const std::vector<ParamTensor>& tensors, int64_t shards);

// A random model has every part that its config does not switch off.
void settle_random(Config& config);

// The values that a tensor of this family and name begins with, as many as `out` has.
void draw_param(const Config& config, const ParamFamily& family, std::string_view name, uint64_t seed, ThreadPool& pool,
                std::vector<float>& out);

// Gives `values` (of the logical shape, as many as ParamTensor::params) those of a parameter.
using ParamValues = std::function<void(const ParamTensor& tensor, std::vector<float>& values)>;
// Any values in the released layout; experts are quantised when the config says so.
Status write_checkpoint(const Config& config, const std::string& folder, int64_t shards, const ParamValues& values_of,
                        const LoadProgress& progress);

Status write_random_checkpoint(const Config& config, const std::string& folder, uint64_t seed, int64_t shards,
                               ThreadPool& pool, const LoadProgress& progress);

}  // namespace k3
