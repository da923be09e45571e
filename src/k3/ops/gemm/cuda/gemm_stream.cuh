// Internal to ops/gemm. What the stream kernel is launched with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace k3::ops::cuda {

struct StreamPart {
  const uint8_t* w = nullptr;  // bf16 [rows, in]
  void* y = nullptr;
  int64_t y_stride = 0;
  int row_begin = 0;  // among the rows of all parts
  bool y_f32 = false, accumulate = false;
};

struct Stream16 {
  const uint8_t* x = nullptr;  // bf16
  int64_t x_stride = 0;        // elements
  int tokens = 0, in = 0, part_count = 0, rows = 0;
  int block_rows = 0;  // most rows of a row block
  int stages = 0;
  StreamPart parts[6] = {};
};

int gemm_stream_launch(const Stream16& args, int row_tiles, int token_tiles, int blocks, int shared_bytes, bool dependent,
                       cudaStream_t stream);

}  // namespace k3::ops::cuda
