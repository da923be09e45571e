#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"

#include <algorithm>

#include "k3/base/check.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kVector = 8;

void check_rows(const void* rows, int64_t stride, const char* what) {
  K3_CHECK(reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % kVector == 0, "rms_norm: {} is not aligned to 16 bytes",
           what);
}

}  // namespace

RmsNormPlan rms_norm_plan(int64_t tokens, int64_t width, const DeviceInfo& device) {
  const int64_t vectors = width / kVector;
  RmsNormPlan plan;
  // Few rows: as many threads as possible (latency). Many: several loads in flight a thread.
  const int64_t wanted = tokens <= 2 * device.sm_count && vectors > 32 ? 1 : vectors <= 32 ? 1 : vectors <= 64 ? 2 : 4;
  while (plan.vectors < wanted || vectors > 1024 * plan.vectors) plan.vectors *= 2;
  const int64_t lanes = (vectors + plan.vectors - 1) / plan.vectors;
  plan.threads = static_cast<int>((lanes + 31) / 32 * 32);
  plan.rows = plan.threads == 32 && tokens > 4 * device.sm_count ? 4 : 1;
  plan.grid = (tokens + plan.rows - 1) / plan.rows;
  return plan;
}

CudaStatus rms_norm_cuda(const RmsNorm& a, Stream stream) {
  K3_CHECK(a.width > 0 && a.width % kVector == 0 && a.width <= 65536, "rms_norm: width {}", a.width);
  K3_CHECK(a.x != nullptr && a.weight != nullptr && a.out != nullptr, "rms_norm: no data");
  check_rows(a.x, a.x_stride, "x");
  check_rows(a.delta, a.delta_stride, "delta");
  check_rows(a.sum_out, a.sum_out_stride, "sum_out");
  check_rows(a.weight, 0, "weight");
  check_rows(a.out, a.out_stride, "out");
  if (a.tokens == 0) return {};
  return {rms_norm_launch(a, rms_norm_plan(a.tokens, a.width, device_info()), stream)};
}

}  // namespace k3::ops::cuda
