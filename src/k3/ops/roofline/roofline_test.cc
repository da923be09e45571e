// The ceilings: what can be said of them without a clock, and that they are measured at all.
#include "k3/ops/roofline/roofline.h"

#include <gtest/gtest.h>

#include "k3/ops/roofline/roofline_kernel.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(Roofline, UnitsFollowTheLevel) {
  for (const Isa isa : test_isas()) {
    EXPECT_TRUE(has_unit(Unit::fp32_fma, isa)) << isa_name(isa);
    EXPECT_EQ(has_unit(Unit::bf16_tile, isa), isa == Isa::amx) << isa_name(isa);
    EXPECT_TRUE(has_unit(best_unit(isa), isa));
  }
  EXPECT_EQ(best_unit(Isa::scalar), Unit::fp32_fma);
  EXPECT_EQ(best_unit(Isa::avx512), Unit::fp32_fma);
  EXPECT_EQ(best_unit(Isa::avx512bf16), Unit::bf16_dot);
  EXPECT_EQ(best_unit(Isa::amx), Unit::bf16_tile);
}

TEST(Roofline, EveryUnitOfThisMachineGivesARate) {
  ThreadPool pool(2);
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
    if (isa > detect_isa()) continue;
    for (const Unit unit : {Unit::fp32_fma, Unit::bf16_dot, Unit::bf16_tile}) {
      if (!has_unit(unit, isa)) continue;
      const double rate = measure_flops(pool, unit, isa, 1e-4);
      EXPECT_GT(rate, 0) << unit_name(unit) << " " << isa_name(isa);
      EXPECT_TRUE(std::isfinite(rate));
    }
  }
}

TEST(Roofline, TheLoopsComputeWhatTheyCount) {
  // x / 2 + 1/2 tends to 1 from anywhere: twelve sums of one.
  EXPECT_FLOAT_EQ(spin_fp32_portable(100), 12);
  if (detect_isa() >= Isa::avx2) {
    EXPECT_FLOAT_EQ(spin_fp32_avx2(100), 12);
  }
  if (detect_isa() >= Isa::avx512) {
    EXPECT_FLOAT_EQ(spin_fp32_avx512(100), 12);
  }
  // Sums begin at 0 + 1 + ... + 11 and grow by a dot product of two ones each round; tiles by one of 32.
  if (has_unit(Unit::bf16_dot, detect_isa())) {
    EXPECT_FLOAT_EQ(spin_bf16_dot(100), 66 + 12 * 100 * 2);
  }
  if (has_unit(Unit::bf16_tile, detect_isa())) {
    EXPECT_FLOAT_EQ(spin_bf16_tile(100), 4 * 100 * 32);
  }
}

// A reader that skips a part of the buffer would report a bandwidth that is not there.
TEST(Roofline, ReadersTouchEveryByte) {
  ThreadPool pool(1);
  const Storage buffer = make_read_buffer(pool, kMiB).value();
  const auto read_all = [&](Isa isa) {
    const auto read = isa == Isa::scalar ? read_portable : isa == Isa::avx2 ? read_avx2 : read_avx512;
    uint64_t mix = read(buffer.data(), kMiB);
    return mix;
  };
  for (const Isa isa : test_isas()) {
    // The mix of an even number of equal words is zero; a word that differs in the returned lane shows.
    EXPECT_EQ(read_all(isa), 0u) << isa_name(isa);
    const int64_t lane = isa == Isa::scalar ? 16 : isa == Isa::avx2 ? 32 : 64;
    for (int64_t at = 0; at < kMiB; at += 1024 * 37 / lane * lane + lane) {
      buffer.data()[at] ^= std::byte{1};
      EXPECT_EQ(read_all(isa), 1u) << isa_name(isa) << " misses byte " << at;
      buffer.data()[at] ^= std::byte{1};
    }
  }
}

TEST(Roofline, ReadingGivesARate) {
  ThreadPool pool(2);
  const Storage buffer = make_read_buffer(pool, 4 * kMiB).value();
  for (const Isa isa : test_isas()) EXPECT_GT(measure_read(pool, buffer.bytes(), isa, 1e-4), 0) << isa_name(isa);
}

TEST(Roofline, TheBufferExceedsTheCache) {
  constexpr int64_t kPlenty = int64_t{1} << 50;
  EXPECT_EQ(read_buffer_bytes(0, kPlenty), 512 * kMiB);
  EXPECT_EQ(read_buffer_bytes(32 * kMiB, kPlenty), 512 * kMiB);
  EXPECT_EQ(read_buffer_bytes(96 * kMiB, kPlenty), 768 * kMiB);
  EXPECT_EQ(read_buffer_bytes(260 * kMiB, kPlenty), 2048 * kMiB);
  EXPECT_EQ(read_buffer_bytes(int64_t{1} << 60, kPlenty), 2048 * kMiB);  // a system that lies
  EXPECT_EQ(read_buffer_bytes(32 * kMiB, 400 * kMiB), 100 * kMiB);       // memory is short
  EXPECT_EQ(read_buffer_bytes(32 * kMiB, 0), kMiB);
}

}  // namespace
}  // namespace k3::ops
