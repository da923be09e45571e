// Elementary functions of every instruction set against double over a dense grid, and their limits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double reference(VecFn fn, double x) {
  switch (fn) {
    case VecFn::exp: return std::exp(x);
    case VecFn::expm1: return std::expm1(x);
    case VecFn::sigmoid: return 1.0 / (1.0 + std::exp(-x));
    case VecFn::silu: return x / (1.0 + std::exp(-x));
    case VecFn::tanh: return std::tanh(x);
    case VecFn::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  }
  return 0;
}

const std::vector<VecFn> kFns = {VecFn::exp, VecFn::expm1, VecFn::sigmoid, VecFn::silu, VecFn::tanh, VecFn::softplus};

// A linear grid over [-110, 95] and a logarithmic one over 1e-30 .. 100 of both signs.
std::vector<float> grid() {
  std::vector<float> x;
  for (double v = -110; v < 95; v += 1.0 / 2048) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 100; v *= 1.0007) {
    x.push_back(static_cast<float>(v));
    x.push_back(static_cast<float>(-v));
  }
  return x;
}

TEST(VecMath, RelativeErrorOnDenseGrid) {
  const std::vector<float> x = grid();
  std::vector<float> y(x.size());
  for (const Isa isa : test_isas()) {
    for (const VecFn fn : kFns) {
      vec_apply(isa, fn, x.data(), static_cast<int64_t>(x.size()), y.data());
      double worst = 0, at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double r = reference(fn, static_cast<double>(x[i]));
        if (std::abs(r) > 3.4028235e38) {
          ASSERT_TRUE(std::isinf(y[i])) << isa_name(isa) << " x " << x[i];
          continue;
        }
        if (std::abs(r) < 1.2e-36) {  // e^x is subnormal: it is off by two units of 2^-149, silu by x times one
          const double units = std::max(2.0, std::abs(static_cast<double>(x[i])));
          ASSERT_LE(std::abs(static_cast<double>(y[i]) - r), 3e-7 * std::abs(r) + units * 0x1p-149)
              << isa_name(isa) << " " << x[i];
          continue;
        }
        const double e = std::abs(static_cast<double>(y[i]) - r) / std::abs(r);
        if (!(e <= worst)) worst = e, at = static_cast<double>(x[i]);
      }
      EXPECT_LT(worst, 3e-7) << isa_name(isa) << " fn " << static_cast<int>(fn) << " at " << at;
      RecordProperty(std::string(isa_name(isa)) + std::to_string(static_cast<int>(fn)), std::to_string(worst * 1e7));
    }
  }
}

TEST(VecMath, LimitsZerosAndNan) {
  const std::vector<float> x = {kInf, -kInf, kNan, 0.0F, -0.0F, 1e38F, -1e38F, 500.0F, -500.0F, 1e-40F};
  const std::vector<std::vector<float>> want = {
      {kInf, 0, kNan, 1, 1, kInf, 0, kInf, 0, 1},          // exp
      {kInf, -1, kNan, 0, 0, kInf, -1, kInf, -1, 1e-40F},  // expm1
      {1, 0, kNan, 0.5F, 0.5F, 1, 0, 1, 0, 0.5F},          // sigmoid
      {kInf, 0, kNan, 0, 0, 1e38F, 0, 500, 0, 0.5e-40F},   // silu
      {1, -1, kNan, 0, 0, 1, -1, 1, -1, 1e-40F},           // tanh
      {kInf, 0, kNan, std::log(2.0F), std::log(2.0F), 1e38F, 0, 500, 0, std::log(2.0F)},
  };
  std::vector<float> y(x.size());
  for (const Isa isa : test_isas()) {
    for (size_t f = 0; f < kFns.size(); ++f) {
      vec_apply(isa, kFns[f], x.data(), static_cast<int64_t>(x.size()), y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const float w = want[f][i];
        const std::string where = fmt::format("{} fn {} x {} got {} want {}", isa_name(isa), f, x[i], y[i], w);
        if (std::isnan(w)) {
          EXPECT_TRUE(std::isnan(y[i])) << where;
        } else if (std::isinf(w) || (w == 0 && std::isinf(x[i]))) {
          EXPECT_TRUE(y[i] == w) << where;
        } else {
          EXPECT_LE(std::abs(y[i] - w), 2e-7F * std::abs(w) + 1e-42F) << where;
        }
      }
    }
  }
}

TEST(VecMath, TailEqualsFullVectorAndTouchesNothingElse) {
  std::vector<float> x(67);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.37F - 11.0F;
  for (const Isa isa : test_isas()) {
    for (const VecFn fn : kFns) {
      std::vector<float> whole(x.size());
      vec_apply(isa, fn, x.data(), 64, whole.data());
      for (int64_t n = 0; n <= 33; ++n) {
        Guarded out(n);
        vec_apply(isa, fn, x.data(), n, out.data());
        EXPECT_TRUE(out.intact());
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out.data()[i], whole[static_cast<size_t>(i)]);
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
