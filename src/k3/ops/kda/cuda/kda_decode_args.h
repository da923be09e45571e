// Purpose:  what the kernels of KDA decode, speculative verify and commit are given; plain C, so that a shared library can
//           export them.
// Shapes:   D = 128; channel c = head * 128 + j. See the fields.
// Units:    strides in elements of the array's type.
// Memory:   every pointer is one of the device; nothing is owned.
// Threads:  none.
// Errors:   none; kda_decode_cuda.h and kda_verify_cuda.h check.
// Source:   kernels.md 4 and 5.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
namespace k3::ops::cuda {
#endif

// Weights of the layer, FP32. lower_bound 0: the unbounded gate (-exp(a_log) softplus).
typedef struct KdaWeights {
  const float* taps[3];  // of q, k, v: [H * 128, 4], the last one multiplies the current token
  const float* a_log;    // [H]
  const float* dt_bias;  // [H * 128]
  const float* norm;     // [128]
  float lower_bound;
  float norm_eps;
  int32_t heads;
} KdaWeights;

// One row a token, BF16: columns of larger products, so each with its row stride. x: projections q, k, v before the
// convolution. x, z, gate, out: channel c, aligned to 8 bytes, strides a multiple of 4; for verify x, z and gate to 16
// bytes, a multiple of 8. beta: head h.
typedef struct KdaRows {
  const void* x[3];
  int64_t x_stride[3];
  const void* z;
  int64_t z_stride;
  const void* gate;
  int64_t gate_stride;
  const void* beta;
  int64_t beta_stride;
  void* out;
  int64_t out_stride;
} KdaRows;

// state [slots, H, 128 (v), 128 (k)] FP32 or BF16, aligned to 16 bytes; conv [slots, 3 (q, k, v), 3 (oldest first), H * 128]
// BF16 or FP32, aligned to 16 bytes. slots [B]: below 0 the request has zero output and nothing is written.
typedef struct KdaSlots {
  void* state;
  int64_t state_stride;
  void* conv;
  int64_t conv_stride;
  const int32_t* slots;
  int32_t state_bf16;
  int32_t conv_bf16;
} KdaSlots;

typedef struct KdaLaunch {
  int32_t dependent;    // programmatic dependent launch: may start while the kernel before it in the stream still runs
  int32_t early_state;  // with it: all but KdaRows (slots, states, counts, windows, the last call's rows) was complete before
                        // the kernel just before in the stream began
  int32_t form;         // 0: chosen; else, in tests and benches: one of kda_decode_config.h, of verify 1: without the copy engine
} KdaLaunch;

// The second factors of low-rank projections, BF16 [H * 128, 128], and what they meet, BF16 [B, 128]: z and gate are computed
// inside instead of read from rows. z_w null: neither; gate_w null: z alone. Only where kda_decode_takes_low.
typedef struct KdaLowRank {
  const void* z_w;
  const void* z_in;
  int64_t z_stride;
  const void* gate_w;
  const void* gate_in;
  int64_t gate_stride;
} KdaLowRank;

typedef struct KdaDecodeArgs {
  KdaWeights weights;
  KdaRows rows;  // row r is request r
  KdaSlots slots;
  KdaLaunch launch;
  int32_t batch;
  KdaLowRank low;
  void* out_rest;  // as rows.out, its stride: what rounding cuts off out; null: nowhere
} KdaDecodeArgs;

// What a call leaves of its windows for their commit beside their rows: u, FP32, per slot [H, max_tokens, 128].
typedef struct KdaWindow {
  float* u;
  int64_t u_stride;
  int32_t max_tokens;  // 8 or 16
} KdaWindow;

// The windows of the last call. accepted [B]: so many tokens of a request's window are committed first. x, z: the rows of that
// call as KdaRows had them, first_rows [B]: where in them a window begins; keys and decays of accepted tokens and the conv
// state are made of these. Aligned to 16 bytes, strides a multiple of 8, never null: where nothing is accepted nothing is
// read, and the new rows will do. boundary [B], export_slots [B] (null: none): the state after boundary tokens, 0 ..
// accepted, goes to this slot, below 0 to none; conv state alike.
typedef struct KdaCommit {
  const int32_t* accepted;
  const void* x[3];
  int64_t x_stride[3];
  const void* z;
  int64_t z_stride;
  const int32_t* first_rows;
  const int32_t* boundary;
  const int32_t* export_slots;
} KdaCommit;

typedef struct KdaVerifyArgs {
  KdaWeights weights;
  KdaRows rows;            // rows offsets[r] .. offsets[r + 1] - 1 are the window of request r, at most max_tokens
  const int32_t* offsets;  // [B + 1]
  KdaSlots slots;
  KdaWindow window;  // read for the commit, then replaced by that of the new window
  KdaCommit commit;
  KdaLaunch launch;
  int32_t batch;
} KdaVerifyArgs;

// Commit alone; window and rows are left as they are, accepted must not be applied again. Of the weights: taps[1], a_log, dt_bias,
// lower_bound, heads.
typedef struct KdaCommitArgs {
  KdaWeights weights;
  KdaSlots slots;
  KdaWindow window;
  KdaCommit commit;
  KdaLaunch launch;
  int32_t batch;
} KdaCommitArgs;

#ifdef __cplusplus
}  // namespace k3::ops::cuda
#endif
