// A site of attention residuals, as for Hopper, against double on the same BF16 rows: blocks of a cluster that share a
// token, and a ring of rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/numbers.h"

namespace k3::ops::cuda {
namespace {

using emulator::from_bf16;
using emulator::to_bf16;

struct Case {
  AttnResPlan plan = {};
  int tokens = 1, hidden = 64, blocks = 1;
  bool prefix = true, delta = true, norm = true, rest = false, dependent = false, out_rest = false;
};

void check(const Case& c, uint32_t seed, uint32_t latest = 400) {
  SCOPED_TRACE(fmt::format("kernel {}, {} tokens, hidden {}, {} blocks, seed {}", static_cast<int>(c.plan.kernel), c.tokens,
                           c.hidden, c.blocks, seed));
  const auto hidden = static_cast<size_t>(c.hidden), count = static_cast<size_t>(c.tokens) * hidden;
  auto delta = emulator::random_bf16(count, seed + 2, 0.5F);
  const auto bank = emulator::random_bf16(static_cast<size_t>(c.blocks) * count + 8, seed),
             prefix = emulator::random_bf16(count, seed + 1), rest = emulator::random_bf16(count, seed + 3, 1e-3F),
             norm = emulator::random_bf16(hidden, seed + 4);
  std::vector<float> query;
  for (const uint16_t x : emulator::random_bf16(hidden, seed + 5))
    query.push_back(static_cast<float>(from_bf16(x)) / std::sqrt(static_cast<float>(hidden)));
  std::vector<uint16_t> sum(count, emulator::kNanBf16), cut(count, emulator::kNanBf16), out(count, emulator::kNanBf16),
      out_rest(count, emulator::kNanBf16);
  const AttnResSite site{.tokens = c.tokens,
                         .hidden = c.hidden,
                         .blocks = c.blocks,
                         .bank = bank.data(),
                         .bank_block_stride = static_cast<int64_t>(count),
                         .bank_stride = c.hidden,
                         .prefix = c.prefix ? prefix.data() : nullptr,
                         .prefix_stride = c.hidden,
                         .delta = c.delta ? delta.data() : nullptr,
                         .delta_stride = c.hidden,
                         .prefix_out = sum.data(),
                         .prefix_out_stride = c.hidden,
                         .rest = c.rest ? rest.data() : nullptr,
                         .rest_out = c.rest ? cut.data() : nullptr,
                         .rest_stride = c.hidden,
                         .query = query.data(),
                         .norm = c.norm ? norm.data() : nullptr,
                         .norm_bf16 = true,
                         .out = out.data(),
                         .out_stride = c.hidden,
                         .out_rest = c.out_rest ? out_rest.data() : nullptr,
                         .dependent = c.dependent};
  emulator::Options options = {.seed = seed, .late_copies = true, .latest = latest};
  if (c.dependent && c.delta) options.before.push_back({reinterpret_cast<char*>(delta.data()), 2 * delta.size()});
  emulator::set_options(options);
  ASSERT_EQ(attn_res_site_launch(site, c.plan, nullptr), 0) << emulator::failure();
  emulator::set_options({});

  emulator::Apart all, both;
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    std::vector<std::vector<double>> sources(static_cast<size_t>(c.blocks), std::vector<double>(hidden));
    for (size_t b = 0; b < sources.size(); ++b) {
      for (size_t i = 0; i < hidden; ++i) sources[b][i] = from_bf16(bank[b * count + t * hidden + i]);
    }
    if (c.prefix || c.delta) {
      std::vector<double>& p = sources.emplace_back(hidden);
      for (size_t i = 0; i < hidden; ++i) {
        const size_t at = t * hidden + i;
        p[i] = (c.prefix ? from_bf16(prefix[at]) : 0) + (c.rest ? from_bf16(rest[at]) : 0) +
               (c.delta ? from_bf16(delta[at]) : 0);
        ASSERT_NEAR(from_bf16(sum[at]), p[i], std::abs(p[i]) / 200 + 1e-6);
        if (!c.rest) p[i] = from_bf16(sum[at]);
      }
    }
    std::vector<double> mix(hidden);
    double mass = 0, squares = 0;
    for (const auto& x : sources) {
      double dot = 0, of_row = 0;
      for (size_t i = 0; i < hidden; ++i) dot += x[i] * static_cast<double>(query[i]), of_row += x[i] * x[i];
      const double e = std::exp(dot / std::sqrt(of_row / c.hidden + 1e-5));
      mass += e;
      for (size_t i = 0; i < hidden; ++i) mix[i] += e * x[i];
    }
    for (double& x : mix) x /= mass, squares += x * x;
    for (size_t i = 0; i < hidden; ++i) {
      const size_t at = t * hidden + i;
      const double want = c.norm ? mix[i] / std::sqrt(squares / c.hidden + 1e-5) * from_bf16(norm[i]) : mix[i];
      all.add(from_bf16(out[at]), want);
      if (c.out_rest) both.add(from_bf16(out[at]) + from_bf16(out_rest[at]), want);
    }
  }
  EXPECT_LE(all.ratio(), 3e-3);
  EXPECT_LE(both.ratio(), 5e-5);
}

AttnResPlan clusters(int tokens, int hidden, int cluster) {
  return {AttnResKernel::small, cluster, ((hidden / 8 + cluster - 1) / cluster + 31) / 32 * 32, tokens * cluster, 0, 0};
}

TEST(AttnResEmulated, BlocksShareAToken) {
  for (const bool dependent : {false, true}) {
    for (const int cluster : {1, 2, 4, 8}) {
      const auto seed = static_cast<uint32_t>(cluster);
      check({.plan = clusters(2, 2048, cluster),
             .tokens = 2,
             .hidden = 2048,
             .blocks = 3,
             .rest = true,
             .dependent = dependent},
            seed, 3000);
      check({.plan = clusters(1, 1016, cluster), .hidden = 1016, .blocks = 8, .norm = false, .dependent = dependent},
            seed + 20);
      check({.plan = clusters(1, 520, cluster), .hidden = 520, .blocks = 0, .dependent = dependent}, seed + 40);
      check({.plan = clusters(1, 520, cluster),
             .hidden = 520,
             .blocks = 2,
             .prefix = false,
             .delta = false,
             .dependent = dependent},
            seed + 60);
    }
  }
}

// One or two sources: a block a token, rows in registers.
TEST(AttnResEmulated, FewSources) {
  const auto few = [](int tokens, int threads) { return AttnResPlan{AttnResKernel::few, 1, threads, tokens, 0, 0}; };
  for (uint32_t seed = 1; seed < 9; ++seed) {
    const bool rest = seed % 2 == 0;
    check({.plan = few(3, 128), .tokens = 3, .hidden = 4096, .blocks = 1, .rest = rest, .out_rest = rest}, seed);
    check({.plan = few(2, 64), .tokens = 2, .hidden = 1016, .blocks = 0, .rest = rest, .out_rest = true}, seed + 20);
    check({.plan = few(2, 160), .tokens = 2, .hidden = 2304, .blocks = 1, .delta = false, .norm = false}, seed + 40);
    check({.plan = few(1, 32), .hidden = 520, .blocks = 2, .prefix = false, .delta = false}, seed + 60);
  }
}

// Any number of sources, read twice.
TEST(AttnResEmulated, AnySources) {
  const auto any = [](int tokens, int hidden, int sources, int threads) {
    return AttnResPlan{AttnResKernel::any, 1, threads, tokens, 0, 4 * hidden + (threads / 32 + 1) * sources * 8};
  };
  for (uint32_t seed = 1; seed < 9; ++seed) {
    const bool rest = seed % 2 == 0, dependent = seed % 3 == 0;
    check({.plan = any(2, 1024, 41, 128),
           .tokens = 2,
           .hidden = 1024,
           .blocks = 40,
           .rest = rest,
           .dependent = dependent,
           .out_rest = rest},
          seed);
    check({.plan = any(1, 520, 4, 64), .hidden = 520, .blocks = 3, .norm = false, .dependent = dependent}, seed + 20);
    check({.plan = any(2, 520, 9, 96), .tokens = 2, .hidden = 520, .blocks = 9, .prefix = false, .delta = false}, seed + 40);
  }
}

// Rows of one token after the other in a ring that holds little more than those of one (of P one after the other, beside all
// of the bank).
TEST(AttnResEmulated, RingOfRows) {
  const auto ring = [](int hidden, int slots, int grid) {
    return AttnResPlan{AttnResKernel::large,     1, ((hidden / 8 + 1) / 2 + 31) / 32 * 32 + 32, grid, slots,
                       slots * (hidden * 2 + 16)};
  };
  for (uint32_t seed = 1; seed < 4; ++seed) {
    check({.plan = ring(2048, 7, 2), .tokens = 9, .hidden = 2048, .blocks = 3, .rest = true, .dependent = true}, seed);
    check({.plan = ring(520, 10, 1), .tokens = 40, .hidden = 520, .blocks = 8, .norm = false, .dependent = seed % 2 == 0},
          seed + 10);
    check({.plan = ring(1024, 4, 1), .tokens = 6, .hidden = 1024, .blocks = 1, .prefix = false, .dependent = true},
          seed + 20);
  }
}

}  // namespace
}  // namespace k3::ops::cuda
