#include "k3/ops/attn_res/attn_res.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "k3/ops/attn_res/attn_res_kernel.h"
#include "k3/ops/attn_res/attn_res_train.h"
#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/rms_norm/rms_norm_kernel.h"

namespace k3::ops {
namespace {

constexpr int64_t kMaxBlocks = 1024;  // K3 has 8; the config parser refuses more
constexpr int64_t kTaskTokens = 8;

const AttnResKernels& kernels(Isa isa) {
  if (isa >= Isa::avx512) return kAttnResAvx512;
  return isa == Isa::avx2 ? kAttnResAvx2 : kAttnResPortable;
}

void check(const Tensor& blocks, const Tensor& prefix, const Tensor& query, const Tensor& out) {
  K3_CHECK(prefix.rank == 2 && prefix.dtype == DType::f32, "attn_res: prefix is {}", prefix.shape_text());
  K3_CHECK(out.rank == 2 && out.dtype == DType::f32 && out.dims == prefix.dims, "attn_res: out is {}", out.shape_text());
  K3_CHECK(query.dtype == DType::f32 && query.size() == prefix.dim(1) && query.contiguous(), "attn_res: query is {}",
           query.shape_text());
  if (!blocks || blocks.dim(0) == 0) return;
  K3_CHECK(blocks.rank == 3 && blocks.dtype == DType::f32 && blocks.dim(0) <= kMaxBlocks && blocks.dim(1) == prefix.dim(0) &&
               blocks.dim(2) == prefix.dim(1),
           "attn_res: blocks are {} for prefix {}", blocks.shape_text(), prefix.shape_text());
}

void run_token(const AttnResKernels& kernel, const float* const* rows, int64_t count, const float* query, float eps,
               int64_t hidden, float* out) {
  double scores[kMaxBlocks + 1];
  float weights[kMaxBlocks + 1];
  for (int64_t j = 0; j < count; ++j) {
    double dot = 0, squares = 0;
    kernel.scores(rows[j], query, hidden, &dot, &squares);
    scores[j] = dot / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps));
  }
  const double top = *std::max_element(scores, scores + count);
  double sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += scores[j] = std::exp(scores[j] - top);
  for (int64_t j = 0; j < count; ++j) weights[j] = static_cast<float>(scores[j] / sum);
  kernel.mix(rows, weights, count, hidden, out);
}

}  // namespace

void attn_res(const Ctx& ctx, const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps, const Tensor& out,
              const Tensor& norm) noexcept {
  check(blocks, prefix, query, out);
  K3_CHECK(!norm || (norm.dtype == DType::f32 && norm.size() == prefix.dim(1) && norm.contiguous()), "attn_res: norm is {}",
           norm.shape_text());
  const int64_t count = blocks ? blocks.dim(0) : 0, tokens = prefix.dim(0), hidden = prefix.dim(1);
  const AttnResKernels& kernel = kernels(ctx.isa);
  const NormRowFn norm_row = norm_row_fn(ctx.isa);
  run_tasks(ctx, (tokens + kTaskTokens - 1) / kTaskTokens, [&](int, int64_t task) {
    for (int64_t t = task * kTaskTokens; t < std::min(tokens, (task + 1) * kTaskTokens); ++t) {
      const float* mixed = prefix.row(t);
      if (count > 0) {
        const float* rows[kMaxBlocks + 1];
        for (int64_t j = 0; j < count; ++j) rows[j] = blocks.f32() + j * blocks.stride(0) + t * blocks.stride(1);
        rows[count] = prefix.row(t);
        run_token(kernel, rows, count + 1, query.f32(), eps, hidden, out.row(t));
        mixed = out.row(t);
      }
      if (norm) {
        norm_row(mixed, norm.f32(), nullptr, eps, hidden, out.row(t));
      } else if (mixed != out.row(t)) {
        std::memcpy(out.row(t), mixed, static_cast<size_t>(hidden) * sizeof(float));
      }
    }
  });
}

void attn_res_site(const Ctx& ctx, const AttnResSite& site) noexcept {
  if (ctx.training) return attn_res_site_train(ctx, site);
  if (ctx.device.is_cuda()) return cuda::attn_res_site(ctx, site);
  if (site.delta) add(ctx, site.delta, site.prefix);
  if (site.bank_to) copy(ctx, site.prefix, site.bank_to);
  if (site.blocks && site.blocks.dim(0) > 0) {
    attn_res(ctx, site.blocks, site.prefix, site.query, site.eps, site.out, site.norm);
  } else {
    rms_norm(ctx, site.prefix, site.norm, site.eps, site.out);
  }
}

}  // namespace k3::ops
