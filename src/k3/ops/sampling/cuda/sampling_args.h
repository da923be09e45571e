// Internal to ops/sampling. What the CUDA kernels take; sampling_cuda.h explains it. No CUDA header, no Result.
#pragma once

#include "k3/ops/sampling/cuda/sampling_rule.h"

namespace k3::ops::cuda {

struct Sampling {
  int64_t rows = 0, vocab = 0;
  const void* logits = nullptr;  // [rows, vocab]
  int64_t stride = 0;
  bool logits_bf16 = false;
  const SampleRow* params = nullptr;  // [rows]; null: greedy
  const uint32_t* mask = nullptr;  // [rows, mask_stride] words; bit id % 32 of word id / 32: the id may come; null: all may
  int64_t mask_stride = 0;

  int32_t* ids = nullptr;      // [rows]
  uint32_t* flags = nullptr;   // [rows] or null
  float* logprobs = nullptr;   // [rows] of the chosen ids, or null
  int top = 0;                 // most probable ids a row, at most 20
  int32_t* top_ids = nullptr;  // [rows, top]
  float* top_logprobs = nullptr;
  bool dependent = false;
};

int sampling_most_cluster();  // blocks that can share a row: 16, or 8
int sampling_launch(const Sampling& s, int cluster, int64_t slice, int shared_bytes, void* stream);
int argmax_launch(const Sampling& s, int cluster, int64_t slice, void* stream);

}  // namespace k3::ops::cuda
