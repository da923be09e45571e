// Internal to ops/moe. Parameters of the grouped products, free of everything that .cu files cannot take; the contract is
// moe_grouped_cuda.h.
#pragma once

#include <cstdint>

#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

// At the start of the workspace; written by moe_grouped_tiles.
struct MoeGroupedHeader {
  int32_t tiles;    // row tiles
  int32_t next[2];  // next piece of work of the first and of the second product
  int32_t reserved[13];
};

// Experts begin .. end alone. With places: `slot` gets their slots, where those that lie in host memory take the slots from
// `staged` on, in their order; the caller has copied them there.
struct MoeGroupedTiles {
  const int32_t* offsets = nullptr;  // [experts + 1]
  int begin = 0, end = 0, most = 0;  // most: rows of a tile
  const int32_t* places = nullptr;   // MoePlaces::slot
  int32_t* slot = nullptr;           // [experts]
  int staged = -1;                   // negative: they are read where they lie
  MoeGroupedHeader* header = nullptr;
  MoeTile* tiles = nullptr;
};

// Rows in the order of experts, columns in the order in which the weights of moe_stream_pack.h are multiplied, zeros up to a
// multiple of 32.
struct MoeGroupedGather {
  const void* z = nullptr;
  int64_t z_stride = 0;               // elements
  const int32_t* row_slot = nullptr;  // source of a row: row_slot[row] / topk; negative: no row
  int rows = 0, topk = 1, width = 0;
  void* out = nullptr;  // [rows, width rounded up to 32]
};

constexpr int moe_grouped_units(MoeWeights kind) { return kind == MoeWeights::bf16 ? 8 : 16; }  // of a copy of weights
constexpr int moe_grouped_unit_bytes(MoeWeights kind) { return kind == MoeWeights::bf16 ? 2048 : 2176; }

// Rows of a copy of a tile's rows. Blocks that share BF16 rows load half of them each, rounded up to the swizzle's 8.
constexpr int moe_grouped_box(MoeWeights kind, int tile_rows) {
  return kind == MoeWeights::bf16 ? (tile_rows + 15) / 16 * 8 : tile_rows;
}

struct alignas(64) MoeGroupedMap {  // a CUtensorMap
  unsigned char bytes[128];
};

// How gate and up become one value; all factors are folded in on the host.
struct MoeGroupedGlu {
  int kind = 0;        // 0: silu; 1: situ; 2: situ with b1 = 4
  float scale = 1;     // b1 * b2
  float gate_exp = 0;  // -2 log2(e) / b1
  float up_exp = 0;    // -2 log2(e) / b2; 0: up passes through
};

// out[row, :] = act(weights of the row's expert x[row, :]).
struct MoeGroupedGemm {
  const uint8_t* weights = nullptr;
  int64_t expert_bytes = 0, unit_bytes = 0;
  MoePlaces places = {};                // instead of weights, the matrix place_offset bytes into an expert
  int64_t place_offset = 0;
  int units = 0;                        // of an expert
  const float* factors = nullptr;       // [experts, 4] or null
  MoeGroupedMap map = {};               // boxes of moe_grouped_box rows by 64 columns of x, swizzled by 128 bytes
  MoeGroupedMap weights_map = {};       // without places: boxes of a step's columns of moe_grouped_units units
  int k = 0;                            // columns of x, a multiple of 32
  void* out = nullptr;                  // bf16
  int64_t out_stride = 0;               // elements
  int out_columns = 0;                  // stored; the first product: a multiple of 32, zeros from `hidden` on
  int hidden = 0;                       // the first product: F
  const MoeTile* tiles = nullptr;
  MoeGroupedHeader* header = nullptr;
  MoeGroupedGlu glu;
};

struct MoeGroupedCombine {
  const void* rows = nullptr;
  const int32_t* slot_row = nullptr;
  const int32_t* token_count = nullptr;
  int tokens = 0, topk = 1, width = 0;
  const float* weights = nullptr;
  void* out = nullptr;
  float* out_f32 = nullptr;
  const void* norm_weight = nullptr;
  float eps = 0;
};

// blocks: of the persistent grid. down: second product (rows of w2, no activation).
int moe_grouped_tiles_launch(const MoeGroupedTiles& tiles, CUstream_st* stream);
int moe_grouped_gather_launch(const MoeGroupedGather& gather, CUstream_st* stream);
int moe_grouped_combine_launch(const MoeGroupedCombine& combine, CUstream_st* stream);
// rows: of a tile at most, one of moe_grouped_config.h.
int moe_grouped_bf16_launch(const MoeGroupedGemm& gemm, bool down, int rows, int blocks, CUstream_st* stream);
int moe_grouped_mxfp4_launch(const MoeGroupedGemm& gemm, bool down, int rows, int blocks, CUstream_st* stream);

}  // namespace k3::ops::cuda
