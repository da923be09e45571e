#include "k3/ops/elementwise/cuda/elementwise_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {
namespace {

void check_shape(int64_t rows, int64_t width) {
  K3_CHECK(width > 0 && width % 8 == 0 && rows >= 0 && rows * (width / 8) < int64_t{1} << 31, "elementwise: [{}, {}]", rows,
           width);
}
void check_rows(const void* rows, int64_t stride, int64_t vector = 8) {
  K3_CHECK(rows != nullptr && reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % vector == 0,
           "elementwise: rows not aligned to 16 bytes");
}
void check_pair(const RowPair& a) {
  check_shape(a.rows, a.width);
  check_rows(a.x, a.x_stride);
  check_rows(a.y, a.y_stride);
  check_rows(a.out, a.out_stride);
}

}  // namespace

CudaStatus add_cuda(const RowPair& a, Stream stream) {
  if (a.rows == 0) return {};
  check_pair(a);
  return {add_launch(a, stream)};
}

CudaStatus sigmoid_gate_cuda(const RowPair& a, Stream stream) {
  if (a.rows == 0) return {};
  K3_CHECK(a.width > 0 && a.rows * a.width < int64_t{1} << 31, "sigmoid_gate: [{}, {}]", a.rows, a.width);
  if (((a.width | a.x_stride | a.y_stride | a.out_stride) & 7) == 0) check_pair(a);
  return {sigmoid_gate_launch(a, stream)};
}

CudaStatus convert_cuda(const RowCopy& a, Stream stream) {
  if (a.rows == 0) return {};
  check_shape(a.rows, a.width);
  check_rows(a.x, a.x_stride, a.x_f32 ? 4 : 8);
  check_rows(a.out, a.out_stride, a.out_f32 ? 4 : 8);
  return {convert_launch(a, stream)};
}

CudaStatus gather_rows_cuda(const RowGather& a, Stream stream) {
  if (a.rows == 0) return {};
  check_shape(a.rows, a.width);
  check_rows(a.x, a.x_stride);
  check_rows(a.out, a.out_stride);
  K3_CHECK(a.index != nullptr, "gather: no index");
  return {gather_rows_launch(a, stream)};
}

}  // namespace k3::ops::cuda
