// Internal to ops/gemm. What the row and the stream kernel are launched with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace k3::ops::cuda {

struct RowsPart {
  const uint8_t* w = nullptr;
  const uint8_t* up = nullptr;  // a pair: rows 2 i are row i of w, rows 2 i + 1 row i of up; y[i] = glu of both sums
  const uint8_t* scales = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  int row_begin = 0;  // among the rows of all parts
  bool y_f32 = false, accumulate = false;
};

struct RowsGlu {
  bool situ = false;
  float beta = 1, linear_beta = 0;
};

// What stands before the products of one token (gemm_cuda.h).
struct RowsSite {
  const void *prefix = nullptr, *delta = nullptr;  // delta null: no site
  void* prefix_out = nullptr;
  const void* rest = nullptr;
  void* rest_out = nullptr;
  const void* norm = nullptr;
  bool norm_bf16 = false;
  float eps = 0;
  void* out = nullptr;
  uint32_t* counter = nullptr;
};

// The kernel of one token: a ring of `groups` groups of `height` rows, `pitch` bytes apart. Without claims a block's rows are
// those of its tile; with (one counter, zero before and after) it takes groups as it finishes.
inline constexpr int kOneGroups = 12;
struct RowsOne {
  int height = 0, groups = 0, pitch = 0, ring_bytes = 0;
  uint32_t* claims = nullptr;
};

// All parts' rows are cut into `tiles` of base_height rows, the first `higher` of 2^grain_log2 more (both are multiples of it);
// a tile may lie in two parts. Blocks with y = 1 have another input, and the part after the first.
struct Rows {
  const void* x = nullptr;
  const void* other_x = nullptr;  // null: one input
  int64_t x_stride = 0;
  int tokens = 0, in = 0, part_count = 0, rows = 0;
  int tiles = 0, base_height = 0, higher = 0;
  int token_groups = 0;  // of 8 * token_tiles tokens
  bool release_late = false;
  int k_warps_log2 = 0, cluster_log2 = 0, grain_log2 = 0;
  RowsGlu glu;  // of pairs
  RowsOne one;
  RowsSite site;
  const void* x_rest = nullptr;  // without a site; split: x, of one token, is two rows, x and what rounding cut off
  bool split = false;
  RowsPart parts[6] = {};
};

enum class RowsCodec { bf16, bf16_unaligned, mxfp4, i8 };

// x_aligned: rows of x may be read 16 bytes at a time.
int gemm_rows_launch(const Rows& rows, RowsCodec codec, bool x_aligned, int token_tiles, bool dependent,
                     cudaStream_t stream);
// BF16, I a multiple of 32, all rows aligned to 16 bytes. row_tiles: most rows of a tile over 16.
int gemm_stream_launch(const Rows& rows, int row_tiles, int token_tiles, bool dependent, cudaStream_t stream);

// One token, no other_x.
int gemm_one_launch(const Rows& rows, bool dependent, cudaStream_t stream);

// The same with I a multiple of 64 and at most 128 tokens; tiles of up to 128 rows.
int gemm_wide_launch(const Rows& rows, bool dependent, cudaStream_t stream);

}  // namespace k3::ops::cuda
