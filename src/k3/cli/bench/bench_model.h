// What `k3 bench` measures: a model of a checkpoint, or one of random weights, and the tokens it is fed.
#pragma once

#include <vector>

#include "k3/cli/common.h"
#include "k3/model/summary.h"

namespace k3::cli {

// One of MODEL and --random, and nothing that belongs to the other.
Status check_bench_model(const BenchOptions& options);

Result<LoadedModel> bench_model(const BenchOptions& options, Device device, const ComputeOptions& compute, const RunNeeds& needs);

// Bytes as the checkpoint stores them: a trunk of F32 or 8 bits and unpacked experts have other floors than the released
// layout. Of random weights those of the released layout.
Result<ModelSummary> bench_summary(const BenchOptions& options, const Model& model);

// "models/k3-mini", "random kimi-linear-48b.json, experts=mxfp4, rank 0 of tp 8, ep 8".
std::string bench_model_name(const BenchOptions& options);

// Ids spread over the vocabulary, so that experts are chosen as widely as text chooses them; other ids for each sequence.
std::vector<std::vector<int32_t>> random_ids(int64_t sequences, int64_t tokens, int64_t vocab, uint64_t stream);

}  // namespace k3::cli
