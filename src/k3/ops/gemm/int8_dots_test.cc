// Products on 8-bit inputs: every instruction set, scheme and case against the double reference on the same quantised
// inputs; the quantiser; one arithmetic by rows; NaN and infinity.
#include "k3/ops/gemm/int8_dots.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops {
namespace {

const std::vector<Scheme> kInt8Schemes = {Scheme::i8, Scheme::mxfp4};

// x as the quantiser leaves it.
std::vector<float> quantised(const std::vector<float>& xs, int64_t cols) {
  std::vector<float> out(xs.size());
  std::vector<uint8_t> row(static_cast<size_t>(int8_row_bytes(cols)));
  for (int64_t t = 0; t < static_cast<int64_t>(xs.size()) / cols; ++t) {
    int8_quantise_row(xs.data() + t * cols, 0, cols, cols, row.data());
    for (int64_t i = 0; i < cols; ++i) {
      out[static_cast<size_t>(t * cols + i)] =
          static_cast<float>(reinterpret_cast<const int8_t*>(row.data())[i]) * int8_scales(row.data(), cols)[i / 32];
    }
  }
  return out;
}

// 2e-6 sum_i |x_i w_i| of every output.
std::vector<double> bounds(const std::vector<float>& x, const Weight& w) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / w.cols;
  std::vector<double> out(static_cast<size_t>(tokens * w.rows));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t o = 0; o < w.rows; ++o) {
    for (int64_t i = 0; i < w.cols; ++i) row[static_cast<size_t>(i)] = weight_value(w, o, i);
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < w.cols; ++i) {
        sum += std::abs(static_cast<double>(x[static_cast<size_t>(t * w.cols + i)]) *
                        static_cast<double>(row[static_cast<size_t>(i)]));
      }
      out[static_cast<size_t>(t * w.rows + o)] = 2e-6 * sum;
    }
  }
  return out;
}

TEST(Int8Dots, EveryIsaSchemeAndCaseAgainstReference) {
  std::vector<LinearCase> cases = kLinearCases;
  for (const int64_t tokens : {24, 25, 31}) cases.push_back({tokens, 1184, 77});
  for (const LinearCase& c : cases) {
    if (c.in % 32 != 0) continue;
    std::vector<float> xs = random_normal(c.tokens * c.in, 11);
    const std::vector<float> seen = quantised(xs, c.in);
    const Tensor x = matrix(xs.data(), c.tokens, c.in);
    for (const Scheme scheme : kInt8Schemes) {
      const OwnedWeight w = random_weight(scheme, c.out, c.in, 12);
      std::vector<float> want(static_cast<size_t>(c.tokens * c.out));
      int8_linear_ref(x, w.view(), matrix(want.data(), c.tokens, c.out));
      const std::vector<double> bound = bounds(seen, w.view());
      for (const Isa isa : test_isas()) {
        for (const bool deterministic : {false, true}) {
          TestRun run(isa, 2, Policy::bf16);
          run.ctx.deterministic = deterministic;
          run.ctx.int8_activations = true;
          Guarded y(c.tokens * c.out);
          linear(run.ctx, x, w.view(), matrix(y.data(), c.tokens, c.out));
          EXPECT_TRUE(y.intact());
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_LE(std::abs(static_cast<double>(y.data()[i]) - static_cast<double>(want[i])), bound[i])
                << isa_name(isa) << " scheme " << static_cast<int>(scheme) << " " << c.tokens << "x" << c.in << "x" << c.out
                << " at " << i << " deterministic " << deterministic;
          }
        }
      }
    }
  }
}

TEST(Int8Dots, TheQuantiserRoundsToNearest) {
  std::vector<float> xs = random_normal(4 * 96, 3, 5.0F);
  xs[5] = 0.0F;
  const std::vector<float> seen = quantised(xs, 96);
  for (size_t g = 0; g < xs.size() / 32; ++g) {
    float amax = 0;
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) amax = std::max(amax, std::abs(xs[i]));
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) EXPECT_LE(std::abs(seen[i] - xs[i]), amax / 127 * 0.5001F);
  }
}

TEST(Int8Dots, RowsAreQuantisedInParts) {
  const std::vector<float> xs = random_normal(160, 4);
  std::vector<uint8_t> whole(static_cast<size_t>(int8_row_bytes(160))), parts = whole;
  int8_quantise_row(xs.data(), 0, 160, 160, whole.data());
  for (const auto& [begin, count] : {std::pair{64, 96}, {0, 32}, {32, 32}}) {
    int8_quantise_row(xs.data() + begin, begin, count, 160, parts.data());
  }
  EXPECT_EQ(whole, parts);
}

