// linear and linear_transposed: every instruction set, scheme and case against the double reference; one arithmetic
// whatever the batch and the threads; strides, guards, special values.
#include "k3/ops/gemm/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops {
namespace {

// sum_i |x_i w_i| of one output.
double magnitude(const float* x, const Weight& w, int64_t row) {
  double sum = 0;
  for (int64_t i = 0; i < w.cols; ++i)
    sum += std::abs(static_cast<double>(x[i]) * static_cast<double>(weight_value(w, row, i)));
  return sum;
}

void expect_close(const Tensor& x, const Weight& w, const float* y, const float* want, bool rounded,
                  const std::string& where) {
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t i = 0; i < w.cols; ++i) row[static_cast<size_t>(i)] = rounded ? round_to_bf16(x.row(t)[i]) : x.row(t)[i];
    for (int64_t o = 0; o < w.rows; ++o) {
      const double error = std::abs(static_cast<double>(y[t * w.rows + o]) - static_cast<double>(want[t * w.rows + o]));
      if (!(error <= 2e-6 * magnitude(row.data(), w, o))) {
        FAIL() << where << " t " << t << " o " << o << ": " << y[t * w.rows + o] << " want " << want[t * w.rows + o];
      }
    }
  }
}

TEST(Linear, EveryIsaSchemeAndCaseAgainstReference) {
  for (const LinearCase& c : kLinearCases) {
    std::vector<float> xs = random_normal(c.tokens * c.in, 11);
    const Tensor x = matrix(xs.data(), c.tokens, c.in, c.in);
    for (const Scheme scheme : kSchemes) {
      if (scheme_has_scales(scheme) && c.in % 32 != 0) continue;
      const OwnedWeight w = random_weight(scheme, c.out, c.in, 12);
      for (const bool rounded : {false, true}) {
        std::vector<float> want(static_cast<size_t>(c.tokens * c.out));
        linear_ref(x, w.view(), matrix(want.data(), c.tokens, c.out, c.out), rounded);
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 2, rounded ? Policy::bf16 : Policy::exact);
          run.ctx.deterministic = false;  // tiles where there are some
          Guarded y(c.tokens * c.out);
          linear(run.ctx, x, w.view(), matrix(y.data(), c.tokens, c.out, c.out));
          EXPECT_TRUE(y.intact());
          expect_close(
              x, w.view(), y.data(), want.data(), rounded,
              fmt::format("{} scheme {} case {}x{}x{}", isa_name(isa), static_cast<int>(scheme), c.tokens, c.in, c.out));
        }
      }
    }
  }
}

TEST(Linear, FullPrecisionIgnoresThePolicy) {
  std::vector<float> xs = random_normal(64, 1), a(8), b(8);
  const OwnedWeight w = random_weight(Scheme::bf16, 8, 64, 2);
  TestRun exact(detect_isa(), 1), rounded(detect_isa(), 1, Policy::bf16);
  linear(exact.ctx, matrix(xs.data(), 1, 64, 64), w.view(), matrix(a.data(), 1, 8, 8));
  linear(rounded.ctx, matrix(xs.data(), 1, 64, 64), w.view(), matrix(b.data(), 1, 8, 8), {.full_precision = true});
  EXPECT_EQ(a, b);
  linear(rounded.ctx, matrix(xs.data(), 1, 64, 64), w.view(), matrix(b.data(), 1, 8, 8));
  EXPECT_NE(a, b);
}

