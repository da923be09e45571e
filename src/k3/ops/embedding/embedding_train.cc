// The embedding on a tape: the gradient of a row is the sum over the tokens that took it, in their order.
#include <cstring>
#include <vector>

#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/embedding/embedding.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"

namespace k3::ops {

void embedding_vjp(const Ctx& ctx, std::span<const int32_t> ids, const Tensor& dout, const Tensor& dtable) noexcept {
  constexpr int64_t kColumns = 32;  // of a task: tasks share no element
  const int64_t hidden = dout.dim(1);
  with_real(dout.dtype, [&](auto real) {
    using T = decltype(real);
    run_tasks(ctx, (hidden + kColumns - 1) / kColumns, [&](int, int64_t task) {
      const int64_t from = task * kColumns, to = std::min(hidden, from + kColumns);
      for (size_t t = 0; t < ids.size(); ++t) {
        const T* const d = dout.as<T>() + static_cast<int64_t>(t) * hidden;
        T* const row = dtable.as<T>() + ids[t] * hidden;
        for (int64_t i = from; i < to; ++i) row[i] += d[i];
      }
    });
  });
}

void embedding_train(const Ctx& ctx, const Weight& table, std::span<const int32_t> ids, const Tensor& out) noexcept {
  const Tensor rows = weight_matrix(table);
  if (ctx.device.is_cuda()) {
    K3_CHECK(out.dtype == rows.dtype && out.dim(0) == static_cast<int64_t>(ids.size()), "embedding: {} ids to {}", ids.size(), out.shape_text());
    return cuda::embedding_train(ctx, table, out);
  }
  const int64_t bytes = table.cols * dtype_bytes(rows.dtype);
  K3_CHECK(out.dtype == rows.dtype && out.dim(0) == static_cast<int64_t>(ids.size()), "embedding: {} ids to {}", ids.size(),
           out.shape_text());
  for (size_t t = 0; t < ids.size(); ++t) {
    K3_CHECK(ids[t] >= 0 && ids[t] < table.rows, "embedding: id {} of {}", ids[t], table.rows);
    std::memcpy(static_cast<std::byte*>(out.data) + static_cast<int64_t>(t) * bytes,
                static_cast<const std::byte*>(table.data) + ids[t] * bytes, static_cast<size_t>(bytes));
  }
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=, kept = std::vector<int32_t>(ids.begin(), ids.end())](const Ctx& back) {
    const Tensor dout = tape->grad(out);
    if (!dout) return;
    if (const Tensor dtable = tape->parameter_grad(table.data, table.rows * table.cols)) embedding_vjp(back, kept, dout, dtable);
    tape->done(out);
  });
}

}  // namespace k3::ops
