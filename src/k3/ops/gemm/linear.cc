#include "k3/ops/gemm/linear.h"

#include <algorithm>
#include <cstring>

#include "k3/base/check.h"
#include "k3/base/numa/numa_plan.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/gemm/linear_steps.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/gemm/panel.h"

namespace k3::ops {
namespace {

// Below this many products a second thread costs more (about 3 us to wake) than it saves.
constexpr int64_t kSerialProducts = 1 << 16;

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

template <class Body>
void over_tokens(const Ctx& ctx, const Tensor& x, const Body& body) {
  if (x.size() <= kSerialProducts) return body(int64_t{0}, x.dim(0));
  ctx.pool->parallel_for(x.dim(0), 1, body);
}

// x in the forms that kernels want, each made once for all weights that meet it.
class Inputs {
 public:
  Inputs(const Ctx& ctx, const Tensor& x) : ctx_(ctx), x_(x) {}

  const float* const* floats(bool round, bool deinterleave) {
    const float**& rows = floats_[(round ? 2 : 0) + (deinterleave ? 1 : 0)];
    if (rows != nullptr) return rows;
    Tensor in = x_;
    if (round || deinterleave) {
      in = ctx_.workspace->tensor({x_.dim(0), x_.dim(1)});
      over_tokens(ctx_, x_, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) prepare_row(x_.row(t), x_.dim(1), round, deinterleave, in.row(t));
      });
    }
    rows = row_pointers<const float>(*ctx_.workspace, in);
    return rows;
  }

  const uint16_t* const* bf16() {
    if (bf16_ != nullptr) return bf16_;
    const int64_t tokens = x_.dim(0), cols = x_.dim(1), stride = dots_stride(cols);
    const int64_t whole = (tokens + 15) / 16 * 16;  // dense_tiles reads whole tiles
    auto* data = static_cast<uint16_t*>(ctx_.workspace->bytes(whole * stride * 2));
    std::memset(data + tokens * stride, 0, static_cast<size_t>((whole - tokens) * stride) * 2);
    bf16_ = static_cast<const uint16_t**>(ctx_.workspace->bytes(tokens * int64_t{sizeof(uint16_t*)}));
    for (int64_t t = 0; t < tokens; ++t) bf16_[t] = data + t * stride;
    over_tokens(ctx_, x_, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) to_bf16_avx512bf16(x_.row(t), cols, data + t * stride);
    });
    return bf16_;
  }

  // In 8 bits.
  const uint8_t* const* int8() {
    if (int8_ != nullptr) return int8_;
    const int64_t tokens = x_.dim(0), cols = x_.dim(1), stride = int8_row_bytes(cols);
    auto* data = static_cast<uint8_t*>(ctx_.workspace->bytes(tokens * stride));
    int8_ = static_cast<const uint8_t**>(ctx_.workspace->bytes(tokens * int64_t{sizeof(uint8_t*)}));
    for (int64_t t = 0; t < tokens; ++t) int8_[t] = data + t * stride;
    over_tokens(ctx_, x_, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) int8_quantise_row(x_.row(t), 0, cols, cols, data + t * stride);
    });
    return int8_;
  }

  // Packed for the tile unit.
  const uint16_t* tiles() {
    if (tiles_ != nullptr) return tiles_;
    const int64_t tokens = x_.dim(0), cols = x_.dim(1);
    const uint16_t* const* rows = bf16();
    auto* packed = static_cast<uint16_t*>(ctx_.workspace->bytes(tiles_packed_elements(tokens, cols) * 2));
    ctx_.pool->parallel_for(tokens, 16, [&](int64_t begin, int64_t end) { pack_tiles_avx512bf16(rows, begin, end, cols, packed); });
    tiles_ = packed;
    return packed;
  }

 private:
  const Ctx& ctx_;
  const Tensor& x_;
  const float** floats_[4] = {};
  const uint16_t** bf16_ = nullptr;
  const uint8_t** int8_ = nullptr;
  const uint16_t* tiles_ = nullptr;
};