// The contract of exact and deterministic: a token's outputs do not depend on its neighbours, nor on threads.
TEST(Linear, BitIdenticalWhateverBatchAndThreads) {
  constexpr int64_t kTokens = 500, kIn = 1120, kOut = 83;
  std::vector<float> xs = random_normal(kTokens * kIn, 21);
  for (const Scheme scheme : kSchemes) {
    const OwnedWeight w = random_weight(scheme, kOut, kIn, 22);
    for (const Isa isa : test_isas()) {
      for (const Policy policy : {Policy::exact, Policy::bf16}) {
        TestRun one(isa, 1, policy), three(isa, 3, policy);
        std::vector<float> whole(kTokens * kOut), alone(kOut);
        linear(three.ctx, matrix(xs.data(), kTokens, kIn, kIn), w.view(), matrix(whole.data(), kTokens, kOut, kOut));
        for (const int64_t batch : {1, 2, 3, 4, 5, 6, 7, 11, 64}) {
          std::vector<float> part(static_cast<size_t>(batch * kOut), NAN);
          const int64_t at = batch * 5 + 1;
          linear(one.ctx, matrix(xs.data() + at * kIn, batch, kIn, kIn), w.view(), matrix(part.data(), batch, kOut, kOut));
          for (int64_t i = 0; i < batch * kOut; ++i) {
            ASSERT_EQ(part[static_cast<size_t>(i)], whole[static_cast<size_t>(at * kOut + i)])
                << isa_name(isa) << " scheme " << static_cast<int>(scheme) << " batch " << batch << " at " << i;
          }
        }
        // A single row of the weight gives the same number as the row inside the matrix.
        linear(one.ctx, matrix(xs.data(), 1, kIn, kIn), weight_rows(w.view(), 50, 51), matrix(alone.data(), 1, 1, 1));
        EXPECT_EQ(alone[0], whole[50]);
      }
    }
  }
}

TEST(Linear, StridedRowsLeaveTheGapsAlone) {
  constexpr int64_t kTokens = 9, kIn = 96, kOut = 10, kXStride = 103, kYStride = 17;
  std::vector<float> xs = random_normal(kTokens * kXStride, 31), dense;
  for (int64_t t = 0; t < kTokens; ++t)
    dense.insert(dense.end(), xs.begin() + t * kXStride, xs.begin() + t * kXStride + kIn);
  for (const Scheme scheme : kSchemes) {
    const OwnedWeight w = random_weight(scheme, kOut, kIn, 32);
    for (const Isa isa : test_isas()) {
      TestRun run(isa, 2);
      std::vector<float> y(kTokens * kYStride, -7.0F), want(kTokens * kOut);
      linear(run.ctx, matrix(xs.data(), kTokens, kIn, kXStride), w.view(), matrix(y.data(), kTokens, kOut, kYStride));
      linear(run.ctx, matrix(dense.data(), kTokens, kIn, kIn), w.view(), matrix(want.data(), kTokens, kOut, kOut));
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t o = 0; o < kYStride; ++o) {
          const float expected = o < kOut ? want[static_cast<size_t>(t * kOut + o)] : -7.0F;
          ASSERT_EQ(y[static_cast<size_t>(t * kYStride + o)], expected) << isa_name(isa);
        }
      }
    }
  }
}

TEST(Linear, NoTokens) {
  const OwnedWeight w = random_weight(Scheme::bf16, 4, 8, 1);
  TestRun run(detect_isa(), 2);
  float x = 0, y = 5;
  linear(run.ctx, matrix(&x, 0, 8, 8), w.view(), matrix(&y, 0, 4, 4));
  EXPECT_EQ(y, 5);
}

TEST(Linear, NanAndInfinityStayInTheirRow) {
  constexpr int64_t kTokens = 7, kIn = 64;
  std::vector<float> xs = random_normal(kTokens * kIn, 41);
  xs[2 * kIn + 5] = NAN;
  xs[4 * kIn + 6] = INFINITY;
  for (const Scheme scheme : {Scheme::f32, Scheme::mxfp4}) {
    OwnedWeight w = random_weight(scheme, 6, kIn, 42);
    if (scheme == Scheme::mxfp4) std::fill(w.data.begin(), w.data.end(), uint8_t{0x23});
    for (const Isa isa : test_isas()) {
      TestRun run(isa, 1);
      std::vector<float> y(kTokens * 6);
      linear(run.ctx, matrix(xs.data(), kTokens, kIn, kIn), w.view(), matrix(y.data(), kTokens, 6, 6));
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(std::isnan(y[i]), i / 6 == 2) << isa_name(isa) << " " << i;
        EXPECT_EQ(std::isinf(y[i]), i / 6 == 4) << isa_name(isa) << " " << i;
      }
    }
  }
}

