// Purpose:  sums over tokens in a fixed order, by several threads: gradients of parameters that every token shares.
// Shapes:   body(begin, end, sum [width]) adds the share of tokens [begin, end); total [width].
// Units:    none.
// Memory:   total is added to; partial sums come from the workspace.
// Threads:  chunks of tokens run on any thread and are added in their order: the result does not depend on the thread count.
// Errors:   none.
// Source:   architecture 5 (determinism).
#pragma once

#include <algorithm>

#include "k3/ops/cpu/tasks.h"

namespace k3::ops {

template <class T, class Body>
void sum_over_tokens(const Ctx& ctx, int64_t tokens, int64_t width, T* total, const Body& body) {
  constexpr int64_t kChunk = 256;
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t chunks = (tokens + kChunk - 1) / kChunk;
  auto* const partial = static_cast<T*>(ctx.workspace->bytes(chunks * width * static_cast<int64_t>(sizeof(T))));
  run_tasks(ctx, chunks, [&](int, int64_t c) {
    std::fill_n(partial + c * width, width, T{0});
    body(c * kChunk, std::min(tokens, (c + 1) * kChunk), partial + c * width);
  });
  if (total == nullptr) return;
  for (int64_t c = 0; c < chunks; ++c) {
    for (int64_t i = 0; i < width; ++i) total[i] += partial[c * width + i];
  }
}

// sum a[i] b[i], in sixteen chains that the compiler can keep in vectors.
template <class T>
T dot_rows(const T* a, const T* b, int64_t n) {
  T part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t j = 0; j < 16; ++j) part[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) part[j] += a[i] * b[i];
  T sum = 0;
  for (const T p : part) sum += p;
  return sum;
}

// f(T{}) with T float or double.
template <class F>
void with_real(DType dtype, const F& f) {
  K3_CHECK(dtype == DType::f32 || dtype == DType::f64, "training on the CPU is in FP32 or FP64");
  if (dtype == DType::f64) return f(double{});
  f(float{});
}

}  // namespace k3::ops
