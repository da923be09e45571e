// Internal to ops/mla. The arguments of mla_any_dims.h, apart from it because its .cu file includes them.
#pragma once

#include "k3/ops/mla/cuda/mla_args.h"

struct CUstream_st;

namespace k3::ops::cuda {

struct MlaDims {
  int heads = 0, nope = 0, rope = 0, value = 0, rank = 0;
};

// pages.page_tokens may be any number; rows of rank + rope.
struct LatentAppendAny {
  LatentAppend append;  // widths as below in place of 512 + 64
  int rank = 0, rope = 0;
};

struct MlaAny {
  MlaDims dims;
  const void* q = nullptr;     // [T, H, nope + rope]
  int64_t q_stride = 0;        // of a token
  const void* kv_b = nullptr;  // [H * (nope + value), rank], rows of a head: [nope keys | values]
  const int32_t* lengths = nullptr;  // [B] device: cached tokens of a request, those of this step included
  const int32_t* offsets = nullptr;  // [B + 1] device: its query tokens
  int64_t batch = 0, tokens = 0;
  LatentPages pages;
  void* out = nullptr;  // [T, H * value]
  int64_t out_stride = 0;
};

int latent_append_any_launch(const LatentAppendAny& args, CUstream_st* stream);
int mla_any_dims_launch(const MlaAny& args, CUstream_st* stream);

}  // namespace k3::ops::cuda
