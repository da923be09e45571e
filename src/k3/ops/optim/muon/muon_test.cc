#include "k3/ops/optim/muon/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

constexpr double kTolerance = 1e-4;  // muon.h

int64_t span_of(const NsUnits& u) { return u.count == 0 ? 0 : (u.count - 1) * u.stride + u.rows * u.cols; }
std::string text(const NsUnits& u) { return fmt::format("{} x [{}, {}] + {}", u.count, u.rows, u.cols, u.stride - u.rows * u.cols); }

// A tensor in FP32 and in double.
struct Parameter {
  NsUnits units;
  std::vector<float> weight, momentum, grad;
  std::vector<uint16_t> bf16;
  std::vector<double> d_weight, d_momentum, d_grad;
  Parameter(const NsUnits& u, uint64_t seed)
      : units(u), weight(random_normal(span_of(u), seed)), momentum(random_normal(span_of(u), seed + 1)),
        grad(random_normal(span_of(u), seed + 2)), bf16(weight.size(), 0xFFFF), d_weight(to_doubles(weight)),
        d_momentum(to_doubles(momentum)), d_grad(to_doubles(grad)) {}
  MuonTensor<float> tensor(double lr = 0.02, double decay = 0.1) {
    return {weight.data(), momentum.data(), grad.data(), bf16.data(), units, lr, decay};
  }
  MuonTensor<double> d_tensor(double lr = 0.02, double decay = 0.1) {
    return {d_weight.data(), d_momentum.data(), d_grad.data(), nullptr, units, lr, decay};
  }
  bool inside(int64_t i) const { return i % units.stride < units.rows * units.cols; }
};

TEST(NewtonSchulz, EveryShapeEveryIsaAgainstDouble) {
  double worst = 0;
  for (const NsUnits& u : ns_cases()) {
    std::vector<float> in = random_normal(span_of(u), 11, 1e-3F);
    std::vector<double> want(in.size());
    newton_schulz_ref(u, to_doubles(in).data(), want.data());
    for (const Isa isa : test_isas()) {
      if (isa > Isa::avx512) continue;  // the same code
      TestRun run(isa, 2);
      std::vector<float> out(in.size());
      newton_schulz(run.ctx, u, in.data(), out.data());
      for (int64_t i = 0; i < span_of(u); ++i) {
        if (i % u.stride >= u.rows * u.cols) {
          EXPECT_EQ(out[static_cast<size_t>(i)], 0);  // not written between units
        }
      }
      const double ratio = ratio_of(out, want);
      EXPECT_LE(ratio, kTolerance) << isa_name(isa) << " " << text(u);
      worst = std::max(worst, ratio);
    }
  }
  fmt::print("newton_schulz: worst norm ratio {:.2e}\n", worst);
}

TEST(Muon, EveryShapeEveryIsaAgainstDouble) {
  for (const Isa isa : test_isas()) {
    if (isa > Isa::avx512) continue;
    TestRun run(isa, 2);
    std::vector<Parameter> parameters;
    for (const NsUnits& u : ns_cases()) parameters.emplace_back(u, static_cast<uint64_t>(u.rows * 1000 + u.cols));
    const std::vector<Parameter> before = parameters;
    std::vector<MuonTensor<float>> list;
    std::vector<MuonTensor<double>> d_list;
    for (Parameter& p : parameters) list.push_back(p.tensor()), d_list.push_back(p.d_tensor());
    const float scale = 0.25F;
    const double d_scale = 0.25;
    muon(run.ctx, list, {}, &scale);
    muon_ref(d_list, {}, &d_scale);
    for (size_t k = 0; k < parameters.size(); ++k) {
      const Parameter &p = parameters[k], &old = before[k];
      std::vector<double> got, want;
      for (int64_t j = 0; j < span_of(p.units); ++j) {
        const auto i = static_cast<size_t>(j);
        if (!p.inside(j)) {
          EXPECT_EQ(p.weight[i], old.weight[i]);
          EXPECT_EQ(p.momentum[i], old.momentum[i]);
          EXPECT_EQ(p.bf16[i], 0xFFFF);
          continue;
        }
        EXPECT_NEAR(p.momentum[i], p.d_momentum[i], 2e-7 * (std::abs(static_cast<double>(old.momentum[i])) + std::abs(p.d_grad[i])));
        EXPECT_EQ(p.bf16[i], float_to_bf16(p.weight[i]));
        got.push_back(static_cast<double>(p.weight[i]) - static_cast<double>(old.weight[i]) * (1 - 0.02 * 0.1));
        want.push_back(p.d_weight[i] - static_cast<double>(old.weight[i]) * (1 - 0.02 * 0.1));
      }
      // The update is a difference of weights here: a rounding of the weight (1 in 2^24) beside updates of about lr * 0.2.
      EXPECT_LE(ratio_of(got, want), kTolerance + 2e-7 / (0.02 * 0.2)) << isa_name(isa) << " " << text(p.units);
    }
  }
}

