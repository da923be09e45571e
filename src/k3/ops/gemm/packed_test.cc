// packed.h: both units against a double sum within the bound of the header, to the bit against each other where they share
// the order of additions, tails of rows, adding to what is there.
#include "k3/ops/gemm/packed.h"

#include <gtest/gtest.h>

#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct Case {
  int64_t rows, columns, depth, deeper;  // b goes on for `deeper` more than the product takes
};
constexpr Case kCases[] = {{1, 32, 32, 0},    {2, 64, 32, 32},   {5, 96, 64, 0},     {6, 32, 192, 0}, {15, 128, 96, 32},
                           {16, 64, 32, 0},   {17, 32, 512, 64}, {31, 96, 192, 0},   {33, 64, 64, 0}, {47, 160, 32, 0},
                           {48, 128, 512, 0}, {64, 512, 192, 0}, {67, 96, 1024, 32}, {0, 32, 32, 0},  {3, 0, 32, 0}};

struct Unit {
  const char* name;
  PackedFn fn;
};

std::vector<Unit> units() {
  std::vector<Unit> all;
  if (detect_isa() >= Isa::avx512bf16) all = {{"dots", packed_avx512bf16}, {"emulated", packed_emulated}};
  if (detect_isa() >= Isa::amx) all.push_back({"amx", packed_amx});
  return all;
}

uint16_t random_bf16(uint64_t seed, int64_t i) {
  return float_to_bf16(static_cast<float>(Rng(seed, 3).normal(static_cast<uint64_t>(i))));
}

int64_t whole_rows(int64_t rows) { return (rows + kPackedRows - 1) / kPackedRows * kPackedRows; }

struct Data {
  Case c;
  int64_t a_stride, c_stride, b_strip;
  std::vector<uint16_t> a, b;
  std::vector<float> plain;  // b [depth, columns]
  std::vector<float> start;  // c before

  explicit Data(const Case& of)
      : c(of), a_stride(of.depth + 6), c_stride(of.columns + 3), b_strip((of.depth + of.deeper) * 32) {
    for (int64_t i = 0; i < whole_rows(c.rows) * a_stride; ++i) {
      a.push_back(i / a_stride < c.rows ? random_bf16(1, i) : uint16_t{0x7FC0});  // NaN: no other row may meet it
    }
    b.assign(static_cast<size_t>(c.columns / 32 * b_strip), 0x7FC0);
    plain.resize(static_cast<size_t>(c.depth * c.columns));
    for (int64_t k = 0; k < c.depth; ++k) {
      for (int64_t n = 0; n < c.columns; ++n) {
        const uint16_t x = random_bf16(2, k * c.columns + n);
        const int64_t at =
            n / 32 * b_strip + k / 32 * kPackedBlock + n % 32 / 16 * 512 + k % 32 / 2 * 32 + n % 16 * 2 + k % 2;
        b[static_cast<size_t>(at)] = x;
        plain[static_cast<size_t>(k * c.columns + n)] = bf16_to_float(x);
      }
    }
    start = random_normal(c.rows * c_stride, 5);
  }

  Guarded run(PackedFn fn, bool add) const {
    Guarded out(whole_rows(c.rows) * c_stride);
    for (size_t i = 0; add && i < start.size(); ++i) out.data()[i] = start[i];
    fn({a.data(), a_stride, c.rows, b.data(), b_strip, c.columns, c.depth, out.data(), c_stride, add});
    EXPECT_TRUE(out.intact());
    return out;
  }

  void check(const Unit& unit, bool add) const {
    const Guarded out = run(unit.fn, add);
    for (int64_t m = 0; m < c.rows; ++m) {
      for (int64_t n = 0; n < c.columns; ++n) {
        const auto at = static_cast<size_t>(m * c_stride + n);
        double sum = add ? static_cast<double>(start[at]) : 0, size = std::abs(sum);
        for (int64_t k = 0; k < c.depth; ++k) {
          const double product = static_cast<double>(bf16_to_float(a[static_cast<size_t>(m * a_stride + k)])) *
                                 static_cast<double>(plain[static_cast<size_t>(k * c.columns + n)]);
          sum += product;
          size += std::abs(product);
        }
        const double bound = static_cast<double>(c.depth + 1) * std::ldexp(1.0, -24) * size;
        ASSERT_LE(std::abs(static_cast<double>(out.data()[at]) - sum), bound)
            << unit.name << " " << c.rows << " x " << c.columns << " x " << c.depth << " at " << m << ", " << n;
      }
    }
  }
};

TEST(Packed, EveryCaseAgainstReference) {
  if (units().empty()) GTEST_SKIP() << "no BF16 dot instruction";
  for (const Case& c : kCases) {
    const Data data(c);
    for (const Unit& unit : units()) {
      for (const bool add : {false, true}) data.check(unit, add);
    }
  }
}

// The order of additions is the same on the dot instruction and in the emulation.
TEST(Packed, DotsEqualEmulationToTheBit) {
  if (units().empty()) GTEST_SKIP() << "no BF16 dot instruction";
  for (const Case& c : kCases) {
    const Data data(c);
    for (const bool add : {false, true}) {
      const Guarded a = data.run(packed_avx512bf16, add), b = data.run(packed_emulated, add);
      for (int64_t m = 0; m < c.rows; ++m) {
        const int64_t at = m * data.c_stride;
        EXPECT_EQ(0, compare_bytes(a.data() + at, b.data() + at, static_cast<size_t>(c.columns) * 4))
            << c.rows << " row " << m;
      }
    }
  }
}

// Columns that a product does not reach, and rows beyond a whole 16, stay as they are.
TEST(Packed, TouchesNothingElse) {
  for (const Unit& unit : units()) {
    const Data data({17, 64, 32, 0});
    const Guarded out = data.run(unit.fn, false);
    for (int64_t m = 0; m < 17; ++m) {
      for (int64_t n = 64; n < data.c_stride; ++n) EXPECT_TRUE(std::isnan(out.data()[m * data.c_stride + n])) << unit.name;
    }
  }
}

}  // namespace
}  // namespace k3::ops
