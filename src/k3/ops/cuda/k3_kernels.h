// Purpose:  the CUDA kernels as plain C functions of one shared library (libk3kernels.so), for benches and programs of others.
// Shapes:   those of the kernels: the fields say which; BF16 where nothing else is said, every pointer device memory. Structs of KDA and
//           of the short convolution: kda_decode_args.h, kda_prefill_params.h, short_conv_args.h.
// Units:    strides in elements.
// Memory:   nothing is allocated or kept; workspaces as the *_workspace functions say, aligned to 256 bytes.
// Threads:  any; everything is queued on the stream and may be captured in a graph.
// Errors:   a cudaError_t, 0: launched. Arguments that no kernel takes end the program with a message (they are the caller's bug).
// Source:   the contract of each kernel: ops/<op>/cuda/<op>_cuda.h; kernels.md.
#pragma once

#include <stdint.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"
#include "k3/ops/kda/cuda/kda_prefill_params.h" /* k3_kda_prefill, k3_kda_prefill_workspace */
#include "k3/ops/short_conv/cuda/short_conv_args.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { K3_KERNELS_VERSION = 3 }; /* of this header's structs */
int k3_kernels_version(void);

#ifdef __cplusplus
#define K3_KDA(type) struct k3::ops::cuda::type
#else
#define K3_KDA(type) type
#endif
int k3_kda_decode(const K3_KDA(KdaDecodeArgs) * args, struct CUstream_st* stream);
int k3_kda_verify(const K3_KDA(KdaVerifyArgs) * args, struct CUstream_st* stream);
int k3_kda_commit(const K3_KDA(KdaCommitArgs) * args, struct CUstream_st* stream);
int k3_short_conv(const K3_KDA(ShortConvArgs) * args, struct CUstream_st* stream);

/* Absorbed MLA over pages: request s has lengths[s] cached tokens, token i in row i % page_tokens of page table[s * table_stride + i /
 * page_tokens]; rows of 512 (latent) + 64 (shared key). Its query rows are offsets[s] .. offsets[s + 1] - 1 (null: query_tokens_each
 * each), the last of which sees all. */
struct K3MlaDecode {
  const void* query; /* [tokens, heads, 576], absorbed */
  int64_t tokens, heads, batch, query_tokens_each;
  const int32_t *lengths, *offsets;
  void* pages;
  int64_t page_tokens, page_stride, row_stride, page_count;
  const int32_t* table;
  int64_t table_stride;
  void* out;  /* [tokens, heads, 512] */
  float* lse; /* [tokens, heads] or null */
  void* workspace;
};
int64_t k3_mla_decode_workspace(int64_t heads, int64_t query_tokens_each);
int k3_mla_decode(const struct K3MlaDecode* args, struct CUstream_st* stream);

/* A site: prefix += delta, sources are the bank's rows and the prefix; out = norm(mix) (kernels.md 6). bank [blocks, tokens, hidden]. */
struct K3AttnRes {
  int64_t tokens, hidden, blocks;
  const void* bank;
  const void *prefix, *delta; /* [tokens, hidden]; delta may be null */
  void* prefix_out;           /* null: the sum is not kept */
  const float* query;         /* [hidden] */
  const void* norm;           /* [hidden] FP32, or null */
  float eps;
  void* out;
};
int k3_attn_res(const struct K3AttnRes* args, struct CUstream_st* stream);

/* Scores to experts: sigmoid, bias for the choice alone, weights of the chosen. */
struct K3Router {
  const float *logits, *bias; /* [tokens, experts]; [experts] or null */
  int32_t tokens, experts, topk, renormalise;
  float scale;
  int32_t* ids;   /* [tokens, topk] */
  float* weights; /* [tokens, topk] */
};
int k3_router(const struct K3Router* args, struct CUstream_st* stream);

/* Experts of width R and intermediate F, packed (moe_stream_pack.h): expert e of w13 at e * k3_experts_packed_bytes(mxfp4, 2 F, R), of w2 at
 * e * k3_experts_packed_bytes(mxfp4, R, F), its factors at 4 e. */
struct K3Experts {
  int32_t mxfp4; /* else BF16 */
  int32_t experts, width, intermediate;
  void *w13, *w2;
  float* factors; /* mxfp4: [experts, 4] */
};
int64_t k3_experts_packed_bytes(int32_t mxfp4, int64_t rows, int64_t columns);
/* One expert as checkpoints store it: w1, w3 [F, R], w2 [R, F]; mxfp4: codes [., / 2] and scales [., / 32]. */
int k3_experts_pack(const struct K3Experts* experts, int32_t index, const void* w1, const void* w2, const void* w3, const uint8_t* s1,
                    const uint8_t* s2, const uint8_t* s3, struct CUstream_st* stream);

/* out[t] = sum_j weights[t, j] expert_{ids[t, j]}(z[t]); SiTU with beta and linear_beta, or SwiGLU. Up to 256 tokens the streaming kernels,
 * beyond the grouped products. */
struct K3Moe {
  struct K3Experts weights;
  int32_t situ;
  float beta, linear_beta;
  int32_t tokens, topk, first_expert;
  const void* z;      /* [tokens, R] */
  const int32_t* ids; /* [tokens, topk] */
  const float* gates; /* [tokens, topk] */
  void* out;          /* [tokens, R] */
  void* workspace;    /* all zero before its first use; one for calls of one shape */
};
int64_t k3_moe_workspace(const struct K3Moe* args);
int k3_moe(const struct K3Moe* args, struct CUstream_st* stream);

/* y [tokens, rows] = x [tokens, columns] w^T, BF16, few tokens (up to 32). */
int k3_linear(const void* x, int64_t tokens, int64_t columns, const void* w, int64_t rows, void* y, struct CUstream_st* stream);

#ifdef __cplusplus
}
#endif
