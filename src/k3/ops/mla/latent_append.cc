#include <cmath>
#include <cstring>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/mla/mla.h"

namespace k3::ops {
namespace {

// RMSNorm of the latent part, the shared key as it is; rounded once, to the dtype of the cache.
void append_row(const float* kv, const float* weight, float eps, int64_t rank, const PagedKv& cache, int64_t position) {
  double squares = 0;
  for (int64_t i = 0; i < rank; ++i) squares += static_cast<double>(kv[i]) * static_cast<double>(kv[i]);
  const auto factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(rank) + static_cast<double>(eps)));
  if (cache.dtype == DType::f32) {
    float* row = cache.row_f32(position);
    for (int64_t i = 0; i < rank; ++i) row[i] = kv[i] * factor * weight[i];
    std::memcpy(row + rank, kv + rank, static_cast<size_t>(cache.width - rank) * sizeof(float));
  } else if (cache.dtype == DType::f8_e4m3) {
    uint8_t* row = cache.row_f8(position);
    for (int64_t i = 0; i < rank; ++i) row[i] = float_to_f8_e4m3(kv[i] * factor * weight[i]);
    for (int64_t i = rank; i < cache.width; ++i) row[i] = float_to_f8_e4m3(kv[i]);
  } else {
    uint16_t* row = cache.row_bf16(position);
    for (int64_t i = 0; i < rank; ++i) row[i] = float_to_bf16(kv[i] * factor * weight[i]);
    for (int64_t i = rank; i < cache.width; ++i) row[i] = float_to_bf16(kv[i]);
  }
}

}  // namespace

void latent_append(const Ctx& ctx, const Tensor& kv, const Tensor& norm_weight, float eps, std::span<const int64_t> offsets,
                   std::span<const int64_t> history, std::span<const PagedKv> caches, const PagedTable& table) noexcept {
  if (ctx.device.is_cuda()) return cuda::latent_append(ctx, kv, norm_weight, eps, table);
  K3_CHECK(kv.rank == 2 && kv.dtype == DType::f32, "latent_append: kv is {}", kv.shape_text());
  K3_CHECK(norm_weight.rank == 1 && norm_weight.dtype == DType::f32 && norm_weight.dim(0) <= kv.dim(1),
           "latent_append: norm weight {} for kv {}", norm_weight.shape_text(), kv.shape_text());
  K3_CHECK(offsets.size() == caches.size() + 1 && history.size() == caches.size() && offsets.back() == kv.dim(0),
           "latent_append: {} sequences, {} caches", history.size(), caches.size());
  const int64_t rank = norm_weight.dim(0);
  for (size_t s = 0; s < caches.size(); ++s) {
    const PagedKv& cache = caches[s];
    const int64_t tokens = offsets[s + 1] - offsets[s];
    if (tokens == 0) continue;
    K3_CHECK(tokens > 0 && history[s] >= 0, "latent_append: {} tokens after {}", tokens, history[s]);
    K3_CHECK(cache.width == kv.dim(1) && (cache.dtype == DType::f32 || cache.dtype == DType::bf16 || cache.dtype == DType::f8_e4m3),
             "latent_append: cache of width {} and dtype {}", cache.width, dtype_name(cache.dtype));
    constexpr int64_t kTaskTokens = 16;
    run_tasks(ctx, (tokens + kTaskTokens - 1) / kTaskTokens, [&](int, int64_t task) {
      for (int64_t i = task * kTaskTokens; i < std::min(tokens, (task + 1) * kTaskTokens); ++i) {
        append_row(kv.row(offsets[s] + i), norm_weight.f32(), eps, rank, cache, history[s] + i);
      }
    });
  }
}

}  // namespace k3::ops
