#include "k3/ops/matmul/matmul.h"

#include <algorithm>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/matmul/matmul_kernel.h"

namespace k3::ops {
namespace {

constexpr int64_t kDepth = 256;   // of a pass: the panel of b stays in the second cache
constexpr int64_t kTaskRows = 8;  // tiles of a task
constexpr int64_t kTaskCols = 4;

struct Matrix {
  const float* data;
  int64_t row, col;  // steps in elements
  const float* at(int64_t i, int64_t j) const { return data + i * row + j * col; }
};

Matrix view(const Tensor& t, Op op) {
  return op == Op::plain ? Matrix{t.f32(), t.stride(0), 1} : Matrix{t.f32(), 1, t.stride(0)};
}

const MatmulKernel& kernel_of(Isa isa) {
  if (isa >= Isa::avx512) return kMatmulAvx512;
  return isa == Isa::avx2 ? kMatmulAvx2 : kMatmulPortable;
}

struct Sizes {
  int64_t rows, cols, depth;
};

Sizes sizes(const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c) {
  const bool flip_a = op_a == Op::transposed, flip_b = op_b == Op::transposed;
  const Sizes size{a.dim(flip_a ? 1 : 0), b.dim(flip_b ? 0 : 1), a.dim(flip_a ? 0 : 1)};
  K3_CHECK(a.rank == 2 && b.rank == 2 && c.rank == 2 && b.dim(flip_b ? 1 : 0) == size.depth && c.dim(0) == size.rows &&
               c.dim(1) == size.cols && a.dtype == b.dtype && a.dtype == c.dtype,
           "matmul: {}{} times {}{} to {}", a.shape_text(), flip_a ? " transposed" : "", b.shape_text(), flip_b ? " transposed" : "",
           c.shape_text());
  return size;
}

struct Tiles {
  int64_t down, across;  // tasks
  Tiles(const MatmulKernel& kernel, const Sizes& size)
      : down((size.rows + kTaskRows * kernel.rows - 1) / (kTaskRows * kernel.rows)),
        across((size.cols + kTaskCols * kernel.cols - 1) / (kTaskCols * kernel.cols)) {}
};

int64_t room_floats(const MatmulKernel& kernel) { return kDepth * kTaskCols * kernel.cols; }

// The tiles of one task; `room` holds columns of b that do not lie as the kernel reads them.
void task_f32(const MatmulKernel& kernel, const Matrix& a, const Matrix& b, const Sizes& size, const Tensor& c, bool accumulate,
              int64_t first_row, int64_t first_col, float* room) {
  const int64_t end_row = std::min(size.rows, first_row + kTaskRows * kernel.rows);
  const int64_t end_col = std::min(size.cols, first_col + kTaskCols * kernel.cols);
  for (int64_t k = 0; k == 0 || k < size.depth; k += kDepth) {
    const int64_t depth = std::min(kDepth, size.depth - k);
    for (int64_t j = first_col; j < end_col; j += kernel.cols) {
      const int64_t cols = std::min(kernel.cols, end_col - j);
      const float* columns = b.at(k, j);
      int64_t step = b.row;
      if (b.col != 1 || cols < kernel.cols) {
        float* const panel = room + (j - first_col) * kDepth;
        kernel.pack(columns, b.col, b.row, cols, depth, panel);
        columns = panel;
        step = kernel.cols;
      }
      for (int64_t r = first_row; r < end_row; r += kernel.rows) {
        kernel.tile({.a = a.at(r, k),
                     .a_row = a.row,
                     .a_step = a.col,
                     .b = columns,
                     .b_step = step,
                     .depth = depth,
                     .c = c.f32() + r * c.stride(0) + j,
                     .stride = c.stride(0),
                     .rows = std::min(kernel.rows, end_row - r),
                     .cols = cols,
                     .accumulate = accumulate || k > 0});
      }
    }
  }
}

void rows_f64(const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Sizes& size, const Tensor& c, bool accumulate, int64_t begin,
              int64_t end) {
  const auto element = [](const Tensor& t, Op op, int64_t i, int64_t j) {
    return op == Op::plain ? t.as<double>()[i * t.stride(0) + j] : t.as<double>()[j * t.stride(0) + i];
  };
  for (int64_t i = begin; i < end; ++i) {
    double* const out = c.as<double>() + i * c.stride(0);
    if (!accumulate) std::fill_n(out, size.cols, 0.0);
    for (int64_t k = 0; k < size.depth; ++k) {
      const double x = element(a, op_a, i, k);
      for (int64_t j = 0; j < size.cols; ++j) out[j] += x * element(b, op_b, k, j);
    }
  }
}

}  // namespace

int64_t matmul_room_bytes(Isa isa) noexcept { return room_floats(kernel_of(isa)) * 4; }

void matmul_one(Isa isa, const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c, bool accumulate, void* room) noexcept {
  const Sizes size = sizes(a, op_a, b, op_b, c);
  if (c.dtype == DType::f64) return rows_f64(a, op_a, b, op_b, size, c, accumulate, 0, size.rows);
  const MatmulKernel& kernel = kernel_of(isa);
  for (int64_t r = 0; r < size.rows; r += kTaskRows * kernel.rows) {
    for (int64_t j = 0; j < size.cols; j += kTaskCols * kernel.cols) {
      task_f32(kernel, view(a, op_a), view(b, op_b), size, c, accumulate, r, j, static_cast<float*>(room));
    }
  }
}

void matmul(const Ctx& ctx, const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c, bool accumulate) noexcept {
  if (ctx.device.is_cuda()) return cuda::matmul(ctx, a, op_a, b, op_b, c, accumulate);
  const Sizes size = sizes(a, op_a, b, op_b, c);
  if (size.rows == 0 || size.cols == 0) return;
  if (c.dtype == DType::f64) {
    run_tasks(ctx, size.rows, [&](int, int64_t i) { rows_f64(a, op_a, b, op_b, size, c, accumulate, i, i + 1); });
    return;
  }
  const Workspace::Scope scope(*ctx.workspace);
  const MatmulKernel& kernel = kernel_of(ctx.isa);
  const Tiles tiles(kernel, size);
  const int64_t room = room_floats(kernel);
  auto* const rooms = static_cast<float*>(ctx.workspace->bytes(worker_count(ctx) * room * 4));
  run_tasks(ctx, tiles.down * tiles.across, [&](int worker, int64_t task) {
    task_f32(kernel, view(a, op_a), view(b, op_b), size, c, accumulate, task / tiles.across * kTaskRows * kernel.rows,
             task % tiles.across * kTaskCols * kernel.cols, rooms + worker * room);
  });
}

}  // namespace k3::ops