// One weight of the call: the kernel that takes it and its place on the line of all rows.
struct Part {
  enum class Kernel { rows, dots, tiles, dense_tiles, int8 } kernel = Kernel::rows;
  RowsJob rows;
  DotsJob dots;
  TilesJob tiles;
  DenseTilesJob dense;
  Int8Job int8;
  Int8Fn int8_fn = nullptr;
  int64_t row_cost = 1;  // bytes: what a row costs when tokens are few; when they are many, near enough
  int64_t start = 0;     // where the part begins on the line
  int64_t count = 0;     // its rows

  int64_t grain() const {
    switch (kernel) {
      case Kernel::rows: return 4;
      case Kernel::dots: return kDotsRowGrain;
      case Kernel::tiles:
      case Kernel::dense_tiles: return kTilesRows;
      case Kernel::int8: return kInt8RowGrain;
    }
    return 1;
  }
  // The split by which weights are placed in memories: a worker meets its own rows.
  int64_t row_at(int64_t point) const { return first_row_at({nullptr, count, row_cost, grain()}, start, point); }
  void compute(int64_t begin, int64_t end, void* panel, RowsFn fn) const {
    if (begin >= end) return;
    switch (kernel) {
      case Kernel::rows: return fn(range(rows, begin, end, static_cast<float*>(panel)));
      case Kernel::dots: return dots_avx512bf16(range(dots, begin, end, static_cast<uint16_t*>(panel)));
      case Kernel::tiles: return tiles_amx(range(tiles, begin, end, static_cast<uint16_t*>(panel)));
      case Kernel::dense_tiles: return dense_tiles_amx(range(dense, begin, end, static_cast<uint16_t*>(panel)));
      case Kernel::int8: return int8_fn(range(int8, begin, end, static_cast<uint8_t*>(panel)));
    }
  }

 private:
  template <class Job, class Element>
  static Job range(Job job, int64_t begin, int64_t end, Element* panel) {
    job.row_begin = begin;
    job.row_end = end;
    job.panel = panel;
    return job;
  }
};

Part make_part(const Ctx& ctx, Inputs& inputs, const Tensor& x, const LinearPart& p) {
  const bool round = ctx.policy == Policy::bf16 && !p.full_precision;
  Part part;
  part.count = p.w.rows;
  part.row_cost = scheme_row_bytes(p.w.scheme, p.w.cols);
  float* const* y = row_pointers<float>(*ctx.workspace, p.y);
  const int64_t tokens = x.dim(0);
  if (ctx.int8_activations && !p.full_precision && int8_can(p.w.scheme)) {
    part.kernel = Part::Kernel::int8;
    part.int8 = {.x = inputs.int8(), .tokens = tokens, .w = p.w, .y = y, .by_rows = ctx.deterministic};
    part.int8_fn = int8_fn(ctx.isa);
  } else if (round && !ctx.deterministic && tokens >= kDenseTilesFrom && tiles_can(ctx.isa, p.w) &&
             p.w.scheme == Scheme::bf16) {
    part.kernel = Part::Kernel::dense_tiles;
    part.dense = {.x = inputs.bf16()[0],
                  .x_stride = dots_stride(x.dim(1)),
                  .tokens = tokens,
                  .w = p.w,
                  .y = p.y.f32(),
                  .y_stride = p.y.stride(0)};
  } else if (round && tiles_can(ctx.isa, p.w) && (tokens >= kTilesFrom || ctx.deterministic)) {
    part.kernel = Part::Kernel::tiles;
    part.tiles = {.x = inputs.tiles(), .tokens = tokens, .w = p.w, .y = y};
  } else if (round &&
             (dots_can(ctx.isa, p.w.scheme) || (!ctx.deterministic && dots_can_many(ctx.isa, p.w.scheme, tokens)))) {
    part.kernel = Part::Kernel::dots;
    part.dots = {.x = inputs.bf16(), .tokens = tokens, .w = p.w, .y = y};
  } else {
    part.rows = {.x = inputs.floats(round, p.w.scheme == Scheme::mxfp4), .tokens = tokens, .w = p.w, .y = y};
  }
  return part;
}

