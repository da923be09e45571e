#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.h"
#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops::cuda {
namespace {

constexpr double kTolerance = 3e-3;

double run(int64_t rows, int64_t width, const Glu& kind, float scale, bool joined, bool in_place) {
  const int64_t stride = joined ? 2 * width : width + 8;
  std::vector<float> gate = random_bf16(rows * stride, 1, scale), up = random_bf16(rows * stride, 2, scale);
  if (joined) {
    for (int64_t t = 0; t < rows; ++t) std::copy_n(up.begin() + t * stride, width, gate.begin() + t * stride + width);
  }
  std::vector<float> want(static_cast<size_t>(rows * width)), got;
  const Tensor gate_t = matrix(gate.data(), rows, width, stride),
               up_t = joined ? matrix(gate.data() + width, rows, width, stride) : matrix(up.data(), rows, width, stride);
  glu_ref(gate_t, up_t, kind, matrix(want.data(), rows, width));
  const DeviceArray<uint16_t> d_gate(to_bf16(gate)), d_up(to_bf16(up)), d_out(rows * stride);
  const auto& out = in_place ? d_gate : d_out;
  EXPECT_TRUE(glu_cuda({.rows = rows,
                        .width = width,
                        .gate = d_gate.data(),
                        .gate_stride = stride,
                        .up = joined ? d_gate.data() + width : d_up.data(),
                        .up_stride = stride,
                        .out = out.data(),
                        .out_stride = stride,
                        .situ = kind.kind == GluKind::situ,
                        .beta = kind.beta,
                        .linear_beta = kind.linear_beta.value_or(0.0F)},
                       nullptr)
                  .ok());
  const std::vector<float> all = from_bf16(out.get());
  for (int64_t t = 0; t < rows; ++t) got.insert(got.end(), all.begin() + t * stride, all.begin() + t * stride + width);
  const double ratio = norm_ratio(got, want);
  EXPECT_LE(ratio, kTolerance) << rows << " x " << width << " situ " << (kind.kind == GluKind::situ) << " scale " << scale;
  // Every number alone: half a unit of BF16 and what FP32 loses.
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - want[i]) > std::abs(want[i]) * 0x1.02p-8F + 1e-30F) {
      ADD_FAILURE() << "at " << i << ": " << got[i] << " not " << want[i];
      break;
    }
  }
  EXPECT_TRUE(d_gate.guards_intact() && d_out.guards_intact());
  return ratio;
}

TEST(GluGpu, SanitizeKindsScalesAndLayouts) {
  K3_NEEDS_GPU();
  const Glu kinds[] = {
      {GluKind::silu, 1, {}}, {GluKind::situ, 4, 25.0F}, {GluKind::situ, 4, {}}, {GluKind::situ, 1.5F, 7.0F}};
  double worst = 0;
  for (const Glu& kind : kinds) {
    for (const float scale : {1e-4F, 0.1F, 1.0F, 30.0F}) {
      worst = std::max(worst, run(3, 40, kind, scale, false, false));
      worst = std::max(worst, run(5, 3072, kind, scale, true, scale == 1.0F));
      worst = std::max(worst, run(1, 8, kind, scale, true, false));
    }
  }
  worst = std::max(worst, run(400, 6144, kinds[1], 2, true, false));
  fmt::print("glu: worst norm ratio {:.2e}\n", worst);
}

}  // namespace
}  // namespace k3::ops::cuda
