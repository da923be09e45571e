// Internal to ops/kda/train. What the kernels of kda_train are given. Device pointers; rows of activations are contiguous.
#pragma once

#include <stdint.h>

struct CUstream_st;

namespace k3::ops::cuda {

constexpr int kTrainRows = 64;   // tokens of a block: what one thread block of the parallel kernels does
constexpr int kTrainTile = 16;   // tokens of a tile: the chunk of kernels.md 2
constexpr int kTrainTiles = kTrainRows / kTrainTile;
constexpr int kTrainTaps = 4;    // of the fast kernels
constexpr int kTrainHalo = kTrainTaps - 1;

struct KdaTrainBlock {  // by row of kda_train_row
  int32_t first, count;  // tokens; count 0: no such block
  int32_t sequence, last;  // last: no block follows in the sequence
};

// Between the kernels of the vjp, for one (row, head) of a pass each; sizes in elements.
template <int D>
struct KdaTrainScratch {
  static constexpr int kTile = kTrainRows * D;            // bf16: keys, queries, ... [64, D]
  static constexpr int kSmall = kTrainTiles * kTrainTile * kTrainTile;  // bf16: P, T of each tile
  static constexpr int kEdges = (kTrainTiles + 1) * D;    // f32: decay to the middle of the first tile, between middles, after the last
  static constexpr int kRowNumbers = 3 * kTrainRows;      // f32: beta, factors of q and k
  static constexpr int kHalo = 2 * 3 * kTrainHalo * D;    // f32: first rows of d_pre, last rows of dx
  static constexpr int kSums = (3 * kTrainTaps + 3) * D;  // f32: taps, dt_bias, a_log (by channel), norm
};

struct KdaTrainCudaArgs {
  int heads, first_head, pass_heads;  // this pass does heads [first_head, first_head + pass_heads)
  int rows, sequences;                // rows: kda_train_rows
  const void* in[3];                  // bf16 [tokens, heads * D]: q, k, v
  const void *z, *gate, *b;
  int b_f32;
  const float* taps[3];
  const float *a_log, *dt_bias, *norm;
  float lower_bound, eps;
  const int32_t* offsets;        // [sequences + 1]
  const KdaTrainBlock* blocks;   // [rows]
  const float* initial;          // [sequences, heads, D, D] or null
  float* final;                  // or null
  void* kept;                    // bf16 [rows, heads, D values, D keys]
  int keep;                      // forward: write kept
  void* y;
  // vjp
  const void* dy;
  void* d_in[3];
  void *dz, *dgate, *db;
  const float* d_final;
  float* d_initial;
  float *d_taps[3], *d_a_log, *d_dt_bias, *d_norm;
  void *kp, *qp, *km, *u, *d_o, *d_r;  // bf16 [rows, pass_heads, 64, D]
  void *p, *t;                         // bf16 [rows, pass_heads, 4, 16, 16]
  void* d_state;                       // bf16 [rows, pass_heads, D, D]: gradient of the state after the block
  float *edges, *row_numbers, *halo, *sums;
};

// For the kernels of inference: slot s, fresh, and no slot, of each sequence; the state before each sequence is zero.
struct KdaTrainSlots {
  int32_t *slot, *fresh, *none;
};
int kda_train_slots_launch(const KdaTrainSlots& slots, void* kept, int64_t state_values, const int32_t* offsets, int sequences, CUstream_st* stream);
int kda_train_map_launch(KdaTrainBlock* blocks, int rows, const int32_t* offsets, int sequences, CUstream_st* stream);
int kda_train_forward_launch(const KdaTrainCudaArgs& args, int dim, CUstream_st* stream);
int kda_train_inner_launch(const KdaTrainCudaArgs& args, int dim, CUstream_st* stream);
int kda_train_scan_launch(const KdaTrainCudaArgs& args, int dim, int parts, CUstream_st* stream);  // parts: kda_train_scan_parts
int kda_train_grads_launch(const KdaTrainCudaArgs& args, int dim, CUstream_st* stream);
int kda_train_sums_launch(const KdaTrainCudaArgs& args, int dim, CUstream_st* stream);

}  // namespace k3::ops::cuda
