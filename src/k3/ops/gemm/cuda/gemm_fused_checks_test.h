// Internal to ops/gemm. Products of few tokens with what is fused to them, against the reference: what the tests on a GPU
// and on the emulated one (tests/emulator) share.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"

namespace k3::ops::cuda {

// How a check makes its calls. young: told before each what the kernel before it may still write.
struct GemmHow {
  bool dependent = false, release_late = false;
  bool claims = false;
  std::function<void(std::vector<std::span<char>>)> young = {};

  void call(GemmArgs args, const std::vector<const DeviceArray<uint16_t>*>& written_before,
            const DeviceArray<uint32_t>* site_counter = nullptr) const {
    const DeviceArray<uint32_t> counter(std::vector<uint32_t>{0});
    args.dependent = dependent, args.release_late = release_late;
    if (claims) args.claims = counter.data();
    std::vector<std::span<char>> spans = {bytes(counter)};
    if (site_counter != nullptr) spans.push_back(bytes(*site_counter));
    for (const DeviceArray<uint16_t>* x : written_before) spans.push_back(bytes(*x));
    if (young) young(std::move(spans));
    ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
    EXPECT_EQ(counter.get(), std::vector<uint32_t>{0});
  }

 private:
  template <class T>
  static std::span<char> bytes(const DeviceArray<T>& x) {
    return {reinterpret_cast<char*>(x.data()), x.bytes()};
  }
};

constexpr double kOneRounding = 3e-3;  // norm ratio of BF16 outputs

struct GemmMatrix {
  OwnedWeight host;
  DeviceArray<uint8_t> data;
  GemmMatrix(int64_t rows, int64_t cols, uint64_t seed)
      : host(random_weight(Scheme::bf16, rows, cols, seed)), data(host.data) {}
  Weight device() const { return {data.data(), nullptr, Scheme::bf16, host.rows, host.cols}; }
  std::vector<float> product(std::vector<float>& x, int64_t tokens) const {
    std::vector<float> y(static_cast<size_t>(tokens * host.rows));
    linear_ref(matrix(x.data(), tokens, host.cols), host.view(), matrix(y.data(), tokens, host.rows), false);
    return y;
  }
};

struct GemmPairCase {
  int64_t tokens, in, pairs;
  Glu glu;
};

// A pair between two parts without one, as routers and latents surround it.
inline void check_pair(const GemmPairCase& c, const GemmHow& how = {}) {
  SCOPED_TRACE(fmt::format("T {} I {} pairs {} situ {}", c.tokens, c.in, c.pairs, c.glu.kind == GluKind::situ));
  std::vector<float> x = random_bf16(c.tokens * c.in, 1);
  const GemmMatrix before(18, c.in, 2), gate(c.pairs, c.in, 3), up(c.pairs, c.in, 4), after(40, c.in, 5);
  const DeviceArray<uint16_t> d_x(to_bf16(x)), y(c.tokens * (c.pairs + 8)), y_after(c.tokens * 40);
  const DeviceArray<float> y_before(c.tokens * 18);
  GemmArgs args{.x = d_x.data(), .tokens = c.tokens, .in = c.in, .x_stride = c.in, .part_count = 3};
  args.parts[0] = {.w = before.device(), .y = y_before.data(), .y_stride = 18, .y_dtype = DType::f32};
  args.parts[1] = {.w = gate.device(), .y = y.data(), .y_stride = c.pairs + 8};
  args.parts[1].up = up.device();
  args.parts[2] = {.w = after.device(), .y = y_after.data(), .y_stride = 40};
  args.glu = c.glu;
  how.call(args, {&d_x});

  std::vector<float> gates = gate.product(x, c.tokens), ups = up.product(x, c.tokens), want(gates.size());
  glu_ref(matrix(gates.data(), c.tokens, c.pairs), matrix(ups.data(), c.tokens, c.pairs), c.glu,
          matrix(want.data(), c.tokens, c.pairs));
  const std::vector<float> all = from_bf16(y.get());
  std::vector<float> got;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto row = all.begin() + t * (c.pairs + 8);
    got.insert(got.end(), row, row + c.pairs);
    for (int64_t i = c.pairs; i < c.pairs + 8; ++i) EXPECT_TRUE(std::isnan(row[i])) << t;
  }
  EXPECT_LE(norm_ratio(got, want), kOneRounding);
  EXPECT_LE(norm_ratio(y_before.get(), before.product(x, c.tokens)), 1e-5);
  EXPECT_LE(norm_ratio(from_bf16(y_after.get()), after.product(x, c.tokens)), kOneRounding);
  EXPECT_TRUE(y.guards_intact() && y_before.guards_intact() && y_after.guards_intact());
}

