#include "k3/ops/mla/cuda/mla_any_dims.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {
namespace {

constexpr int kMostWidth = 16384;  // shared memory: query and sums of a row

void check_pages(const LatentPages& p, int64_t width) {
  K3_CHECK(p.page_tokens > 0 && p.row_stride >= width && p.page_stride >= (p.page_tokens - 1) * p.row_stride + width,
           "pages of {} tokens with strides {} and {}", p.page_tokens, p.page_stride, p.row_stride);
}

}  // namespace

CudaStatus latent_append_any_cuda(const LatentAppendAny& a, Stream stream) {
  K3_CHECK(a.rank > 0 && a.rope >= 0 && a.append.kv_stride >= a.rank + a.rope, "latent rows of {} and {}, stride {}", a.rank, a.rope,
           a.append.kv_stride);
  check_pages(a.append.pages, a.rank + a.rope);
  if (a.append.tokens == 0 || a.append.batch == 0) return {};
  return {latent_append_any_launch(a, stream)};
}

CudaStatus mla_any_dims_cuda(const MlaAny& a, Stream stream) {
  const MlaDims& d = a.dims;
  K3_CHECK(d.heads > 0 && d.nope > 0 && d.rope >= 0 && d.value > 0 && d.rank > 0 && d.rank + d.rope <= kMostWidth,
           "mla of {} heads, nope {}, rope {}, value {}, rank {}", d.heads, d.nope, d.rope, d.value, d.rank);
  K3_CHECK(a.q_stride >= int64_t{d.heads} * (d.nope + d.rope) && a.out_stride >= int64_t{d.heads} * d.value, "mla with strides {} and {}",
           a.q_stride, a.out_stride);
  check_pages(a.pages, d.rank + d.rope);
  if (a.tokens == 0 || a.batch == 0) return {};
  return {mla_any_dims_launch(a, stream)};
}

}  // namespace k3::ops::cuda