// Singular values of a wide block: by the eigenvalues of its small Gram matrix (Jacobi rotations).
std::vector<double> singular_values(const std::vector<float>& x, int64_t rows, int64_t cols) {
  const auto n = static_cast<size_t>(rows);
  std::vector<double> a(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < cols; ++k) {
        a[i * n + j] += static_cast<double>(x[i * static_cast<size_t>(cols) + static_cast<size_t>(k)]) * static_cast<double>(x[j * static_cast<size_t>(cols) + static_cast<size_t>(k)]);
      }
    }
  }
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (std::abs(a[p * n + q]) < 1e-14) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1)), c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (size_t k = 0; k < n; ++k) {
          const double u = a[k * n + p], v = a[k * n + q];
          a[k * n + p] = c * u - s * v, a[k * n + q] = s * u + c * v;
        }
        for (size_t k = 0; k < n; ++k) {
          const double u = a[p * n + k], v = a[q * n + k];
          a[p * n + k] = c * u - s * v, a[q * n + k] = s * u + c * v;
        }
      }
    }
  }
  std::vector<double> values;
  for (size_t i = 0; i < n; ++i) values.push_back(std::sqrt(std::max(0.0, a[i * n + i])));
  return values;
}

// training.md 14.3.
TEST(NewtonSchulz, SingularValuesAndUpdateSizeOfWideGaussianBlocks) {
  TestRun run(detect_isa(), 2);
  for (const NsUnits& u : {NsUnits{1, 32, 128, 4096}, NsUnits{1, 64, 512, 32768}, NsUnits{1, 16, 300, 4800}}) {
    const std::vector<float> in = random_normal(u.rows * u.cols, 3, 1e-4F);
    std::vector<float> out(in.size());
    newton_schulz(run.ctx, u, in.data(), out.data());
    for (const double s : singular_values(out, u.rows, u.cols)) {
      EXPECT_GE(s, 0.65) << text(u);
      EXPECT_LE(s, 1.25) << text(u);
    }
    double squares = 0;
    for (const float o : out) squares += static_cast<double>(o) * static_cast<double>(o);
    const double rms = muon_update_scale(u) * std::sqrt(squares / static_cast<double>(out.size()));
    EXPECT_GE(rms, 0.14) << text(u);
    EXPECT_LE(rms, 0.20 * 1.1) << text(u);
  }
}

TEST(NewtonSchulz, RowAndColumnScalesAndSigns) {
  TestRun run(detect_isa());
  const NsUnits u{1, 8, 24, 192};
  const std::vector<float> in = random_normal(192, 4);
  std::vector<float> out(192), other(192), scaled(in);
  newton_schulz(run.ctx, u, in.data(), out.data());
  for (float& v : scaled) v *= -1024;  // a power of two: exact
  newton_schulz(run.ctx, u, scaled.data(), other.data());
  for (size_t i = 0; i < 192; ++i) EXPECT_NEAR(other[i], -out[i], 1e-5);
  std::vector<float> turned(192), turned_out(192);  // the transpose of a block gives the transpose
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < 24; ++j) turned[j * 8 + i] = in[i * 24 + j];
  }
  newton_schulz(run.ctx, {1, 24, 8, 192}, turned.data(), turned_out.data());
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < 24; ++j) EXPECT_NEAR(turned_out[j * 8 + i], out[i * 24 + j], 1e-5);
  }
}

TEST(Muon, ZeroGradientsGiveZeroUpdates) {
  TestRun run(detect_isa());
  Parameter p({2, 16, 16, 256}, 1);
  std::fill(p.grad.begin(), p.grad.begin() + 256, 0.0F);
  std::fill(p.momentum.begin(), p.momentum.begin() + 256, 0.0F);
  const std::vector<float> before = p.weight;
  const MuonTensor<float> t = p.tensor(0.02, 0);
  muon(run.ctx, {&t, 1});
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 256, p.weight.begin()));
  EXPECT_NE(before[300], p.weight[300]);
}

