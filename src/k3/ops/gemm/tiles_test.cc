// tiles and dots: the tile unit (or its emulation) against the double reference on the case table, row ranges, weights that
// count as zero, independence of tokens and rows.
#include "k3/ops/gemm/tiles.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/ops/gemm/dots.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops {
namespace {

using TilesFn = void (*)(const TilesJob&) noexcept;

std::vector<TilesFn> tile_units() {
  std::vector<TilesFn> units;
  if (detect_isa() >= Isa::avx512bf16) units.push_back(tiles_emulated);
  if (detect_isa() >= Isa::amx) units.push_back(tiles_amx);
  return units;
}

// BF16 rows of random numbers, as the kernels want them.
struct Rows {
  std::vector<uint16_t> data;
  std::vector<const uint16_t*> rows;
  std::vector<float> values;
  Rows(int64_t tokens, int64_t cols, uint64_t seed) : values(random_normal(tokens * cols, seed)) {
    data.resize(static_cast<size_t>(tokens * dots_stride(cols)));
    for (int64_t t = 0; t < tokens; ++t) {
      uint16_t* row = data.data() + t * dots_stride(cols);
      rows.push_back(row);
      for (int64_t i = 0; i < cols; ++i) {
        row[i] = float_to_bf16(values[static_cast<size_t>(t * cols + i)]);
        values[static_cast<size_t>(t * cols + i)] = bf16_to_float(row[i]);
      }
    }
  }
  std::vector<uint16_t> packed(int64_t cols) const {
    const auto tokens = static_cast<int64_t>(rows.size());
    std::vector<uint16_t> out(static_cast<size_t>(tiles_packed_elements(tokens, cols)));
    pack_tiles_avx512bf16(rows.data(), 0, tokens, cols, out.data());
    return out;
  }
};

// Scratch on a cache line, as the workspace gives it.
struct Panel {
  std::vector<uint16_t> data = std::vector<uint16_t>(kTilesPanelElements + 32, 0x7FC0);
  uint16_t* get() { return data.data() + (64 - reinterpret_cast<uintptr_t>(data.data()) % 64) % 64 / 2; }
};

std::vector<float> run_tiles(TilesFn unit, const Rows& x, const Weight& w, int64_t begin, int64_t end) {
  const auto tokens = static_cast<int64_t>(x.rows.size());
  Guarded y(tokens * (end - begin));
  std::vector<float*> rows;
  for (int64_t t = 0; t < tokens; ++t) rows.push_back(y.data() + t * (end - begin));
  const std::vector<uint16_t> packed = x.packed(w.cols);
  Panel panel;
  unit({packed.data(), tokens, w, begin, end, rows.data(), begin, panel.get()});
  EXPECT_TRUE(y.intact());
  return {y.data(), y.data() + y.size()};
}

TEST(Tiles, EveryCaseAgainstReference) {
  if (tile_units().empty()) GTEST_SKIP() << "no BF16 dot instruction";
  for (const LinearCase& c : kLinearCases) {
    if (c.in % 32 != 0) continue;
    for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
      const OwnedWeight w = random_weight(scheme, c.out, c.in, 3);
      Rows x(c.tokens, c.in, 4);
      std::vector<float> want(static_cast<size_t>(c.tokens * c.out));
      linear_ref(matrix(x.values.data(), c.tokens, c.in), w.view(), matrix(want.data(), c.tokens, c.out), false);
      for (const TilesFn unit : tile_units()) {
        const std::vector<float> got = run_tiles(unit, x, w.view(), 0, c.out);
        for (int64_t t = 0; t < c.tokens; ++t) {
          for (int64_t o = 0; o < c.out; ++o) {
            double sum = 0;
            for (int64_t i = 0; i < c.in; ++i) {
              sum += std::abs(static_cast<double>(x.values[static_cast<size_t>(t * c.in + i)]) *
                              static_cast<double>(weight_value(w.view(), o, i)));
            }
            const auto at = static_cast<size_t>(t * c.out + o);
            const double chain = static_cast<double>(kTilesBlock + c.in / kTilesBlock) * std::ldexp(1.0, -24);
            ASSERT_LE(std::abs(static_cast<double>(got[at]) - static_cast<double>(want[at])), chain * sum)
                << c.tokens << "x" << c.in << "x" << c.out << " scheme " << static_cast<int>(scheme) << " at " << t << ", " << o;
          }
        }
      }
    }
  }
}

