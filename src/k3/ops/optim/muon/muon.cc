#include "k3/ops/optim/muon/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"
#include "k3/ops/optim/muon/muon_kernel.h"

namespace k3::ops {
namespace {

// Units of at least so many operations are divided among threads where there are not many of them.
constexpr double kLargeFlops = 50e6;

const MuonKernels& kernels(Isa isa) {
  if (isa >= Isa::avx512) return kMuonAvx512;
  return isa == Isa::avx2 ? kMuonAvx2 : kMuonPortable;
}

// One unit and where it lies.
struct Unit {
  const MuonTensor<float>* tensor;
  int64_t offset;
  double flops;
};

// [r, c] with r <= c: the unit, or its transpose when it is tall.
struct Shape {
  int64_t rows, cols;    // of the unit
  int64_t r, c;          // of X
  int64_t row_pad, col_pad, row_stride, col_stride;
  explicit Shape(const NsUnits& u)
      : rows(u.rows),
        cols(u.cols),
        r(std::min(rows, cols)),
        c(std::max(rows, cols)),
        row_pad(pad_cols(r)),
        col_pad(pad_cols(c)),
        row_stride(pad_stride(r)),
        col_stride(pad_stride(c)) {}
  bool tall() const { return rows > cols; }
  double flops() const { return 5.0 * static_cast<double>(r) * static_cast<double>(r) * static_cast<double>(4 * c + 2 * r); }
  int64_t long_floats() const { return row_pad * col_stride; }   // X
  int64_t tall_floats() const { return col_pad * row_stride; }   // its transpose
  int64_t square_floats() const { return row_pad * row_stride; }
  int64_t floats() const { return 2 * long_floats() + tall_floats() + 2 * square_floats() + 2 * col_pad; }
};

// Scratch of a unit in one block of Shape::floats().
struct Scratch {
  float *x, *y, *t, *a, *b;
  double* squares;  // a row of the unit each
  Scratch(const Shape& s, float* at)
      : x(at), y(x + s.long_floats()), t(y + s.long_floats()), a(t + s.tall_floats()), b(a + s.square_floats()),
        squares(reinterpret_cast<double*>(b + s.square_floats())) {}
};

// X <- NS5(X / norm). `rows` runs a body over parts of [0, n) that are multiples of kPadCols.
template <class Rows>
void orthogonalise(const MuonKernels& k, const Shape& s, double norm, Scratch& w, const Rows& rows) {
  const auto factor = static_cast<float>(1 / (norm + kNsEps));
  rows(s.row_pad, [&](int64_t begin, int64_t end) { k.scale(w.x + begin * s.col_stride, (end - begin) * s.col_stride, factor); });
  const auto square = [&](const ProductJob& product) {
    rows(s.row_pad, [&](int64_t begin, int64_t end) {
      ProductJob part = product;
      part.row_begin = begin;
      part.row_end = end;
      k.product(part);
    });
    rows(s.row_pad, [&](int64_t begin, int64_t end) { k.mirror(product.out, s.row_stride, begin, end); });
  };
  for (int step = 0; step < kNsSteps; ++step) {
    rows(s.row_pad, [&](int64_t begin, int64_t end) { k.transpose(w.x, s.col_stride, begin, end, s.col_pad, w.t, s.row_stride); });
    square({.left = w.t, .left_stride = s.row_stride, .right = w.t, .right_stride = s.row_stride, .depth = s.c, .out = w.a,
            .out_stride = s.row_stride, .cols = s.row_pad, .upper = true});
    square({.left = w.a, .left_stride = s.row_stride, .right = w.a, .right_stride = s.row_stride, .depth = s.r, .old = w.a, .out = w.b,
            .out_stride = s.row_stride, .cols = s.row_pad, .alpha = static_cast<float>(kNsCoefficients[2]),
            .beta = static_cast<float>(kNsCoefficients[1]), .upper = true});
    rows(s.row_pad, [&](int64_t begin, int64_t end) {
      k.product({.left = w.b, .left_stride = s.row_stride, .right = w.x, .right_stride = s.col_stride, .depth = s.r, .old = w.x,
                 .out = w.y, .out_stride = s.col_stride, .row_begin = begin, .row_end = end, .cols = s.col_pad,
                 .beta = static_cast<float>(kNsCoefficients[0])});
    });
    std::swap(w.x, w.y);
  }
}

struct Step {
  const MuonKernels& kernels;
  const MuonOptions& options;
  float scale;
};

// Momentum, Newton-Schulz and update of one unit. Sums of squares are added row by row, whoever computed them.
template <class Rows>
void run_unit(const Step& step, const Unit& unit, float* memory, const Rows& rows) {
  const MuonTensor<float>& t = *unit.tensor;
  const Shape s(t.units);
  const MuonKernels& k = step.kernels;
  Scratch w(s, memory);
  // A tall unit is written as it lies where the transpose of X belongs, and X is made from that.
  float* const lying = s.tall() ? w.t : w.x;
  const int64_t stride = s.tall() ? s.row_stride : s.col_stride, padded_rows = pad_cols(s.rows);
  rows(padded_rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = unit.offset + i * s.cols;
      const bool inside = i < s.rows;
      const double squares = k.momentum({.grad = inside ? t.grad + at : nullptr, .momentum = inside ? t.momentum + at : nullptr,
                                         .scale = step.scale, .mu = static_cast<float>(step.options.momentum),
                                         .nesterov = step.options.nesterov, .count = inside ? s.cols : 0, .out = lying + i * stride,
                                         .padded = stride});
      w.squares[i] = squares;
    }
  });
  double squares = 0;
  for (int64_t i = 0; i < s.rows; ++i) squares += w.squares[i];
  if (s.tall()) {
    rows(padded_rows, [&](int64_t begin, int64_t end) {
      k.transpose(w.t, s.row_stride, begin, end, s.row_pad, w.x, s.col_stride);
    });
    // Columns between the padding and the stride belong to no tile; scaling passes over them.
    for (int64_t i = 0; i < s.row_pad; ++i) std::fill(w.x + i * s.col_stride + s.col_pad, w.x + (i + 1) * s.col_stride, 0.0F);
  }
  orthogonalise(k, s, std::sqrt(squares), w, rows);
  if (s.tall()) {
    rows(s.row_pad, [&](int64_t begin, int64_t end) { k.transpose(w.x, s.col_stride, begin, end, s.col_pad, w.t, s.row_stride); });
  }
  const float* const o = s.tall() ? w.t : w.x;
  rows(padded_rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(end, s.rows); ++i) {
      const int64_t at = unit.offset + i * s.cols;
      k.update({.weight = t.weight + at, .o = o + i * stride, .bf16 = t.bf16 == nullptr ? nullptr : t.bf16 + at,
                .keep = static_cast<float>(1 - t.lr * t.decay), .step = static_cast<float>(t.lr * muon_update_scale(t.units)),
                .count = s.cols});
    }
  });
}