// training.md 14.3: scaling one head's gradient leaves the updates of the others unchanged, to the bit.
TEST(Muon, HeadsAreIndependent) {
  TestRun run(detect_isa(), 2);
  Parameter a({4, 32, 96, 3072}, 7), b = a;
  for (size_t i = 3072; i < 2 * 3072; ++i) b.grad[i] *= 1000;
  const MuonTensor<float> ta = a.tensor(), tb = b.tensor();
  muon(run.ctx, {&ta, 1});
  muon(run.ctx, {&tb, 1});
  for (size_t i = 0; i < a.weight.size(); ++i) {
    if (i / 3072 == 1) continue;
    ASSERT_EQ(a.weight[i], b.weight[i]) << i;
  }
  EXPECT_NE(a.weight[3072], b.weight[3072]);
}

TEST(Muon, OneTensorOfHeadsEqualsATensorAHead) {
  TestRun run(detect_isa(), 2);
  Parameter a({4, 32, 96, 3072}, 7), b = a;
  const MuonTensor<float> ta = a.tensor();
  muon(run.ctx, {&ta, 1});
  std::vector<MuonTensor<float>> list;
  for (int64_t h = 3; h >= 0; --h) {
    list.push_back({b.weight.data() + h * 3072, b.momentum.data() + h * 3072, b.grad.data() + h * 3072, nullptr, {1, 32, 96, 3072}, 0.02, 0.1});
  }
  muon(run.ctx, list);
  EXPECT_EQ(a.weight, b.weight);
}

// Large units are divided among threads, small ones dealt whole: no bit depends on it.
TEST(Muon, ThreadsChangeNoBit) {
  std::vector<float> large, small;
  for (const int threads : {1, 2, 3}) {
    TestRun run(detect_isa(), threads);
    Parameter a({1, 260, 500, 130000}, 1), b({1, 500, 260, 130000}, 2), c({5, 31, 47, 1457}, 3);
    const MuonTensor<float> list[] = {c.tensor(), a.tensor(), b.tensor()};
    muon(run.ctx, list);
    a.weight.insert(a.weight.end(), b.weight.begin(), b.weight.end());
    if (threads == 1) large = a.weight, small = c.weight;
    EXPECT_EQ(large, a.weight);
    EXPECT_EQ(small, c.weight);
  }
}

TEST(Muon, LargeUnitAgainstDouble) {
  TestRun run(detect_isa(), 2);
  const NsUnits u{1, 200, 420, 84000};
  const std::vector<float> in = random_normal(84000, 3);
  std::vector<float> out(in.size());
  std::vector<double> want(in.size());
  newton_schulz(run.ctx, u, in.data(), out.data());
  newton_schulz_ref(u, to_doubles(in).data(), want.data());
  EXPECT_LE(ratio_of(out, want), kTolerance);
}

TEST(Muon, BadGradientChangesNothing) {
  TestRun run(detect_isa());
  Parameter p({1, 8, 8, 64}, 1);
  const Parameter before = p;
  const MuonTensor<float> t = p.tensor();
  const float bad = std::numeric_limits<float>::quiet_NaN();
  muon(run.ctx, {&t, 1}, {}, &bad);
  EXPECT_EQ(p.weight, before.weight);
  EXPECT_EQ(p.momentum, before.momentum);
}

// Two steps by hand on 1 x 1 blocks, where Newton-Schulz is a polynomial of the sign.
TEST(Muon, ByHand) {
  double one = 1;
  for (int i = 0; i < 5; ++i) one = 3.4445 * one - 4.7750 * one * one * one + 2.0315 * one * one * one * one * one;
  std::vector<double> w = {2}, m = {0}, g = {4};
  const MuonTensor<double> t{w.data(), m.data(), g.data(), nullptr, {1, 1, 1, 1}, 0.1, 0.5};
  muon_ref({&t, 1});
  EXPECT_NEAR(w[0], 2 * 0.95 - 0.1 * 0.2 * one, 1e-6);
  EXPECT_EQ(m[0], 4);
  g[0] = -100;
  muon_ref({&t, 1});
  EXPECT_NEAR(m[0], 0.95 * 4 - 100, 1e-12);
  EXPECT_NEAR(w[0], (2 * 0.95 - 0.02 * one) * 0.95 + 0.02 * one, 1e-6);
}

}  // namespace
}  // namespace k3::ops