// The extreme codes of both sides: 16-bit sums of pairs must not saturate.
TEST(Int8Dots, ExtremeCodes) {
  constexpr int64_t kIn = 160, kOut = 5;
  for (const Scheme scheme : kInt8Schemes) {
    for (const int byte : {0x80, 0x7F, 0x81, 0xFF, 0x77}) {
      OwnedWeight w = random_weight(scheme, kOut, kIn, 5);
      std::fill(w.data.begin(), w.data.end(), static_cast<uint8_t>(byte));
      for (const int64_t tokens : {1, 30}) {
        std::vector<float> xs(static_cast<size_t>(tokens * kIn), -2.0F);
        std::vector<float> want(static_cast<size_t>(tokens * kOut));
        int8_linear_ref(matrix(xs.data(), tokens, kIn), w.view(), matrix(want.data(), tokens, kOut));
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 1);
          run.ctx.deterministic = false;
          run.ctx.int8_activations = true;
          std::vector<float> y(want.size());
          linear(run.ctx, matrix(xs.data(), tokens, kIn), w.view(), matrix(y.data(), tokens, kOut));
          for (size_t i = 0; i < y.size(); ++i) {
            EXPECT_NEAR(y[i], want[i], 2e-6F * std::abs(want[i])) << isa_name(isa) << " byte " << byte;
          }
        }
      }
    }
  }
}

TEST(Int8Dots, ByRowsBitsDependOnNeitherBatchNorThreads) {
  constexpr int64_t kTokens = 61, kIn = 1184, kOut = 83;
  std::vector<float> xs = random_normal(kTokens * kIn, 21);
  for (const Scheme scheme : kInt8Schemes) {
    const OwnedWeight w = random_weight(scheme, kOut, kIn, 22);
    for (const Isa isa : test_isas()) {
      TestRun one(isa, 1), three(isa, 3);
      one.ctx.int8_activations = three.ctx.int8_activations = true;
      std::vector<float> whole(kTokens * kOut);
      linear(three.ctx, matrix(xs.data(), kTokens, kIn), w.view(), matrix(whole.data(), kTokens, kOut));
      for (const int64_t batch : {1, 2, 3, 4, 5, 7}) {
        std::vector<float> part(static_cast<size_t>(batch * kOut));
        linear(one.ctx, matrix(xs.data() + 9 * kIn, batch, kIn), w.view(), matrix(part.data(), batch, kOut));
        for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[9 * kOut + i]) << isa_name(isa) << " " << batch;
      }
    }
  }
}

TEST(Int8Dots, WhatIsNotFiniteStaysInItsRow) {
  constexpr int64_t kTokens = 30, kIn = 64, kOut = 6;
  std::vector<float> xs = random_normal(kTokens * kIn, 41);
  xs[2 * kIn + 5] = NAN;
  xs[4 * kIn + 6] = INFINITY;
  for (const Scheme scheme : kInt8Schemes) {
    const OwnedWeight w = random_weight(scheme, kOut, kIn, 42);
    for (const Isa isa : test_isas()) {
      for (const bool deterministic : {false, true}) {
        TestRun run(isa, 1);
        run.ctx.deterministic = deterministic;
        run.ctx.int8_activations = true;
        std::vector<float> y(kTokens * kOut);
        linear(run.ctx, matrix(xs.data(), kTokens, kIn), w.view(), matrix(y.data(), kTokens, kOut));
        for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 6 != 2 && i / 6 != 4) << isa_name(isa);
      }
    }
  }
}

TEST(Int8Dots, FullPrecisionAndOtherSchemesAreAsEver) {
  std::vector<float> xs = random_normal(64, 1), a(8), b(8);
  for (const Scheme scheme : {Scheme::i8, Scheme::bf16}) {
    const OwnedWeight w = random_weight(scheme, 8, 64, 2);
    TestRun plain(detect_isa(), 1), lossy(detect_isa(), 1);
    lossy.ctx.int8_activations = true;
    linear(plain.ctx, matrix(xs.data(), 1, 64), w.view(), matrix(a.data(), 1, 8));
    linear(lossy.ctx, matrix(xs.data(), 1, 64), w.view(), matrix(b.data(), 1, 8), {.full_precision = true});
    EXPECT_EQ(a, b);
    linear(lossy.ctx, matrix(xs.data(), 1, 64), w.view(), matrix(b.data(), 1, 8));
    EXPECT_EQ(a == b, scheme == Scheme::bf16);
  }
}

}  // namespace
}  // namespace k3::ops
