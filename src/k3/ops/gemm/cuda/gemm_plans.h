// Purpose:  cuBLASLt's algorithms, chosen by measurement: which candidate is fastest for a shape on this device.
// Shapes:   x [T, I] bf16, w [O, I] bf16, y [T, O] bf16 or f32.
// Units:    bytes; strides in elements.
// Memory:   owns one workspace on the device, given to every call. prepare() takes device memory for x, w, y while it
//           measures.
// Threads:  prepare() and load() by one thread, before run(); calls of run() on one stream (they share the workspace).
// Errors:   not_found: no cuBLASLt; exhausted: no device memory; corrupt: load() of a text of another library version
//           or of no plan. run() answers cudaErrorNotSupported where no plan fits.
// Source:   kernels.md 9. Algorithms that add up partial sums in y's dtype or in place are left out; those with FP32
//           sums in the workspace are repeatable. Results of two token buckets may differ in the last bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "k3/ops/cuda/launch.h"
#include "k3/tensor/dtype.h"

namespace k3::ops::cuda {

struct GemmShape {
  int64_t tokens = 0, rows = 0, in = 0;
  DType out = DType::bf16;
  bool accumulate = false;
};

class GemmPlans {
 public:
  static Result<GemmPlans> create(int64_t workspace_bytes = int64_t{32} << 20);
  GemmPlans(GemmPlans&&) noexcept;
  GemmPlans& operator=(GemmPlans&&) noexcept;
  ~GemmPlans();

  // Measures the candidates for the bucket of shape.tokens (gemm_token_bucket) unless it has a plan. Waits for the device.
  Status prepare(const GemmShape& shape, Stream stream);
  bool has(const GemmShape& shape) const;  // a plan of this bucket or a larger one, or one of 4,096 tokens or more
  // us of the plan that run() takes, as measured; 0 without one.
  double measured_us(const GemmShape& shape) const;

  CudaStatus run(const GemmShape& shape, const void* x, int64_t x_stride, const void* w, void* y, int64_t y_stride,
                 Stream stream) const;

  // The plans as text, for the next start on the same machine.
  std::string save() const;
  Status load(std::string_view text);

 private:
  struct Impl;
  explicit GemmPlans(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::ops::cuda