// Products with the smallest and largest scales: subnormal weights must not be flushed.
TEST(Linear, Mxfp4ExtremeScales) {
  for (const int scale : {0, 1, 2, 127, 200, 252}) {
    OwnedWeight w = random_weight(Scheme::mxfp4, 5, 64, 51);
    std::fill(w.scales.begin(), w.scales.end(), static_cast<uint8_t>(scale));
    const float unit = scale < 100 ? 0x1p100F : 0x1p-100F;
    for (const int64_t tokens : {1, 9}) {
      std::vector<float> xs = random_normal(tokens * 64, 52, unit), want(static_cast<size_t>(tokens * 5));
      const Tensor x = matrix(xs.data(), tokens, 64, 64);
      linear_ref(x, w.view(), matrix(want.data(), tokens, 5, 5), false);
      for (const Isa isa : test_isas()) {
        TestRun run(isa, 1);
        std::vector<float> y(static_cast<size_t>(tokens * 5));
        linear(run.ctx, x, w.view(), matrix(y.data(), tokens, 5, 5));
        expect_close(x, w.view(), y.data(), want.data(), false, fmt::format("{} scale {}", isa_name(isa), scale));
      }
    }
  }
}

// All terms equal and positive: the worst input for the rounding of long sums.
TEST(Linear, ConstantInputsKeepTheTolerance) {
  constexpr int64_t kIn = 33792;
  std::vector<float> xs(kIn, 0.1F), ws(kIn * 4, 0.3F), y(4);
  const Weight w{ws.data(), nullptr, Scheme::f32, 4, kIn};
  const double want = static_cast<double>(0.1F) * static_cast<double>(0.3F) * kIn;
  for (const Isa isa : test_isas()) {
    TestRun run(isa, 1);
    linear(run.ctx, matrix(xs.data(), 1, kIn, kIn), w, matrix(y.data(), 1, 4, 4));
    for (const float v : y) EXPECT_NEAR(static_cast<double>(v), want, 2e-6 * want) << isa_name(isa);
  }
}

TEST(LinearTransposed, EveryIsaSchemeAndCaseAgainstReference) {
  for (const LinearCase& c : kLinearCases) {
    std::vector<float> xs = random_normal(c.tokens * c.out, 61);
    const Tensor x = matrix(xs.data(), c.tokens, c.out, c.out);
    for (const Scheme scheme : {Scheme::f32, Scheme::bf16, Scheme::f16}) {
      const OwnedWeight w = random_weight(scheme, c.out, c.in, 62);
      std::vector<float> want(static_cast<size_t>(c.tokens * c.in));
      linear_transposed_ref(x, w.view(), matrix(want.data(), c.tokens, c.in, c.in));
      for (const Isa isa : test_isas()) {
        TestRun run(isa, 2, Policy::bf16);  // never rounds
        Guarded y(c.tokens * c.in);
        linear_transposed(run.ctx, x, w.view(), matrix(y.data(), c.tokens, c.in, c.in));
        EXPECT_TRUE(y.intact());
        Guarded alone(c.in);
        linear_transposed(run.ctx, x.slice(c.tokens - 1, c.tokens), w.view(), matrix(alone.data(), 1, c.in, c.in));
        EXPECT_TRUE(alone.intact());
        for (int64_t t = 0; t < c.tokens; ++t) {
          for (int64_t i = 0; i < c.in; ++i) {
            double bound = 0;
            for (int64_t o = 0; o < c.out; ++o) {
              bound += std::abs(static_cast<double>(x.row(t)[o]) * static_cast<double>(weight_value(w.view(), o, i)));
            }
            const double got = static_cast<double>(y.data()[t * c.in + i]);
            ASSERT_LE(std::abs(got - static_cast<double>(want[static_cast<size_t>(t * c.in + i)])), 2e-6 * bound)
                << isa_name(isa) << " " << c.tokens << "x" << c.in << "x" << c.out;
            if (t == c.tokens - 1) {
              ASSERT_EQ(alone.data()[i], y.data()[t * c.in + i]) << isa_name(isa);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
