// Causal attention over expanded keys and values, as for Hopper, against double on the same BF16 numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"
#include "tests/emulator/emulator.h"
#include "tests/emulator/numbers.h"

namespace k3::ops::cuda {
namespace {

using emulator::from_bf16;

struct Case {
  int heads = 2;
  std::vector<int> queries = {}, keys = {};  // of each request
  bool gate = false;
  int part = 0;  // keys of a part; 0: all in one
};

constexpr int kBehind = 40;  // rows of NaN behind the last key: `keys` is an upper bound

class Prefill {
 public:
  explicit Prefill(const Case& c, uint64_t seed)
      : case_(c), query_offsets_(offsets_of(c.queries)), key_offsets_(offsets_of(c.keys)) {
    q_ = emulator::random_bf16(tokens() * width(kMlaKey), seed, 2);
    expanded_ = emulator::random_bf16(keys() * width(kMlaNope + kMlaValue), seed + 1);
    expanded_.resize(expanded_.size() + kBehind * width(kMlaNope + kMlaValue), emulator::kNanBf16);
    shared_ = emulator::random_bf16(keys() * kMlaRope, seed + 2);
    shared_.resize(shared_.size() + kBehind * kMlaRope, emulator::kNanBf16);
    gate_ = emulator::random_bf16(tokens() * width(kMlaValue), seed + 3);
    out_.assign(tokens() * width(kMlaValue), emulator::kNanBf16);
    lse_.assign(tokens() * static_cast<size_t>(c.heads), NAN);
    so_far_.assign(out_.size(), NAN);
  }

  int run(int head_group) {
    const auto all = static_cast<int64_t>(keys()) + kBehind, each = case_.part > 0 ? int64_t{case_.part} : all;
    for (int64_t first = 0; first < all; first += each) {
      MlaPrefillLaunch launch;
      const int64_t here = std::min(each, all - first), wide = case_.heads * (kMlaNope + kMlaValue);
      uint16_t *const rows = expanded_.data() + first * wide, *const shared_rows = shared_.data() + first * kMlaRope;
      launch.head_group = head_group;
      launch.args = {.q = q_.data(),
                     .q_stride = case_.heads * kMlaKey,
                     .expanded = rows,
                     .expanded_stride = wide,
                     .shared_keys = shared_rows,
                     .shared_stride = kMlaRope,
                     .query_offsets = query_offsets_.data(),
                     .key_offsets = key_offsets_.data(),
                     .batch = static_cast<int64_t>(case_.queries.size()),
                     .heads = case_.heads,
                     .tokens = static_cast<int64_t>(tokens()),
                     .keys = here,
                     .gate = case_.gate ? gate_.data() : nullptr,
                     .gate_stride = case_.heads * kMlaValue,
                     .out = out_.data(),
                     .out_stride = case_.heads * kMlaValue,
                     .lse = lse_.data(),
                     .so_far = case_.part > 0 ? so_far_.data() : nullptr,
                     .first_key = first};
      const auto map = [](CUtensorMap& to, void* base, int64_t columns, int64_t count) {
        encode_map(&to, {.base = base, .sizes = {columns, count}, .strides = {1, columns}, .box = {64, 128}});
      };
      map(launch.q, q_.data(), case_.heads * kMlaKey, static_cast<int64_t>(tokens()));
      map(launch.expanded, rows, wide, here);
      map(launch.shared_keys, shared_rows, kMlaRope, here);
      if (const int code = mla_prefill_sm90_launch(launch, nullptr); code != 0) return code;
    }
    return 0;
  }

  void judge() const {
    emulator::Apart all;
    for (size_t s = 0; s < case_.queries.size(); ++s) {
      for (int i = 0; i < case_.queries[s]; ++i) {
        for (int h = 0; h < case_.heads; ++h) judge_row(s, i, h, all);
      }
    }
    EXPECT_LE(all.ratio(), 4e-3);
  }

 private:
  static std::vector<int32_t> offsets_of(const std::vector<int>& counts) {
    std::vector<int32_t> out = {0};
    for (const int n : counts) out.push_back(out.back() + n);
    return out;
  }
  size_t tokens() const { return static_cast<size_t>(query_offsets_.back()); }
  size_t keys() const { return static_cast<size_t>(key_offsets_.back()); }
  size_t width(int columns) const { return static_cast<size_t>(case_.heads * columns); }

