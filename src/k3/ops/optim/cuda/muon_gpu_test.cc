#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "k3/ops/optim/cuda/ns_products.h"
#include "k3/ops/optim/cuda/optim_gpu_test_util.h"
#include "k3/ops/optim/muon/muon.h"
#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops::cuda {
namespace {

double tolerance(const NsUnits& u) { return std::min(u.rows, u.cols) >= 24 ? 2e-2 : 1e-1; }  // muon.h

int64_t span_of(const NsUnits& u) { return u.count == 0 ? 0 : (u.count - 1) * u.stride + u.rows * u.cols; }

struct Parameter {
  NsUnits units;
  std::vector<float> weight, momentum, grad;
  DeviceArray<float> d_weight, d_momentum, d_grad;
  DeviceArray<uint16_t> d_bf16;
  Parameter(const NsUnits& u, uint64_t seed)
      : units(u), weight(random_normal(span_of(u), seed)), momentum(random_normal(span_of(u), seed + 1)),
        grad(random_normal(span_of(u), seed + 2)), d_weight(weight), d_momentum(momentum), d_grad(grad), d_bf16(span_of(u)) {}
  MuonTensor<float> tensor() const { return {d_weight.data(), d_momentum.data(), d_grad.data(), d_bf16.data(), units, 0.02, 0.1}; }
};

void expect_step(const Parameter& p, double scale) {
  std::vector<double> weight = to_doubles(p.weight), momentum = to_doubles(p.momentum), grad = to_doubles(p.grad);
  const MuonTensor<double> t{weight.data(), momentum.data(), grad.data(), nullptr, p.units, 0.02, 0.1};
  muon_ref({&t, 1}, {}, &scale);
  const std::vector<float> w = p.d_weight.get(), m = p.d_momentum.get();
  const std::vector<uint16_t> bf16 = p.d_bf16.get();
  std::vector<double> got, want;
  for (size_t i = 0; i < w.size(); ++i) {
    if (static_cast<int64_t>(i) % p.units.stride >= p.units.rows * p.units.cols) {
      EXPECT_EQ(w[i], p.weight[i]);
      EXPECT_EQ(m[i], p.momentum[i]);
      continue;
    }
    ASSERT_NEAR(m[i], momentum[i], 2e-7 * (std::abs(static_cast<double>(p.momentum[i])) + std::abs(grad[i])));
    ASSERT_EQ(bf16[i], float_to_bf16(w[i]));
    got.push_back(static_cast<double>(w[i]) - static_cast<double>(p.weight[i]) * (1 - 0.02 * 0.1));
    want.push_back(weight[i] - static_cast<double>(p.weight[i]) * (1 - 0.02 * 0.1));
  }
  EXPECT_LE(ratio_of(got, want), tolerance(p.units)) << p.units.count << " x [" << p.units.rows << ", " << p.units.cols << "]";
  EXPECT_TRUE(p.d_weight.guards_intact() && p.d_momentum.guards_intact() && p.d_bf16.guards_intact());
}

TEST(MuonGpu, SanitizeEveryShapeAgainstDouble) {
  K3_NEEDS_GPU();
  GpuRun run;
  std::vector<Parameter> parameters;
  for (const NsUnits& u : ns_cases()) {
    if (u.count > 0) parameters.emplace_back(u, static_cast<uint64_t>(u.rows * 1000 + u.cols));
  }
  std::vector<MuonTensor<float>> list;
  for (const Parameter& p : parameters) list.push_back(p.tensor());
  const DeviceArray<float> scale(std::vector<float>{0.25F});
  muon(run.ctx, list, {}, scale.data());
  run.finish();
  for (const Parameter& p : parameters) expect_step(p, 0.25);
}

// More tensors of a shape than a launch lists, in one call and in calls of their own: the same bits (a unit's sums do not depend on
// the batch with the plain product; with the library the algorithm may change with it, so those are compared by the tolerance).
TEST(MuonGpu, ManyTensorsOfOneShape) {
  K3_NEEDS_GPU();
  GpuRun run;
  std::vector<Parameter> parameters;
  for (uint64_t i = 0; i < 60; ++i) parameters.emplace_back(NsUnits{2, 24, 40, 960}, i * 7);
  std::vector<MuonTensor<float>> list;
  for (const Parameter& p : parameters) list.push_back(p.tensor());
  muon(run.ctx, list);
  run.finish();
  for (const Parameter& p : parameters) expect_step(p, 1);
}

// Products of the library and of the plain kernel on the same numbers.
TEST(MuonGpu, SanitizeLibraryAndPlainProductsAgree) {
  K3_NEEDS_GPU();
  for (const auto& [units, r, c] : {std::array<int64_t, 3>{1, 8, 8}, {3, 40, 104}, {5, 128, 128}, {2, 192, 1536}}) {
    const std::vector<float> x = random_bf16(units * r * c, 3, 1 / std::sqrt(static_cast<float>(c)));
    const DeviceArray<uint16_t> d_x(to_bf16(x));
    const DeviceArray<std::byte> workspace(kNsWorkspace);
    std::vector<float> y[2], a[2];
    for (const bool plain : {false, true}) {
      const DeviceArray<uint16_t> d_a(units * r * r), d_b(units * r * r), d_y(units * r * c);
      const NsStep step{units, r, c, d_x.data(), d_a.data(), d_b.data(), d_y.data(), workspace.data(), 3.4445F, -4.775F, 2.0315F, plain};
      EXPECT_TRUE(ns_step_cuda(step, nullptr).ok());
      gpu_sync();
      y[plain] = from_bf16(d_y.get());
      a[plain] = from_bf16(d_a.get());
      EXPECT_TRUE(d_a.guards_intact() && d_b.guards_intact() && d_y.guards_intact());
    }
    EXPECT_LE(norm_ratio(a[0], a[1]), 3e-3) << r << " x " << c;
    EXPECT_LE(norm_ratio(y[0], y[1]), 6e-3) << r << " x " << c;
    std::vector<float> gram(static_cast<size_t>(units * r * r));
    for (int64_t u = 0; u < units; ++u) {
      for (int64_t i = 0; i < r; ++i) {
        for (int64_t j = 0; j < r; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < c; ++k) sum += static_cast<double>(x[static_cast<size_t>((u * r + i) * c + k)]) * static_cast<double>(x[static_cast<size_t>((u * r + j) * c + k)]);
          gram[static_cast<size_t>((u * r + i) * r + j)] = static_cast<float>(sum);
        }
      }
    }
    EXPECT_LE(norm_ratio(a[0], gram), 4e-3) << r << " x " << c;
  }
}