TEST(Tiles, DenseEveryCaseAgainstReference) {
  if (tile_units().empty()) GTEST_SKIP() << "no BF16 dot instruction";
  for (const LinearCase& c : kLinearCases) {
    if (c.in % 32 != 0) continue;
    const OwnedWeight w = random_weight(Scheme::bf16, c.out, c.in, 3);
    const int64_t whole = (c.tokens + 15) / 16 * 16, gap = c.out + 5;
    Rows x(whole, c.in, 4);
    const Tensor values = matrix(x.values.data(), c.tokens, c.in);
    std::vector<float> want(static_cast<size_t>(c.tokens * c.out));
    linear_ref(values, w.view(), matrix(want.data(), c.tokens, c.out), false);
    for (const bool amx : {false, true}) {
      if (amx && detect_isa() < Isa::amx) continue;
      Guarded y(c.tokens * gap);
      Panel panel;
      // Two parts of the rows, as two workers take them.
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, std::min<int64_t>(32, c.out)}, {32, c.out}}) {
        const DenseTilesJob job{x.data.data(), dots_stride(c.in), c.tokens, w.view(), begin, end, y.data(), gap, panel.get()};
        amx ? dense_tiles_amx(job) : dense_tiles_emulated(job);
      }
      EXPECT_TRUE(y.intact());
      for (int64_t t = 0; t < c.tokens; ++t) {
        for (int64_t o = 0; o < gap; ++o) {
          const float got = y.data()[t * gap + o];
          if (o >= c.out) {
            ASSERT_TRUE(std::isnan(got)) << "beyond the row";
            continue;
          }
          double sum = 0;
          for (int64_t i = 0; i < c.in; ++i) {
            sum += std::abs(static_cast<double>(values.row(t)[i]) * static_cast<double>(weight_value(w.view(), o, i)));
          }
          const double chain = static_cast<double>(c.in) * std::ldexp(1.0, -24);
          ASSERT_LE(std::abs(static_cast<double>(got) - static_cast<double>(want[static_cast<size_t>(t * c.out + o)])), chain * sum)
              << c.tokens << "x" << c.in << "x" << c.out << " at " << t << ", " << o;
        }
      }
    }
  }
}

TEST(Tiles, BitsDependOnNeitherTokensNorRowRanges) {
  constexpr int64_t kTokens = 45, kIn = 1184, kOut = 77;
  for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
    const OwnedWeight w = random_weight(scheme, kOut, kIn, 8);
    const Rows x(kTokens, kIn, 9);
    for (const TilesFn unit : tile_units()) {
      const std::vector<float> whole = run_tiles(unit, x, w.view(), 0, kOut), part = run_tiles(unit, x, w.view(), 32, 50);
      Rows one = x;
      one.rows = {one.data.data() + 20 * dots_stride(kIn)};  // token 20 alone
      const std::vector<float> alone = run_tiles(unit, one, w.view(), 0, kOut);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t o = 32; o < 50; ++o) {
          ASSERT_EQ(part[static_cast<size_t>(t * 18 + o - 32)], whole[static_cast<size_t>(t * kOut + o)]);
        }
      }
      for (int64_t o = 0; o < kOut; ++o) {
        ASSERT_EQ(alone[static_cast<size_t>(o)], whole[static_cast<size_t>(20 * kOut + o)]) << o;
      }
    }
  }
}

// Scale bytes 0 and 1 would send the exponents of the word table below zero; 252 is the largest the loader admits.
TEST(Tiles, ExtremeScalesOfMxfp4) {
  constexpr int64_t kIn = 224, kOut = 9, kTokens = 9;
  OwnedWeight w = random_weight(Scheme::mxfp4, kOut, kIn, 11);
  for (size_t i = 0; i < w.scales.size(); ++i) w.scales[i] = static_cast<uint8_t>(i % 3 == 0 ? 1 : i % 3 == 1 ? 0 : 2);
  Rows x(kTokens, kIn, 12);
  std::vector<float> want(kTokens * kOut), y(kTokens * kOut);
  for (const uint8_t high : {uint8_t{2}, uint8_t{120}, uint8_t{240}}) {
    for (size_t i = 2; i < w.scales.size(); i += 3) w.scales[i] = high;
    std::vector<double> bound(want.size());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t o = 0; o < kOut; ++o) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < kIn; ++i) {
          const bool tiny = w.scales[static_cast<size_t>((o * kIn + i) / 32)] < 2;
          const double v = tiny ? 0 : static_cast<double>(weight_value(w.view(), o, i));
          const double p = v * static_cast<double>(x.values[static_cast<size_t>(t * kIn + i)]);
          sum += p;
          size += std::abs(p);
        }
        want[static_cast<size_t>(t * kOut + o)] = static_cast<float>(sum);
        // Products and sums under 2^-126 count as zero.
        bound[static_cast<size_t>(t * kOut + o)] = 2e-6 * size + static_cast<double>(kIn) * std::ldexp(1.0, -126);
      }
    }
    const auto expect = [&](const std::vector<float>& got, const char* kernel) {
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_LE(std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])), bound[i]) << kernel << " " << int{high};
      }
    };
    for (const TilesFn unit : tile_units()) expect(run_tiles(unit, x, w.view(), 0, kOut), "tiles");
    if (detect_isa() < Isa::avx512bf16) continue;
    for (const int64_t tokens : {int64_t{1}, kTokens}) {
      std::vector<float*> rows;
      for (int64_t t = 0; t < kTokens; ++t) rows.push_back(y.data() + t * kOut);
      std::vector<uint16_t> big(kDotsPanelElements + 32);
      for (int64_t t = 0; t < kTokens; t += tokens) {
        dots_avx512bf16({x.rows.data() + t, tokens, w.view(), 0, kOut, rows.data() + t, 0, big.data()});
      }
      expect(y, "dots");
    }
  }
}

}  // namespace
}  // namespace k3::ops