inline void check_two(int64_t tokens, int64_t in, int64_t rows, const GemmHow& how = {}) {
  SCOPED_TRACE(fmt::format("T {} I {} O {}", tokens, in, rows));
  std::vector<float> x[2] = {random_bf16(tokens * in, 1), random_bf16(tokens * in, 2)};
  const GemmMatrix w[2] = {{rows, in, 3}, {rows, in, 4}};
  const DeviceArray<uint16_t> d_x[2] = {DeviceArray<uint16_t>(to_bf16(x[0])), DeviceArray<uint16_t>(to_bf16(x[1]))};
  const DeviceArray<uint16_t> y[2] = {DeviceArray<uint16_t>(tokens * rows), DeviceArray<uint16_t>(tokens * rows)};
  GemmArgs args{.x = d_x[0].data(), .tokens = tokens, .in = in, .x_stride = in, .part_count = 2};
  args.other_x = d_x[1].data();
  for (size_t i = 0; i < 2; ++i) args.parts[i] = {.w = w[i].device(), .y = y[i].data(), .y_stride = rows};
  how.call(args, {&d_x[0], &d_x[1]});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LE(norm_ratio(from_bf16(y[i].get()), w[i].product(x[i], tokens)), kOneRounding) << i;
    EXPECT_TRUE(y[i].guards_intact()) << i;
  }
}

// A residual sum and its norm in front, twice, so that the second finds what the first left. keep: of what rounding cuts
// off, too.
inline void check_site(int64_t in, int64_t pairs, bool norm_bf16, bool keep, const GemmHow& how = {}) {
  SCOPED_TRACE(fmt::format("I {} pairs {} norm {} keep {}", in, pairs, norm_bf16 ? "bf16" : "f32", keep));
  std::vector<float> high = random_bf16(in, 1), low(high.size()), sum(high.size()), gain = random_bf16(in, 3);
  const GemmMatrix first(18, in, 4), gate(pairs, in, 5), up(pairs, in, 6);
  const DeviceArray<uint16_t> prefix(to_bf16(high)), rest(in), gain_bf16(to_bf16(gain)), x(in), y(pairs);
  const DeviceArray<float> gain_f32(gain), y_first(18);
  const DeviceArray<uint32_t> counter(std::vector<uint32_t>{0});
  for (uint64_t pass = 0; pass < 2; ++pass) {
    const std::vector<float> more = random_bf16(in, 10 + pass);
    const DeviceArray<uint16_t> delta(to_bf16(more));
    GemmArgs args{.x = x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 2};
    args.parts[0] = {.w = first.device(), .y = y_first.data(), .y_stride = 18, .y_dtype = DType::f32};
    args.parts[1] = {.w = gate.device(), .y = y.data(), .y_stride = pairs};
    args.parts[1].up = up.device();
    args.site = {.prefix = prefix.data(),
                 .delta = delta.data(),
                 .prefix_out = prefix.data(),
                 .norm_bf16 = norm_bf16,
                 .eps = 1e-5F,
                 .out = x.data(),
                 .counter = counter.data()};
    args.split = keep;
    if (keep) args.site.rest = pass > 0 ? rest.data() : nullptr, args.site.rest_out = rest.data();
    args.site.norm = norm_bf16 ? static_cast<const void*>(gain_bf16.data()) : gain_f32.data();
    ASSERT_TRUE(gemm_takes_site(args));
    how.call(args, {&delta}, &counter);
    double squares = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const float total = (high[i] + low[i]) + more[i];
      high[i] = round_to_bf16(total);
      low[i] = keep ? round_to_bf16(total - high[i]) : 0;
      sum[i] = high[i] + low[i];
      squares += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    }
    EXPECT_EQ(from_bf16(prefix.get()), high);
    if (keep) {
      EXPECT_EQ(from_bf16(rest.get()), low);
    }
    std::vector<float> normed(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      normed[i] = static_cast<float>(static_cast<double>(sum[i]) / std::sqrt(squares / static_cast<double>(in) + 1e-5) *
                                     static_cast<double>(gain[i]));
    }
    std::vector<float> got_x = from_bf16(x.get());
    EXPECT_LE(norm_ratio(got_x, normed), kOneRounding);
    // Products of a split x see 16 bits of it: an error of 2^-17 a number.
    std::vector<float>& seen = keep ? normed : got_x;
    EXPECT_LE(norm_ratio(y_first.get(), first.product(seen, 1)), keep ? 3e-5 : 1e-5);
    std::vector<float> gates = gate.product(seen, 1), ups = up.product(seen, 1), want(gates.size());
    glu_ref(matrix(gates.data(), 1, pairs), matrix(ups.data(), 1, pairs), {}, matrix(want.data(), 1, pairs));
    EXPECT_LE(norm_ratio(from_bf16(y.get()), want), kOneRounding);
    EXPECT_EQ(counter.get(), std::vector<uint32_t>{0});
    EXPECT_TRUE(x.guards_intact() && y.guards_intact() && prefix.guards_intact() && rest.guards_intact() &&
                y_first.guards_intact());
  }
}

