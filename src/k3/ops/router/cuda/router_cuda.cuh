// Internal to ops/router.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace k3::ops::cuda {

struct RouterCuda {
  const float* logits = nullptr;
  const float* bias = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  int tokens = 0, experts = 0, topk = 1;
  bool renormalise = true;
  float scale = 1;
  int local_first = 0, local_count = 0;
};

int router_plain_launch(const RouterCuda& args, CUstream_st* stream);  // any GPU
int router_launch(const RouterCuda& args, CUstream_st* stream);

}  // namespace k3::ops::cuda