void run_parts(const Ctx& ctx, std::span<Part> parts, int64_t tokens, int64_t cols) {
  int64_t line = 0, products = 0;
  for (Part& part : parts) {
    part.start = line;
    line += part.row_cost * part.count;
    products += tokens * part.count * cols;
  }
  const int64_t workers = products <= kSerialProducts ? 1 : ctx.pool->size();
  auto* panels = static_cast<std::byte*>(ctx.workspace->bytes(workers * kPanelBytes));
  const RowsFn fn = rows_fn(ctx.isa);
  const auto body = [&](int64_t worker) {
    const int64_t from = line * worker / workers, to = line * (worker + 1) / workers;
    for (const Part& part : parts) part.compute(part.row_at(from), part.row_at(to), panels + worker * kPanelBytes, fn);
  };
  if (workers == 1) return body(0);
  ctx.pool->run(body);
}

void check_part(const Tensor& x, const LinearPart& p) {
  K3_CHECK(p.w && p.w.rows > 0 && p.w.cols > 0, "linear: weight of {} x {}", p.w.rows, p.w.cols);
  check_matrix(x, p.w.cols, "x");
  check_matrix(p.y, p.w.rows, "y");
  K3_CHECK(x.dim(0) == p.y.dim(0), "linear: x {} and y {}", x.shape_text(), p.y.shape_text());
  K3_CHECK(!scheme_has_scales(p.w.scheme) || (p.w.cols % 32 == 0 && p.w.scales != nullptr),
           "linear: weight of {} columns with scales", p.w.cols);
}

}  // namespace

void linear_many(const Ctx& ctx, const Tensor& x, std::span<const LinearPart> parts) noexcept {
  if (ctx.training) return linear_many_train(ctx, x, parts);
  if (ctx.device.is_cuda()) return cuda::linear_many(ctx, x, parts);
  if (needs_more(parts)) {
    linear_in_steps(ctx, x, parts, [&](std::span<const LinearPart> plain) { linear_many(ctx, x, plain); });
    return;
  }
  for (const LinearPart& p : parts) check_part(x, p);
  if (x.dim(0) == 0 || parts.empty()) return;
  const Workspace::Scope scope(*ctx.workspace);
  Inputs inputs(ctx, x);
  auto* made = static_cast<Part*>(ctx.workspace->bytes(static_cast<int64_t>(parts.size() * sizeof(Part))));
  size_t count = 0;
  for (const LinearPart& p : parts) made[count++] = make_part(ctx, inputs, x, p);
  run_parts(ctx, {made, count}, x.dim(0), x.dim(1));
}

void linear_many(const Ctx& ctx, const AttnResSite& site, std::span<const LinearPart> parts) noexcept {
  // Kernels that compute the site with the products keep nothing for a backward.
  if (ctx.device.is_cuda() && !ctx.training) return cuda::linear_many(ctx, site, parts);
  if (site.prefix) attn_res_site(ctx, site);
  linear_many(ctx, site.out, parts);
}

void linear(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y, LinearOptions options) noexcept {
  const LinearPart part{w, y, options.full_precision, options.accumulate};
  if (options.x_rest) {
    K3_CHECK(ctx.device.is_cuda() && !ctx.training, "linear: a second row of x is for a GPU's forward alone");
    return cuda::linear_many(ctx, x, {&part, 1}, options.x_rest);
  }
  linear_many(ctx, x, {&part, 1});
}

void linear_transposed(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y) noexcept {
  K3_CHECK(w && w.rows > 0 && w.cols > 0, "linear_transposed: weight of {} x {}", w.rows, w.cols);
  K3_CHECK(!scheme_has_scales(w.scheme), "linear_transposed: mxfp4 and i8 weights are not supported");
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