TEST(MuonGpu, BadGradientChangesNothing) {
  K3_NEEDS_GPU();
  GpuRun run;
  const Parameter p({2, 32, 64, 2048}, 1);
  const DeviceArray<float> scale(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  const MuonTensor<float> t = p.tensor();
  muon(run.ctx, {&t, 1}, {}, scale.data());
  run.finish();
  EXPECT_EQ(p.d_weight.get(), p.weight);
  EXPECT_EQ(p.d_momentum.get(), p.momentum);
}

TEST(MuonGpu, NewtonSchulzAloneAndInPlace) {
  K3_NEEDS_GPU();
  GpuRun run;
  for (const NsUnits& u : {NsUnits{3, 64, 200, 12800}, NsUnits{2, 200, 64, 12800}}) {
    const std::vector<float> in = random_normal(span_of(u), 3, 1e-3F);
    std::vector<double> want(in.size());
    newton_schulz_ref(u, to_doubles(in).data(), want.data());
    const DeviceArray<float> x(in);
    ops::newton_schulz(run.ctx, u, x.data(), x.data());
    run.finish();
    EXPECT_LE(ratio_of(x.get(), want), tolerance(u));
  }
}

TEST(MuonGpu, HeadsAreIndependentAndRunsRepeat) {
  K3_NEEDS_GPU();
  GpuRun run;
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    Parameter p({4, 128, 256, 32768}, 7);
    if (i == 2) {
      for (size_t j = 32768; j < 65536; ++j) p.grad[j] *= 1024;
      p.d_grad.set(p.grad);
    }
    const MuonTensor<float> t = p.tensor();
    muon(run.ctx, {&t, 1});
    run.finish();
    std::vector<float> w = p.d_weight.get();
    std::fill(w.begin() + 32768, w.begin() + 65536, 0.0F);
    if (i == 0) first = w;
    EXPECT_EQ(w, first) << i;
  }
}

}  // namespace
}  // namespace k3::ops::cuda
