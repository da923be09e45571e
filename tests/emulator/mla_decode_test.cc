// Absorbed decode and its merge, as for Hopper, against double on the same BF16 queries and latents: with copies that land
// late and products that are computed late, warps in random order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "k3/base/rng.h"
#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"
#include "tests/emulator/emulator.h"
#include "tests/emulator/numbers.h"

namespace k3::ops::cuda {
namespace {

using emulator::from_bf16;
using emulator::to_bf16;

struct Case {
  int heads = 96, tokens = 1;
  std::vector<int> lengths = {};
  std::vector<int> counts = {};  // query tokens a request; empty: `tokens` each
  int page_tokens = 64;
  float query_scale = 1, growth = 0;
  bool f32 = false;
};

// What the dispatch would take on a GPU of so many multiprocessors.
MlaDecodeConfig config_of(const Case& c, int multiprocessors) {
  DeviceInfo device;
  device.sm_count = multiprocessors;
  device.capability = 90;
  device.shared_bytes_per_block = 232448;
  return mla_decode_config(c.heads, c.tokens, device);
}

class Decode {
 public:
  Decode(const Case& c, const MlaDecodeConfig& config) : case_(c), config_(config) {
    offsets_ = {0};
    for (size_t s = 0; s < c.lengths.size(); ++s)
      offsets_.push_back(offsets_.back() + (c.counts.empty() ? c.tokens : c.counts[s]));
    rows_ = static_cast<size_t>(offsets_.back() * c.heads);
    int number = 0;
    for (const int n : c.lengths) {
      most_ = std::max(most_, pages_of(n));
      number += pages_of(n);
    }
    most_ += 3;
    const Rng rng(7, 7);
    uint64_t at = 0;
    const auto normal = [&] { return static_cast<float>(rng.normal(at++)); };
    query_.resize(rows_ * kLatentRow + 8);
    for (uint16_t& x : query_) x = to_bf16(c.query_scale * normal());
    pool_.assign(static_cast<size_t>((number + 1) * c.page_tokens * kLatentRow), 0xFFFF);  // NaN where no token lies
    table_.assign(c.lengths.size() * static_cast<size_t>(most_), 0x3FFFFFF);               // never to be followed
    std::vector<int32_t> order(static_cast<size_t>(number));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.bits(at++) % i]);
    size_t next = 0;
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int page = 0; page < pages_of(c.lengths[s]); ++page)
        table_[s * static_cast<size_t>(most_) + static_cast<size_t>(page)] = order[next++];
      for (int t = 0; t < c.lengths[s]; ++t) {
        for (int i = 0; i < kLatentRow; ++i)
          pool_[latent_at(s, t, i)] = to_bf16(normal() * (1 + c.growth * static_cast<float>(t)));
      }
    }
    pages_ = number + 1;
  }

  // What went wrong, empty: nothing.
  std::string run() {
    const auto blocks = static_cast<size_t>(config_.workers * config_.pair);
    std::vector<int2> splits(blocks, int2{77, 77});
    std::vector<float2> sums(2 * blocks * static_cast<size_t>(config_.row_tile), float2{NAN, NAN});
    std::vector<float4> acc(2 * blocks * static_cast<size_t>(config_.row_tile) * kLatent / 4, float4{NAN, NAN, NAN, NAN});
    out_.assign(rows_ * kLatent, 0x7FC0);
    out_f32_.assign(rows_ * kLatent, NAN);
    lse_.assign(rows_, NAN);
    MlaDecodeLaunch launch;
    launch.args = {.query = query_.data(),
                   .lengths = case_.lengths.data(),
                   .offsets = case_.counts.empty() ? nullptr : offsets_.data(),
                   .batch = static_cast<int64_t>(case_.lengths.size()),
                   .heads = case_.heads,
                   .max_query_tokens = case_.tokens,
                   .query_tokens = offsets_.back(),
                   .pages = {pool_.data(), int64_t{case_.page_tokens} * kLatentRow, kLatentRow, pages_, case_.page_tokens,
                             table_.data(), most_},
                   .ol = case_.f32 ? static_cast<void*>(out_f32_.data()) : out_.data(),
                   .ol_f32 = case_.f32,
                   .lse = lse_.data()};
    launch.config = config_;
    launch.parts = {&acc.data()->x, sums.data(), splits.data()};
    launch.box_tokens = case_.page_tokens % 64 == 0 ? 64 / config_.pair : case_.page_tokens % 32 == 0 ? 32 : 16;
    encode_map(&launch.query, {.base = query_.data(),
                               .rank = 2,
                               .sizes = {kLatentRow, static_cast<int64_t>(rows_)},
                               .strides = {1, kLatentRow},
                               .box = {64, config_.row_tile}});
    encode_map(&launch.pages, {.base = pool_.data(),
                               .rank = 3,
                               .sizes = {kLatentRow, case_.page_tokens, pages_},
                               .strides = {1, kLatentRow, int64_t{case_.page_tokens} * kLatentRow},
                               .box = {64, launch.box_tokens, 1}});
    int code = config_.halves ? mla_decode_halves_launch(launch, nullptr) : mla_decode_sm90_launch(launch, nullptr);
    if (code == 0) code = mla_merge_launch(launch, nullptr);
    return code == 0 ? "" : emulator::failure();
  }

  void judge() const {
    double apart = 0, all = 0;
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      const int count = offsets_[s + 1] - offsets_[s];
      for (int i = 0; i < count * case_.heads; ++i) {
        const auto row = static_cast<size_t>(offsets_[s] * case_.heads + i);
        const int visible = std::max(0, case_.lengths[s] - count + i / case_.heads + 1);
        const Row expected = reference(s, row, visible);
        double here = 0, norm = 0;
        for (size_t d = 0; d < kLatent; ++d) {
          const double got =
              case_.f32 ? static_cast<double>(out_f32_[row * kLatent + d]) : from_bf16(out_[row * kLatent + d]);
          here += (got - expected.out[d]) * (got - expected.out[d]);
          norm += expected.out[d] * expected.out[d];
        }
        apart += here;
        all += norm;
        const double lse = static_cast<double>(lse_[row]);
        ASSERT_LE(here, 1e-4 * norm) << fmt::format("request {}, token {}, head {}", s, i / case_.heads,
                                                    i % case_.heads);  // 1e-2
        ASSERT_TRUE(visible == 0 ? std::isinf(lse) && lse < 0 : std::abs(lse - expected.lse) <= 1e-4)
            << lse << " for " << expected.lse;
      }
    }
    EXPECT_LE(std::sqrt(apart), 3e-3 * std::sqrt(all));
  }

 private:
  struct Row {
    std::vector<double> out = std::vector<double>(kLatent);
    double lse = -INFINITY;
  };
  int pages_of(int length) const { return (length + case_.page_tokens - 1) / case_.page_tokens; }
  size_t latent_at(size_t s, int token, int i) const {
    const int32_t page = table_[s * static_cast<size_t>(most_) + static_cast<size_t>(token / case_.page_tokens)];
    return static_cast<size_t>((page * case_.page_tokens + token % case_.page_tokens) * kLatentRow + i);
  }
  Row reference(size_t s, size_t row, int visible) const {
    std::vector<double> scores(static_cast<size_t>(visible));
    double top = -INFINITY, sum = 0;
    for (int t = 0; t < visible; ++t) {
      double x = 0;
      for (int i = 0; i < kLatentRow; ++i)
        x += from_bf16(query_[row * kLatentRow + static_cast<size_t>(i)]) * from_bf16(pool_[latent_at(s, t, i)]);
      scores[static_cast<size_t>(t)] = x / std::sqrt(192.0);
      top = std::max(top, scores[static_cast<size_t>(t)]);
    }
    Row r;
    for (int t = 0; t < visible; ++t) {
      const double w = std::exp(scores[static_cast<size_t>(t)] - top);
      sum += w;
      for (int d = 0; d < kLatent; ++d) r.out[static_cast<size_t>(d)] += w * from_bf16(pool_[latent_at(s, t, d)]);
    }
    for (double& x : r.out) x = visible > 0 ? x / sum : 0;
    if (visible > 0) r.lse = top + std::log(sum);
    return r;
  }

  Case case_;
  MlaDecodeConfig config_;
  std::vector<int32_t> offsets_, table_;
  size_t rows_ = 0;
  int most_ = 0, pages_ = 0;
  std::vector<uint16_t> query_, pool_, out_;
  std::vector<float> out_f32_, lse_;
};

