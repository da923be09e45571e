// Internal to ops/kda. What the prefill kernels are given: plain C, also the argument of a shared library's entry.
#pragma once

#include <stdint.h>

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

struct K3KdaExport { /* the state after `tokens` tokens of the pass of `sequence` goes to `slot` */
  int32_t sequence, tokens, slot;
};

enum { K3_KDA_MAX_EXPORTS = 256 }; /* of one sequence in one pass; the ones at later positions would not be written */

struct K3KdaPrefill {
  int64_t tokens, heads, sequences;
  int64_t longest;                                /* at least the length of every sequence */
  const void *q, *k, *v, *z;                      /* bf16 [tokens, heads, 128] */
  int64_t q_stride, k_stride, v_stride, z_stride; /* elements from token to token, multiples of 8 */
  const void* b;                                  /* [tokens, heads] logits */
  int64_t b_stride;
  int32_t b_f32;   /* 1: f32, 0: bf16 */
  int32_t bounded; /* 1: lower_bound * sigmoid, 0: softplus gate */
  float lower_bound;
  int32_t state_bf16;     /* 0: f32 */
  const float* a_log;     /* [heads] */
  const float* dt_bias;   /* [heads, 128] */
  const int32_t* offsets; /* device, [sequences + 1] */
  void* states;           /* slot s at s * slot_stride elements: [heads, 128 values, 128 keys] */
  int64_t slot_stride;
  const int32_t* from;               /* device, [sequences]: slot of the initial state; negative: zeros */
  const int32_t* to;                 /* device, [sequences]: slot of the final state; negative: it is dropped */
  const struct K3KdaExport* exports; /* device */
  int64_t export_count;
  void* out; /* bf16 [tokens, heads, 128] */
  int64_t out_stride;
  void* workspace; /* kda_prefill_workspace_bytes: the maps of pieces */
  int32_t pairs;   /* 1: two blocks a (sequence, head) share the work on its chunks */
  int64_t segment; /* tokens of a piece (a multiple of 16), 0: sequences are not split */
  /* not 0: in the place of `exports`, the state after n * export_every tokens of sequence s goes to slot
   * offsets[s] / export_every + s + n, n from 1 to the sequence's end */
  int32_t export_every;
};

/* cudaError_t, 0 when it was launched. Chooses the kernel as kda_prefill_cuda does; workspace of k3_kda_prefill_workspace
 * bytes. */
int k3_kda_prefill(const struct K3KdaPrefill* args, struct CUstream_st* stream);
int64_t k3_kda_prefill_workspace(int64_t tokens, int64_t heads, int64_t sequences, int64_t longest);

#ifdef __cplusplus
}

namespace k3::ops::cuda {

int kda_prefill_recurrent_launch(const K3KdaPrefill& args, CUstream_st* stream);  // any gate, token by token, FP32
int kda_prefill_fused_launch(const K3KdaPrefill& args, CUstream_st* stream);      // Hopper, any bound of kda_prefill_plan or none
int kda_prefill_segments_launch(const K3KdaPrefill& args, CUstream_st* stream);   // the same, three launches
int kda_prefill_scan_launch(const K3KdaPrefill& args, CUstream_st* stream);       // the one between the passes

}  // namespace k3::ops::cuda
#endif
