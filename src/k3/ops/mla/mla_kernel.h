// Purpose:  the kernels behind mla(): absorb a query, attend over latent rows, project values, expanded attention.
// Shapes:   scratch rows are padded to a multiple of 16 numbers (mla_padded); weights are rows of `rank` numbers.
// Units:    none.
// Memory:   as commented; scratch is private to the call.
// Threads:  pure functions of their arguments.
// Errors:   none; mla() has checked everything.
// Source:   kernels.md 8.
#pragma once

#include <cstdint>

#include "k3/ops/paged.h"
#include "k3/ops/weight.h"

namespace k3::ops {

constexpr int64_t kMlaBlock = 64;  // cached tokens per block, on a grid fixed by their positions
constexpr int64_t kMlaRows = 16;   // weight rows widened to FP32 at a time

constexpr int64_t mla_padded(int64_t n) { return (n + 15) / 16 * 16; }

struct MlaDims {
  int64_t heads = 0, nope = 0, rope = 0, value = 0, rank = 0;
  float scale = 1;
  constexpr int64_t key() const { return nope + rope; }
  constexpr int64_t width() const { return rank + rope; }
};

// out[t] = [sum_n q[t][n] keys[n] | q[t][nope ..]] for the tokens of one head; keys [nope, rank].
struct MlaAbsorb {
  MlaDims dims;
  Weight keys;
  const float* q = nullptr;
  float* out = nullptr;
  int64_t q_stride = 0, out_stride = 0, tokens = 0;
  float* scratch = nullptr;  // kMlaRows * padded(rank)
};

// Online softmax of `rows` query rows (heads of one token) over cached tokens [begin, end).
// state row: [m, l, 14 unused, sum p c (padded rank)], overwritten; m relative to the scaled scores.
constexpr int64_t kMlaStateHead = 16;
struct MlaAttend {
  MlaDims dims;
  PagedKv cache;
  const float* queries = nullptr;  // [token][row], rows of padded(width)
  float* states = nullptr;
  int64_t query_token_stride = 0, state_token_stride = 0, state_stride = 0;
  int64_t rows = 0;
  int64_t tokens = 0;          // query tokens
  int64_t first_position = 0;  // of the first query token
  int64_t begin = 0, end = 0;  // cached tokens
  float* scratch = nullptr;    // mla_attend_scratch
};
constexpr int64_t mla_attend_scratch(const MlaDims& d, int64_t rows) {
  return kMlaBlock * mla_padded(d.width()) + rows * kMlaBlock;
}

// out[t] = values latent[t]; values [value, rank].
struct MlaProject {
  MlaDims dims;
  Weight values;
  const float* latent = nullptr;
  float* out = nullptr;
  int64_t latent_stride = 0, out_stride = 0, tokens = 0;
  float* scratch = nullptr;  // kMlaRows * padded(rank) + kMlaRows * tokens
};

// Expanded attention of consecutive query tokens of one head.
struct MlaExpand {
  MlaDims dims;
  Weight weight;  // [nope + value, rank] of this head
  PagedKv cache;
  const float* q = nullptr;
  float* out = nullptr;
  int64_t q_stride = 0, out_stride = 0;
  int64_t tokens = 0;
  int64_t first_position = 0;
  float* scratch = nullptr;  // mla_expand_scratch
};
constexpr int64_t mla_expand_scratch(const MlaDims& d, int64_t tokens) {
  const int64_t key = mla_padded(d.key()), value = mla_padded(d.value), rank = mla_padded(d.rank);
  return (d.nope + d.value) * rank + kMlaBlock * (mla_padded(d.width()) + key + value) +
         tokens * (key + value + 32 + kMlaBlock);
}

struct MlaKernels {
  void (*absorb)(const MlaAbsorb&);
  void (*attend)(const MlaAttend&);
  void (*project)(const MlaProject&);
  void (*expand)(const MlaExpand&);
};

extern const MlaKernels kMlaPortable, kMlaAvx2, kMlaAvx512;

}  // namespace k3::ops
