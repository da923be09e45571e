// Internal to ops/mla. What host code and kernels share.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "k3/ops/mla/cuda/mla_args.h"

namespace k3::ops::cuda {

inline constexpr int kLatent = 512, kLatentRow = 576, kMlaKey = 192, kMlaNope = 128, kMlaRope = 64, kMlaValue = 128;
inline constexpr int kMlaMaxWorkers = 256;  // blocks; as kMlaMaxBlocks (mla_config.h)
inline constexpr float kLog2e = 1.44269504F, kLn2 = 0.69314718F;
inline constexpr float kMlaScale = 0.07216878365F;  // 192^-0.5

// Parts and the list of split requests in the workspace, by worker.
struct MlaParts {
  float* acc = nullptr;    // [2 * blocks, row_tile * 512], in the order of the accumulators
  float2* sums = nullptr;  // [2 * blocks, row_tile] (m, l)
  int2* splits = nullptr;  // [blocks] (request and row tile, number of parts), (-1, 0): none begins here
};

struct MlaDecodeLaunch {
  CUtensorMap query, pages;
  MlaDecode args;
  MlaDecodeConfig config;
  MlaParts parts;
  int box_tokens = 0;  // rows of a box of the pages' map
};

struct MlaFusedLaunch {
  CUtensorMap query, pages, keys;  // keys: of kv_b, boxes of 128 rows and 64 columns
  MlaFused args;
  MlaFusedConfig config;
  void* query_rows = nullptr;           // [rows, 576]
  float2* sums = nullptr;               // [blocks, row_tile] (m, l)
  float* acc = nullptr;                 // [blocks, row_tile, 512]
  int32_t* counters = nullptr;
  int box_tokens = 0;
};

int latent_append_launch(const LatentAppend& args, cudaStream_t stream);
int latent_gather_launch(const LatentGather& args, cudaStream_t stream);
int mla_absorb_launch(const MlaAbsorb& args, cudaStream_t stream);
int mla_values_launch(const MlaValues& args, cudaStream_t stream);
int mla_decode_sm90_launch(const MlaDecodeLaunch& args, cudaStream_t stream);
int mla_decode_halves_launch(const MlaDecodeLaunch& args, cudaStream_t stream);  // config.halves
int mla_fused_launch(const MlaFusedLaunch& args, cudaStream_t stream);
int mla_merge_launch(const MlaDecodeLaunch& args, cudaStream_t stream);
int mla_decode_any_launch(const MlaDecode& args, cudaStream_t stream);

struct MlaPrefillLaunch {
  CUtensorMap q, expanded, shared_keys;
  int head_group = 1;  // heads that are computed at a time
  MlaPrefill args;
};
int mla_prefill_sm90_launch(const MlaPrefillLaunch& args, cudaStream_t stream);
int mla_prefill_any_launch(const MlaPrefill& args, cudaStream_t stream);

}  // namespace k3::ops::cuda
