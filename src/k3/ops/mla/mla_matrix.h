// Purpose:  expanded attention on BF16 products (packed.h): the parts that run_matrix in mla_matrix.cc puts together.
// Shapes:   nope, rope, value and rank multiples of 32; kv_b in BF16. Latents packed as packed.h wants b:
//           [strip of 32 cached tokens][(rank + rope) / 32 blocks]; keys likewise, [strip][(nope + rope) / 32];
//           values [strip of 32 value columns][blocks of 32 cached tokens].
// Units:    scores in powers of two once they are scaled.
// Memory:   as commented; scratch is private to a call.
// Threads:  pure functions of their arguments.
// Errors:   none; mla() has checked everything.
// Source:   kernels.md 8; tolerance in mla.h.
#pragma once

#include <cstdint>
#include <span>

#include "k3/ops/gemm/packed.h"
#include "k3/ops/mla/mla.h"
#include "k3/ops/mla/mla_kernel.h"

namespace k3::ops {

constexpr int64_t kMlaMatrixBlock = 512;                   // cached tokens of a step of the softmax, on a grid of positions
constexpr int64_t kMlaSlab = 2048;                         // cached tokens that are packed and expanded at a time
constexpr int64_t kMlaChunk = 64;                          // cached tokens expanded by a task
constexpr int64_t kMlaTile = 64;                           // query tokens between scores and values
constexpr int64_t kMlaPart = 512;                          // most query tokens of a task
constexpr int64_t kMlaScoreStride = kMlaMatrixBlock + 16;  // not a multiple of 4 KiB
static_assert(kMlaSlab % kMlaMatrixBlock == 0 && kMlaMatrixBlock % kMlaChunk == 0);

MlaDims mla_dims(const MlaArgs& args);

// How fast the expanded form multiplies beside the absorbed one, how many cached tokens it expands at least, and what the absorbed form
// takes for reading a latent once a query token, in heads: all its heads share that.
struct MlaExpandRate {
  double speed = 1;
  int64_t strip = 1;
  double shared = 0;
};
inline constexpr MlaExpandRate kMlaRowsRate{};  // both in FP32
// Zen 4, measured (k3_ops_bench --benchmark_filter=meet): of 2, 12, 96 heads behind 2,048 tokens they meet near 27, 50, 62 query tokens.
inline constexpr MlaExpandRate kMlaDotsRate{.speed = 2, .strip = 32, .shared = 2.3};
inline constexpr MlaExpandRate kMlaTilesRate{.speed = 4, .strip = 32, .shared = 2.3};  // a lower bound

// Whether the expanded form takes less time, by multiply-adds per head. Absorbed: a (2 rank + rope) pass per pair and both
// projections per query token. Expanded: (nope + rope + value) per pair and the expansion of every cached token.
bool mla_expansion_pays(const MlaDims& dims, int64_t history, int64_t length, const MlaExpandRate& rate);

// Keys and values of a slab in the memory of all workers: numbers of two bytes, at least one head's.
constexpr int64_t mla_expanded_elements(const MlaDims& d, int threads) {
  const int64_t bound = (int64_t{8} << 20) + threads * (int64_t{256} << 10), head = kMlaSlab * (d.key() + d.value);
  return bound > head ? bound : head;
}

// Four-byte numbers that run_matrix takes from the workspace for a step of `tokens`, whatever the sequences.
constexpr int64_t mla_matrix_scratch(const MlaDims& d, int64_t tokens, int threads) {
  const int64_t rows = (tokens < kMlaPart ? tokens + kMlaTile : kMlaPart), strips = kMlaSlab / kPackedStrip;
  const int64_t worker = (d.nope + d.value) * kMlaChunk + rows * (d.key() / 2 + d.value + 2) + kMlaTile * kMlaScoreStride;
  const int64_t heads = d.heads * kMlaSlab * (d.key() + d.value), bound = mla_expanded_elements(d, threads);
  return threads * worker + strips * (kPackedStrip * d.width() / 2 + 8) + (heads < bound ? heads : bound) / 2 +
         tokens * d.heads * 2;
}

constexpr bool mla_matrix_can(const MlaDims& d, Scheme kv_b) {
  return kv_b == Scheme::bf16 && d.nope % 32 == 0 && d.rope % 32 == 0 && d.value % 32 == 0 && d.rank % 32 == 0;
}

// One strip of latents: cached tokens [first, first + count), rounded to BF16; the rest of the 32 are zeros.
void mla_pack_strip(const PagedKv& cache, int64_t first, int64_t count, uint16_t* out) noexcept;

// Keys and values of one strip out of the product c [nope + value, 32] (rows of kv_b by latents). A token whose value is
// not finite becomes zero there and a key that is not a number, so that it reaches the queries that see it and no others.
struct MlaStore {
  MlaDims dims;
  const float* c = nullptr;
  int64_t c_stride = 0;
  const uint16_t* latents = nullptr;  // the strip, for the shared key
  uint16_t* keys = nullptr;           // of the strip
  uint16_t* values = nullptr;         // of the strip in the first 32 value columns
  int64_t value_strip = 0;            // from strip of value columns to strip
};
void mla_store_strip(const MlaStore& s) noexcept;

// One block of an online softmax for consecutive query tokens, row r of which sees min(visible + r, limit) of the columns
// (perhaps none). Raw scores become BF16 weights in place, zeros where nothing is seen; state [row][2] (largest scaled
// score, sum of the weights as rounded) and the weighted sums are brought to the new maximum; `first`: they hold nothing.
struct MlaSoftmax {
  float* scores = nullptr;  // rows kMlaScoreStride apart
  int64_t rows = 0, columns = 0, visible = 0, limit = 0;
  float scale = 0;  // and log2 e
  float* state = nullptr;
  float* sums = nullptr;  // [row][width]
  int64_t width = 0;
  bool first = false;
};
void mla_softmax_rows(const MlaSoftmax& s) noexcept;

// The sequences of `args` in expanded form. Independent of the number of threads; a row depends on its position only.
void mla_run_matrix(const Ctx& ctx, const MlaArgs& args, PackedFn product, std::span<const size_t> sequences) noexcept;

}  // namespace k3::ops
