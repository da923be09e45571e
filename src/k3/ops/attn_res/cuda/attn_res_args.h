// Internal to ops/attn_res. What the CUDA kernels of a site take; attn_res_cuda.h explains it. No CUDA header, no Result.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct AttnResSite {
  int64_t tokens = 0, hidden = 0;
  int blocks = 0;  // banked rows

  const void* bank = nullptr;  // [blocks, T, hidden]
  int64_t bank_block_stride = 0, bank_stride = 0;
  const void* prefix = nullptr;  // [T, hidden]; null: no P before this site
  int64_t prefix_stride = 0;
  const void* delta = nullptr;  // added to it; null: nothing
  int64_t delta_stride = 0;
  void* prefix_out = nullptr;  // where the sum goes; may be prefix; null: nowhere
  int64_t prefix_out_stride = 0;
  const void* rest = nullptr;  // [T, hidden]: what rounding cut off the prefix; null: nothing
  void* rest_out = nullptr;    // what rounding cuts off the sum; may be rest; null: P is the rounded sum
  int64_t rest_stride = 0;     // of both
  void* bank_out = nullptr;  // a second place: the new row of the bank when a block ends
  int64_t bank_out_stride = 0;

  const float* query = nullptr;  // [hidden] FP32
  const void* norm = nullptr;    // [hidden]; null: the mix is not normalised
  bool norm_bf16 = false;
  float eps = 1e-5F, norm_eps = 1e-5F;

  // Merge: the one bank row is y1 of the inter-block part, with its score and mass.
  const float *inter_max = nullptr, *inter_sum = nullptr;  // [T]

  void* out = nullptr;
  int64_t out_stride = 0;      // of both
  void* out_rest = nullptr;    // what rounding cuts off out; may be no other array here; null: nowhere

  bool dependent = false;  // programmatic launch: only delta may come from the kernel right before
};

enum class AttnResKernel { small, large, any, few };

struct AttnResPlan {
  AttnResKernel kernel = AttnResKernel::any;
  int cluster = 1;  // small: blocks a token
  int threads = 0;
  int grid = 0;
  int slots = 0;  // large: rows of the ring
  int shared_bytes = 0;
};

// The part over the banked rows of all sites of a block at once.
struct AttnResInter {
  int64_t tokens = 0, hidden = 0;
  int blocks = 0, sites = 0;
  const void* bank = nullptr;  // [blocks, T, hidden]
  int64_t bank_block_stride = 0, bank_stride = 0;
  const float* query = nullptr;  // [sites, hidden]
  float eps = 1e-5F;
  void* y1 = nullptr;  // [sites, T, hidden]
  int64_t y1_site_stride = 0, y1_stride = 0;
  float *m1 = nullptr, *d1 = nullptr;  // [sites, T]
  void* workspace = nullptr;           // attn_res_inter_workspace_bytes(T), aligned to 16
};

int attn_res_inter_launch(const AttnResInter& a, void* stream);

int attn_res_plain_launch(const AttnResSite& site, void* stream);  // any GPU
int attn_res_site_launch(const AttnResSite& site, const AttnResPlan& plan, void* stream);

}  // namespace k3::ops::cuda
