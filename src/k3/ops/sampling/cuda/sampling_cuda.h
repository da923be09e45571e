// Purpose:  choose the next token of every row on the GPU.
// Shapes:   logits [rows, V] f32 or bf16, rows strided, V up to 262,144; parameters, masks and results [rows] in device
//           memory.
// Units:    as sampling.h: temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch their filter off.
// Memory:   ids (and what else is asked for) are overwritten; the logits stay.
// Threads:  asynchronous on the stream; no workspace.
// Errors:   K3_CHECK on shapes. A row with NaN or +infinity, or without a token, gets id -1 and its flag; logprobs are
//           then NaN.
// Source:   the filters of sampling.h, in its order, after penalties and biases (which the host or an earlier kernel
//           adds): mask, temperature, top_k, top_p, min_p, draw. Where float order could matter the rule is
//           sampling_rule.h: weights by one FP32 exp, masses are integers (weight * 2^44, cut off), so sums are exact.
//           top_k orders by (logit, lower id), top_p by (weight, lower id); the id drawn is the first, in ascending
//           order, whose running mass exceeds uniform * mass. Bit for bit sample_rule() below. Against Sampler, which
//           sums in double, the choice can differ only where the point falls within 1e-6 of a border. Greedy takes the
//           lowest id on ties. logprobs are of the raw logits (temperature 1, no mask), within 1e-5.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/sampling/cuda/sampling_args.h"

namespace k3::ops::cuda {

CudaStatus sampling_cuda(const Sampling& s, Stream stream);

inline constexpr int64_t kMostSampleVocab = 262144;

// Blocks a row of the greedy kernel.
int argmax_cluster(int64_t rows, int64_t vocab, const DeviceInfo& device);

// The same choice on the host (id -1: as above), by sorting.
int32_t sample_rule(std::span<const float> logits, const SampleRow& row, std::span<const uint32_t> mask = {});

}  // namespace k3::ops::cuda