// One token, x in two rows, without a site: sums, and a pair whose activation sees both rows.
inline void check_split(int64_t in, int64_t rows, bool deterministic = false, const GemmHow& how = {}) {
  SCOPED_TRACE(fmt::format("I {} O {} deterministic {}", in, rows, deterministic));
  const std::vector<float> x = random_bf16(in, 1), rest = random_bf16(in, 2, 2e-3F);
  std::vector<float> both(x.size());
  for (size_t i = 0; i < x.size(); ++i) both[i] = x[i] + rest[i];
  constexpr int64_t kPairs = 24;
  const GemmMatrix w(rows, in, 3), gate(kPairs, in, 4), up(kPairs, in, 5);
  const DeviceArray<uint16_t> d_x(to_bf16(x)), d_rest(to_bf16(rest));
  const DeviceArray<float> y(rows), hidden(kPairs);
  GemmArgs args{.x = d_x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 1, .deterministic = deterministic};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = rows, .y_dtype = DType::f32};
  args.split = true, args.x_rest = d_rest.data();
  if (rows % 2 == 0) {
    args.parts[1] = {.w = gate.device(), .y = hidden.data(), .y_stride = kPairs, .y_dtype = DType::f32};
    args.parts[1].up = up.device();
    args.part_count = 2;
  }
  ASSERT_TRUE(gemm_takes_split(args));
  how.call(args, {&d_x, &d_rest});
  EXPECT_LE(norm_ratio(y.get(), w.product(both, 1)), 1e-5);
  if (rows % 2 == 0) {
    std::vector<float> gates = gate.product(both, 1), ups = up.product(both, 1), want(kPairs);
    glu_ref(matrix(gates.data(), 1, kPairs), matrix(ups.data(), 1, kPairs), {}, matrix(want.data(), 1, kPairs));
    EXPECT_LE(norm_ratio(hidden.get(), want), 3e-5);
  }
  EXPECT_TRUE(y.guards_intact() && hidden.guards_intact());
}

// Accumulated on top of what is there, as shared and routed experts meet in one output.
inline void check_split_accumulates(int64_t in, int64_t rows, const GemmHow& how = {}) {
  SCOPED_TRACE(fmt::format("I {} O {}", in, rows));
  std::vector<float> both = random_bf16(in, 1);
  const std::vector<float> rest = random_bf16(in, 2, 2e-3F), before = random_bf16(rows, 3);
  const DeviceArray<uint16_t> d_x(to_bf16(both)), d_rest(to_bf16(rest)), y(to_bf16(before));
  for (size_t i = 0; i < both.size(); ++i) both[i] += rest[i];
  const GemmMatrix w(rows, in, 4);
  GemmArgs args{.x = d_x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 1};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = rows, .accumulate = true};
  args.split = true, args.x_rest = d_rest.data();
  how.call(args, {&d_x, &d_rest, &y});
  std::vector<float> want = w.product(both, 1);
  for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
  EXPECT_LE(norm_ratio(from_bf16(y.get()), want), kOneRounding);
  EXPECT_TRUE(y.guards_intact());
}

}  // namespace k3::ops::cuda
