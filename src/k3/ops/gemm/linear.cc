#include "k3/ops/gemm/linear.h"

#include <algorithm>

#include "k3/base/check.h"
#include "k3/ops/gemm/linear_onednn.h"
#include "k3/ops/gemm/rows.h"

namespace k3::ops {
namespace {

// Below this many products a second thread costs more (about 3 us to wake) than it saves.
constexpr int64_t kSerialProducts = 1 << 16;
// Rows of one worker are whole tiles of the kernel.
constexpr int64_t kRowGrain = 4;

void check_matrix(const Tensor& t, int64_t cols, const char* name) {
  K3_CHECK(t.rank == 2 && t.dtype == DType::f32 && t.dim(1) == cols && (t.dim(0) <= 1 || t.stride(0) >= cols),
           "linear: {} is {}, expected [T, {}] f32", name, t.shape_text(), cols);
}

template <class T>
T** row_pointers(Workspace& workspace, const Tensor& x) {
  auto** rows = static_cast<T**>(workspace.bytes(x.dim(0) * static_cast<int64_t>(sizeof(T*))));
  for (int64_t t = 0; t < x.dim(0); ++t) rows[t] = x.row(t);
  return rows;
}

// Runs body(worker, begin, end) over [0, count) in contiguous parts of whole grains.
template <class Body>
void split_rows(ThreadPool& pool, int64_t count, bool serial, const Body& body) {
  const int64_t units = (count + kRowGrain - 1) / kRowGrain;
  const int64_t parts = serial ? 1 : std::min<int64_t>(units, pool.size());
  if (parts <= 1) return body(0, int64_t{0}, count);
  pool.run([&](int worker) {
    if (worker >= parts) return;
    body(worker, units * worker / parts * kRowGrain, std::min(count, units * (worker + 1) / parts * kRowGrain));
  });
}

// x as the kernel wants it: itself, or a rounded or de-interleaved copy in the workspace.
Tensor prepared(const Ctx& ctx, const Tensor& x, bool round, bool deinterleave) {
  if (!round && !deinterleave) return x;
  const Tensor copy = ctx.workspace->tensor({x.dim(0), x.dim(1)});
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) prepare_row(x.row(t), x.dim(1), round, deinterleave, copy.row(t));
  };
  if (x.size() <= kSerialProducts) {
    body(0, x.dim(0));
  } else {
    ctx.pool->parallel_for(x.dim(0), 1, body);
  }
  return copy;
}

}  // namespace

void linear(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y, LinearOptions options) noexcept {
  K3_CHECK(w && w.rows > 0 && w.cols > 0, "linear: weight of {} x {}", w.rows, w.cols);
  check_matrix(x, w.cols, "x");
  check_matrix(y, w.rows, "y");
  K3_CHECK(x.dim(0) == y.dim(0), "linear: x {} and y {}", x.shape_text(), y.shape_text());
  K3_CHECK(w.scheme != Scheme::mxfp4 || (w.cols % 32 == 0 && w.scales != nullptr), "linear: mxfp4 weight of {} columns",
           w.cols);
  if (x.dim(0) == 0) return;
  const bool round = ctx.policy == Policy::bf16 && !options.full_precision;
  if (round && !ctx.deterministic && linear_onednn_wins(ctx.isa, w.scheme, x.dim(0))) {
    return linear_onednn(ctx, x, w, y);
  }
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor in = prepared(ctx, x, round, w.scheme == Scheme::mxfp4);
  RowsJob job;
  job.x = row_pointers<const float>(*ctx.workspace, in);
  job.y = row_pointers<float>(*ctx.workspace, y);
  job.tokens = x.dim(0);
  job.w = w;
  const bool serial = job.tokens * w.rows * w.cols <= kSerialProducts;
  const int64_t workers = serial ? 1 : ctx.pool->size();
  float* panels = static_cast<float*>(ctx.workspace->bytes(workers * kPanelFloats * static_cast<int64_t>(sizeof(float))));
  const RowsFn rows = rows_fn(ctx.isa);
  split_rows(*ctx.pool, w.rows, serial, [&](int worker, int64_t begin, int64_t end) {
    RowsJob part = job;
    part.row_begin = begin;
    part.row_end = end;
    part.panel = panels + worker * kPanelFloats;
    rows(part);
  });
}

void linear_transposed(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y) noexcept {
  K3_CHECK(w && w.rows > 0 && w.cols > 0, "linear_transposed: weight of {} x {}", w.rows, w.cols);
  K3_CHECK(w.scheme != Scheme::mxfp4, "linear_transposed: mxfp4 weights are not supported");
  check_matrix(x, w.rows, "x");
  check_matrix(y, w.cols, "y");
  K3_CHECK(x.dim(0) == y.dim(0), "linear_transposed: x {} and y {}", x.shape_text(), y.shape_text());
  if (x.dim(0) == 0) return;
  const Workspace::Scope scope(*ctx.workspace);
  ColsJob job;
  job.x = row_pointers<const float>(*ctx.workspace, x);
  job.y = row_pointers<float>(*ctx.workspace, y);
  job.tokens = x.dim(0);
  job.w = w;
  job.col_end = w.cols;
  const ColsFn cols = cols_fn(ctx.isa);
  if (job.tokens * w.rows * w.cols <= kSerialProducts) return cols(job);
  ctx.pool->parallel_for(w.cols, 64, [&](int64_t begin, int64_t end) {
    ColsJob part = job;
    part.col_begin = begin;
    part.col_end = end;
    cols(part);
  });
}

}  // namespace k3::ops