// On GPUs of so few multiprocessors that requests are split among them.
void check(const Case& c, int multiprocessors) {
  const MlaDecodeConfig config = config_of(c, multiprocessors);
  SCOPED_TRACE(fmt::format("{} heads, {} tokens, {} requests, first length {}, page {}: tiles of {} rows", c.heads, c.tokens,
                           c.lengths.size(), c.lengths[0], c.page_tokens, config.row_tile));
  Decode decode(c, config);
  static uint32_t seed = 0;
  ++seed;
  emulator::set_options({.seed = seed, .late_products = seed % 2 == 0, .late_copies = true});
  ASSERT_EQ(decode.run(), "") << "seed " << seed;
  decode.judge();
}

TEST(MlaDecodeEmulated, EveryTile) {
  for (const int heads : {12, 24, 40, 64, 96}) check({.heads = heads, .lengths = {65, 300, 63}}, 4);
}

TEST(MlaDecodeEmulated, LengthsAndSplits) {
  check({.heads = 96, .lengths = {70}}, 4);
  check({.heads = 96, .lengths = {1, 500, 64, 0, 65, 1200}}, 6);
  check({.heads = 12, .lengths = {1, 500, 64, 0, 65, 1200}}, 5);
}

TEST(MlaDecodeEmulated, Windows) {
  check({.heads = 12, .tokens = 8, .lengths = {9, 700, 64}}, 4);
  check({.heads = 12, .tokens = 8, .lengths = {70, 300, 0, 64, 90}, .counts = {3, 0, 1, 8, 2}}, 4);
  check({.heads = 12, .tokens = 4, .lengths = {300, 2, 64}, .counts = {1, 4, 2}}, 3);
  check({.heads = 96, .tokens = 2, .lengths = {200, 300}, .counts = {1, 2}}, 4);
}

TEST(MlaDecodeEmulated, PageShapes) {
  for (const int page : {16, 32, 48, 64, 128}) check({.heads = 96, .lengths = {200, 31}, .page_tokens = page}, 4);
  for (const int page : {16, 64}) check({.heads = 64, .tokens = 2, .lengths = {200, 31}, .page_tokens = page}, 4);
}

TEST(MlaDecodeEmulated, SharpAndRisingScores) {
  check({.heads = 96, .lengths = {700}, .query_scale = 8}, 4);
  check({.heads = 96, .lengths = {1500}, .query_scale = 2, .growth = 0.001F, .f32 = true}, 2);
  check({.heads = 12, .lengths = {1500}, .query_scale = 2, .growth = 0.001F}, 2);
}

}  // namespace
}  // namespace k3::ops::cuda
