#include "k3/ops/optim/fake_quant/fake_quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

using Fn = void (*)(const Ctx&, const Tensor&, const Tensor&);
using RefFn = void (*)(const double*, int64_t, int64_t, double*);

// Groups of every size of number, all-zero ones, ties, borders of the scales.
std::vector<float> values(int64_t groups, double top) {
  std::vector<float> v;
  const Rng rng(3, 5);
  for (int64_t g = 0; g < groups; ++g) {
    const auto at = static_cast<uint64_t>(g);
    const float scale = std::ldexp(1.0F, static_cast<int>(rng.bits(at) % 250) - 145);
    for (uint64_t i = 0; i < 32; ++i) {
      float x = static_cast<float>(rng.normal(1000000 + at * 32 + i)) * (g % 3 == 0 ? 1.0F : scale);
      if (g % 11 == 5) x = 0;
      if (g % 13 == 6) x = std::ldexp(std::round(x * 4) / 4, 1 - static_cast<int>(at % 7));  // many ties
      v.push_back(static_cast<double>(std::abs(x)) < top ? x : 0.0F);
    }
  }
  return v;
}

void expect_bits(const std::vector<float>& got, const std::vector<double>& want, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(static_cast<float>(want[i]))) << what << " at " << i;
  }
}

void every_isa_and_dtype(Fn fn, RefFn ref, const char* what) {
  for (const auto& [rows, cols] : {std::array<int64_t, 2>{1, 32}, {3, 96}, {40, 1056}, {2, 2048}, {0, 32}, {300, 64}}) {
    std::vector<float> in = values(rows * cols / 32, 2e38);
    std::vector<double> want(in.size());
    ref(to_doubles(in).data(), rows, cols, want.data());
    for (const Isa isa : test_isas()) {
      TestRun run(isa, 2);
      Guarded out(rows * cols);
      fn(run.ctx, matrix(in.data(), rows, cols), matrix(out.data(), rows, cols));
      EXPECT_TRUE(out.intact());
      expect_bits({out.data(), out.data() + out.size()}, want, what);
      std::vector<uint16_t> narrow(in.size());
      const Tensor to(narrow.data(), DType::bf16, {rows, cols});
      fn(run.ctx, matrix(in.data(), rows, cols), to);
      for (size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(narrow[i], float_to_bf16(static_cast<float>(want[i])));
      fn(run.ctx, to, to);  // BF16 in and out, in place: they are values of the format already
      for (size_t i = 0; i < narrow.size(); ++i) {
        ASSERT_EQ(bf16_to_float(narrow[i]), round_to_bf16(static_cast<float>(want[i]))) << what << " again, at " << i;
      }
    }
  }
}

TEST(FakeQuant, Mxfp4EveryIsaEqualsRefToTheBit) { every_isa_and_dtype(mxfp4_fake_quant, mxfp4_fake_quant_ref, "mxfp4"); }
TEST(FakeQuant, Mxfp8EveryIsaEqualsRefToTheBit) { every_isa_and_dtype(mxfp8_fake_quant, mxfp8_fake_quant_ref, "mxfp8"); }

// training.md 14.6.
TEST(FakeQuant, IdempotentInValues) {
  for (const Fn fn : {mxfp4_fake_quant, mxfp8_fake_quant}) {
    std::vector<float> in = values(400, 2e38), once(in.size()), twice(in.size());
    TestRun run(detect_isa(), 2);
    fn(run.ctx, matrix(in.data(), 100, 128), matrix(once.data(), 100, 128));
    fn(run.ctx, matrix(once.data(), 100, 128), matrix(twice.data(), 100, 128));
    for (size_t i = 0; i < once.size(); ++i) ASSERT_EQ(once[i], twice[i]) << i;
  }
}

// What a server reads from an export of the master weights, and from an export of the fake-quantised ones, is what training computed with.
TEST(FakeQuant, Mxfp4IsWhatServingReadsAfterExport) {
  std::vector<float> master = random_normal(64 * 256, 5, 0.02F), trained(master.size()), served(master.size());
  TestRun run(detect_isa(), 2);
  mxfp4_fake_quant(run.ctx, matrix(master.data(), 64, 256), matrix(trained.data(), 64, 256));
  for (const auto* exported : {&master, &trained}) {
    std::vector<uint8_t> packed(master.size() / 2), scales(master.size() / 32);
    ASSERT_TRUE(mxfp4_quantise(exported->data(), 64, 256, packed.data(), scales.data()).ok());
    for (const Isa isa : test_isas()) {
      mxfp4_dequantise(isa, packed.data(), scales.data(), 64, 256, served.data());
      EXPECT_EQ(served, trained);  // values; -0 equals 0
    }
  }
}

TEST(FakeQuant, Mxfp8ScalesStepExactlyAbove448) {
  TestRun run(detect_isa());
  for (int e = -130; e <= 118; ++e) {
    for (const int step : {-1, 0, 1}) {
      std::vector<float> v(32, 0.0F), out(32);
      std::vector<double> want(32);
      v[3] = std::bit_cast<float>(std::bit_cast<uint32_t>(std::ldexp(448.0F, e)) + static_cast<uint32_t>(step));
      v[4] = -std::ldexp(17.0F, e - 8);  // beside small ones
      v[5] = std::ldexp(1.0F, e - 12);
      mxfp8_fake_quant(run.ctx, matrix(v.data(), 1, 32), matrix(out.data(), 1, 32));
      mxfp8_fake_quant_ref(to_doubles(v).data(), 1, 32, want.data());
      expect_bits(out, want, "mxfp8");
      EXPECT_NEAR(out[3], v[3], std::abs(static_cast<double>(v[3])) / 16);
    }
  }
}

TEST(FakeQuant, Mxfp8RoundsEverySmallNumberLikeItsConversion) {
  TestRun run(detect_isa());
  for (int i = 0; i < 20000; i += 31) {
    std::vector<float> v(32), out(32);
    v[0] = 448;  // scale 1
    for (int j = 1; j < 32; ++j) v[static_cast<size_t>(j)] = static_cast<float>(i + j) * 0x1p-13F * (j % 2 == 0 ? 1 : -1);
    mxfp8_fake_quant(run.ctx, matrix(v.data(), 1, 32), matrix(out.data(), 1, 32));
    for (size_t j = 0; j < 32; ++j) ASSERT_EQ(out[j], f8_e4m3_to_float(float_to_f8_e4m3(v[j]))) << v[j];
  }
}

TEST(FakeQuant, GroupsThatAreNotFiniteComeOutAsNan) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const Fn fn : {mxfp4_fake_quant, mxfp8_fake_quant}) {
      for (const Isa isa : test_isas()) {
        TestRun run(isa);
        std::vector<float> v = random_normal(128, 1), out(128);
        v[40] = bad;
        fn(run.ctx, matrix(v.data(), 2, 64), matrix(out.data(), 2, 64));
        for (size_t i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(out[i]), i / 32 == 1) << i;
      }
    }
  }
}

TEST(FakeQuant, StridedRowsAndInPlace) {
  for (const Fn fn : {mxfp4_fake_quant, mxfp8_fake_quant}) {
    TestRun run(detect_isa(), 2);
    std::vector<float> wide = random_normal(5 * 80, 1), dense(5 * 64), want(5 * 64);
    for (size_t r = 0; r < 5; ++r) std::copy_n(&wide[r * 80], 64, &dense[r * 64]);
    fn(run.ctx, matrix(dense.data(), 5, 64), matrix(want.data(), 5, 64));
    const std::vector<float> before = wide;
    fn(run.ctx, matrix(wide.data(), 5, 64, 80), matrix(wide.data(), 5, 64, 80));
    for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i], i % 80 < 64 ? want[i / 80 * 64 + i % 80] : before[i]);
  }
}

}  // namespace
}  // namespace k3::ops
