// Purpose:  y = x W^T on the GPU: up to six weights that meet one input, in one launch where tokens are few.
// Shapes:   x [T, I] bf16 (rows may be strided); part: w [O, I] bf16, mxfp4 or i8 (weight.h; device pointers),
//           y [T, O] bf16 or f32 (rows may be strided). mxfp4 and i8: I a multiple of 32, codes aligned to 16 bytes.
// Units:    strides in elements.
// Memory:   y is overwritten, or added to where accumulate is set; x and the ys must not overlap. No scratch of the
//           caller: split sums meet in shared memory, cuBLASLt's workspace belongs to GemmPlans.
// Threads:  any; calls that share a GemmPlans must be on one stream (its workspace).
// Errors:   K3_CHECK on shapes and dtypes. T = 0 and O = 0 are legal. A shape for which `plans` has nothing runs on
//           the stream or the row kernel, slower beyond 32 tokens.
// Source:   kernels.md 9. FP32 accumulation, one rounding to y's dtype. Tolerance against linear_ref (double) on the
//           same BF16 inputs: |y - ref| <= (I / 256 + 16) 2^-22 sum_i |x_i w_i|, for bf16 y 2^-8 |ref| more (tensor
//           cores truncate each partial sum of 16 products; a warp adds I / 256 of them in a row). cuBLASLt rounds to
//           bf16 before it adds to a bf16 y.
//           deterministic: each y[t, o] is one fixed sum over i whatever T, t, the neighbours and the other parts are.
//           cuBLASLt never is used then: it picks an algorithm, so an order of sums, for every range of T.
//           dependent: programmatic dependent launch; the weights (not x or y) are read before the kernel before has
//           ended, so that kernel must not write them. The kernel after may start at once, before this one has waited;
//           with release_late when it has, so that what the kernel after reads before it waits may be as young as the
//           kernel before the kernel before this one.
#pragma once

#include <array>
#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/gemm/cuda/gemm_config.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/weight.h"
#include "k3/tensor/dtype.h"

namespace k3::ops::cuda {

class GemmPlans;

struct GemmPart {
  Weight w;
  void* y = nullptr;
  int64_t y_stride = 0;
  DType y_dtype = DType::bf16;
  bool accumulate = false;
  Weight up = {};  // set: y = glu(x w^T, x up^T), rounded once
};

// x is made in the same launch: sum = prefix + rest + delta, rounded to BF16, with rest_out to two rows of BF16; x = sum *
// rsqrt(mean sum^2 + eps) * norm, rounded. All [I], aligned to 16 bytes, of one token.
struct GemmSite {
  const void *prefix = nullptr, *delta = nullptr;  // delta: of the kernel before; prefix is older than that
  void* prefix_out = nullptr;                      // the sum; may be prefix
  const void* rest = nullptr;                      // what rounding cut off the prefix; as old; null: nothing
  void* rest_out = nullptr;                        // what it cuts off the sum; may be rest; null: nowhere
  const void* norm = nullptr;                      // bf16 or f32
  bool norm_bf16 = false;
  float eps = 0;
  void* out = nullptr;         // x, for others
  uint32_t* counter = nullptr;  // zero before and after
};

struct GemmArgs {
  static constexpr int kMostParts = 6;
  const void* x = nullptr;
  int64_t tokens = 0, in = 0, x_stride = 0;
  int part_count = 0;
  std::array<GemmPart, kMostParts> parts{};
  bool deterministic = false;
  bool dependent = false;
  bool release_late = false;
  const void* other_x = nullptr;  // set: two parts of equal shapes, the second meets this input (of the same strides)
  Glu glu = {};                   // of parts with `up`
  uint32_t* claims = nullptr;     // a counter, zero before and after, for products of one token: blocks take rows as they finish
  GemmSite site = {};             // with delta: x is site.out; what gemm_takes_site
  // One token, gemm_takes_split: x has 16 bits, those of the site's x or, without a site, of x + x_rest (as x). Costs nothing: a token
  // takes one column of the eight that a product has, its second row another.
  bool split = false;
  const void* x_rest = nullptr;
};

// Whether calls with `up` or other_x are served, by the stream kernel: BF16 weights, I a multiple of 32, few tokens.
constexpr bool gemm_fuses(int64_t tokens, int64_t in, Scheme scheme) {
  return tokens <= 16 && in % kGemmKStep == 0 && scheme == Scheme::bf16;
}

// Whether a call with a site, or with a split x, is served.
bool gemm_takes_site(const GemmArgs& args);
bool gemm_takes_split(const GemmArgs& args);

// plans may be null: everything runs on the stream and the row kernel. Parts that follow each other in memory, w after w and
// y after y in a row, are one product of the library.
CudaStatus gemm_cuda(const GemmArgs& args, const GemmPlans* plans, Stream stream);
// Measures what gemm_cuda would ask of the library for these weights and this number of tokens; nothing is computed.
Status gemm_prepare(const GemmArgs& args, GemmPlans& plans, Stream stream);
// The row kernel with a given split; parts of different schemes become one launch each scheme.
CudaStatus gemm_rows_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream);
// The stream kernel, for BF16 parts: I a multiple of 32, rows of x and w aligned to 16 bytes.
CudaStatus gemm_stream_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream);

// The wide kernel, for BF16 parts: at most 128 tokens, I a multiple of 64, rows of x and w aligned to 16 bytes.
CudaStatus gemm_wide_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream);

}  // namespace k3::ops::cuda