  void judge_row(size_t s, int i, int head, emulator::Apart& all) const {
    const auto token = static_cast<size_t>(query_offsets_[s] + i), h = static_cast<size_t>(head);
    const int seen = std::max(0, case_.keys[s] - case_.queries[s] + i + 1);
    std::vector<double> scores(static_cast<size_t>(seen)), out(kMlaValue);
    double top = -INFINITY, sum = 0;
    const auto row = [&](int key) { return &expanded_[static_cast<size_t>(key_offsets_[s] + key) * width(256) + h * 256]; };
    const uint16_t* const q = &q_[token * width(kMlaKey) + h * kMlaKey];
    for (int k = 0; k < seen; ++k) {
      double x = 0;
      for (int d = 0; d < kMlaNope; ++d) x += from_bf16(q[d]) * from_bf16(row(k)[d]);
      for (int d = 0; d < kMlaRope; ++d)
        x += from_bf16(q[kMlaNope + d]) * from_bf16(shared_[static_cast<size_t>((key_offsets_[s] + k) * kMlaRope + d)]);
      scores[static_cast<size_t>(k)] = x / std::sqrt(192.0);
      top = std::max(top, scores[static_cast<size_t>(k)]);
    }
    for (int k = 0; k < seen; ++k) {
      const double weight = std::exp(scores[static_cast<size_t>(k)] - top);
      sum += weight;
      for (size_t d = 0; d < out.size(); ++d) out[d] += weight * from_bf16(row(k)[kMlaNope + d]);
    }
    emulator::Apart here;
    for (size_t d = 0; d < out.size(); ++d) {
      const size_t at = token * width(kMlaValue) + h * kMlaValue + d;
      const double want = (seen > 0 ? out[d] / sum : 0) * (case_.gate ? 1 / (1 + std::exp(-from_bf16(gate_[at]))) : 1);
      here.add(from_bf16(out_[at]), want);
      all.add(from_bf16(out_[at]), want);
    }
    ASSERT_LE(here.ratio(), 2e-2) << fmt::format("request {}, query {}, head {}", s, i, head);
    const auto lse = static_cast<double>(lse_[token * static_cast<size_t>(case_.heads) + h]);
    ASSERT_LE(std::abs(lse - (top + std::log(sum))), 1e-3) << fmt::format("request {}, query {}, head {}", s, i, head);
  }

  Case case_;
  std::vector<int32_t> query_offsets_, key_offsets_;
  std::vector<uint16_t> q_, expanded_, shared_, gate_, out_;
  std::vector<float> lse_, so_far_;
};

void check(const Case& c, int head_group, uint32_t seed) {
  SCOPED_TRACE(fmt::format("{} requests, {} heads, parts of {}, seed {}", c.queries.size(), c.heads, c.part, seed));
  Prefill prefill(c, seed);
  emulator::set_options({.seed = seed, .late_products = true, .late_copies = true});
  ASSERT_EQ(prefill.run(head_group), 0) << emulator::failure();
  prefill.judge();
}

TEST(MlaPrefillEmulated, Requests) {
  check({.heads = 3, .queries = {1, 0, 130, 17}, .keys = {1, 0, 130, 145}, .gate = true}, 2, 1);
  check({.heads = 1, .queries = {64, 1}, .keys = {640, 513}}, 1, 2);
}

// Every tile of a long row is there before the one that takes its place.
TEST(MlaPrefillEmulated, LongRows) {
  for (uint32_t seed = 3; seed < 6; ++seed)
    check({.heads = 1, .queries = {1}, .keys = {1100 + static_cast<int>(seed)}}, 1, seed);
}

TEST(MlaPrefillEmulated, NothingBehindTheLastKey) {
  for (uint32_t seed = 11; seed < 27; ++seed) check({.heads = 1, .queries = {2}, .keys = {3}}, 1, seed);
}

TEST(MlaPrefillEmulated, KeysInParts) {
  check({.heads = 2, .queries = {3, 140, 20}, .keys = {60, 300, 20}, .gate = true, .part = 128}, 2, 7);
}

}  // namespace
}  // namespace k3::ops::cuda