void check(const NsUnits& u) {
  K3_CHECK(u.count >= 0 && u.rows > 0 && u.cols > 0 && (u.count <= 1 || u.stride >= u.rows * u.cols),
           "muon: {} units of [{}, {}], {} apart", u.count, u.rows, u.cols, u.stride);
}

// All units, the most work first: what is left at the end is short.
std::vector<Unit> units_of(std::span<const MuonTensor<float>> tensors) {
  std::vector<Unit> units;
  for (const MuonTensor<float>& t : tensors) {
    check(t.units);
    for (int64_t u = 0; u < t.units.count; ++u) units.push_back({&t, u * t.units.stride, Shape(t.units).flops()});
  }
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.flops > b.flops; });
  return units;
}

}  // namespace

double muon_update_scale(const NsUnits& units) noexcept {
  return 0.2 * std::sqrt(static_cast<double>(std::max(units.rows, units.cols)));
}

void muon(const Ctx& ctx, std::span<const MuonTensor<float>> tensors, const MuonOptions& options, const float* scale) noexcept {
  if (ctx.device.is_cuda()) return cuda::muon(ctx, tensors, options, scale);
  if (scale != nullptr && std::isnan(*scale)) return;
  const std::vector<Unit> units = units_of(tensors);
  if (units.empty()) return;
  const Step step{kernels(ctx.isa), options, scale == nullptr ? 1.0F : *scale};
  const int workers = worker_count(ctx);
  double flops = 0;
  int64_t most = 0;
  for (const Unit& u : units) {
    flops += u.flops;
    most = std::max(most, Shape(u.tensor->units).floats());
  }
  most = pad_cols(most);
  const Workspace::Scope scope(*ctx.workspace);
  auto* const memory = static_cast<float*>(ctx.workspace->bytes(workers * most * static_cast<int64_t>(sizeof(float))));
  size_t large = 0;
  while (workers > 1 && large < units.size() && units[large].flops >= kLargeFlops && units[large].flops > flops / (4 * workers)) ++large;
  for (size_t i = 0; i < large; ++i) {
    run_unit(step, units[i], memory, [&](int64_t n, const auto& body) { ctx.pool->parallel_for(n, kPadCols, body); });
  }
  run_tasks(ctx, static_cast<int64_t>(units.size() - large), [&](int worker, int64_t task) {
    run_unit(step, units[large + static_cast<size_t>(task)], memory + worker * most,
             [](int64_t n, const auto& body) { body(0, n); });
  });
}

void newton_schulz(const Ctx& ctx, const NsUnits& units, const float* in, float* out) noexcept {
  check(units);
  if (ctx.device.is_cuda()) return cuda::newton_schulz(ctx, units, in, out);
  // A step from zero momentum and zero weights: U = g without Nesterov, and the new weight is the update itself.
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t span = units.count == 0 ? 0 : (units.count - 1) * units.stride + units.rows * units.cols;
  const Tensor momentum = ctx.workspace->tensor({2, span});
  std::fill(momentum.f32(), momentum.f32() + 2 * span, 0.0F);
  const MuonTensor<float> tensor{.weight = momentum.row(1), .momentum = momentum.row(0), .grad = in, .units = units,
                                 .lr = -1 / muon_update_scale(units)};
  muon(ctx, {&tensor, 1}, {.momentum = 0, .nesterov = false});
  for (int64_t u = 0; u < units.count; ++u) {
    std::copy_n(momentum.row(1) + u * units.stride, units.rows * units.cols, out + u * units.stride);
  }
}

}  // namespace k3::ops
