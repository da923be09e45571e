// Internal to ops/gemm. What the row kernel is launched with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace k3::ops::cuda {

struct RowsPart {
  const uint8_t* w = nullptr;
  const uint8_t* scales = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  int rows = 0;
  int tile_begin = 0;  // first row tile among those of all parts
  bool y_f32 = false, accumulate = false;
};

struct Rows {
  const void* x = nullptr;
  int64_t x_stride = 0;
  int tokens = 0, in = 0, part_count = 0, tiles = 0;
  int token_groups = 0;  // of 8 * token_tiles tokens
  int k_warps_log2 = 0, cluster_log2 = 0;
  int flags = 0;
  RowsPart parts[6] = {};
};

int gemm_probe_launch(void* y, int blocks, int kind, bool dependent, cudaStream_t stream);

enum class RowsCodec { bf16, bf16_unaligned, mxfp4, i8 };

// x_aligned: rows of x may be read 16 bytes at a time.
int gemm_rows_launch(const Rows& rows, RowsCodec codec, bool x_aligned, int token_tiles, bool dependent, cudaStream_t stream);

}  // namespace k3::ops::cuda
