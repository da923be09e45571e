// Append, absorb, decode and values in one launch against double: on the latents as the cache holds them, the query rounded
// to BF16 as the separate kernels round it.
#include <gtest/gtest.h>

#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_gpu_cases.h"

namespace k3::ops::cuda {
namespace {

struct Case {
  int64_t heads = 12, tokens = 1;
  int length = 100;
  int64_t page_tokens = 64, row_gap = 0;
  bool gated = true, norm_f32 = false;
  float scale = 1;
};

class Fused {
 public:
  explicit Fused(const Case& c)
      : c_(c),
        data_({.lengths = {c.length}, .page_tokens = c.page_tokens, .row_gap = c.row_gap}, 1),
        q_stride_(c.heads * 192 + 16),
        kv_stride_(kRow + 24),
        gate_stride_(c.heads * 128 + 8),
        out_stride_(c.heads * 128 + 24),
        q_(random_bf16(c.tokens * q_stride_, 2, c.scale)),
        kv_(random_bf16(c.tokens * kv_stride_, 3)),
        norm_(random_bf16(kRank, 4)),
        kv_b_(random_bf16(c.heads * 256 * kRank, 5, 0.044F)),
        gate_(random_bf16(c.tokens * gate_stride_, 6)) {}

  void run() {
    const DeviceArray<uint16_t> q(to_bf16(q_)), kv(to_bf16(kv_)), norm(to_bf16(norm_)), kv_b(to_bf16(kv_b_)),
        gate(to_bf16(gate_));
    const DeviceArray<float> norm_f32(norm_);
    const DeviceArray<int32_t> counters(std::vector<int32_t>(kFusedCounters, 0));
    const MlaFusedConfig config = mla_fused_config(c_.heads, c_.tokens, 1, device_info());
    ASSERT_TRUE(config.usable);
    const DeviceArray<uint8_t> workspace(mla_fused_workspace_bytes(config));
    const MlaFused args{.append = {.kv = kv.data(),
                                   .kv_stride = kv_stride_,
                                   .norm_weight = c_.norm_f32 ? static_cast<const void*>(norm_f32.data()) : norm.data(),
                                   .norm_f32 = c_.norm_f32,
                                   .eps = 1e-6F,
                                   .pages = {}},
                        .q = q.data(),
                        .q_stride = q_stride_,
                        .kv_b = kv_b.data(),
                        .lengths = data_.lengths(),
                        .tokens = c_.tokens,
                        .heads = c_.heads,
                        .pages = data_.pages(),
                        .gate = c_.gated ? gate.data() : nullptr,
                        .gate_stride = gate_stride_,
                        .out = nullptr,
                        .out_stride = out_stride_,
                        .workspace = workspace.data(),
                        .counters = counters.data()};
    std::vector<uint16_t> before;
    for (int repeat = 0; repeat < 2; ++repeat) {  // over what the first left; the second keeps what rounding cuts off, too
      const DeviceArray<uint16_t> out(c_.tokens * out_stride_), rest(c_.tokens * out_stride_);
      MlaFused call = args;
      call.out = out.data();
      if (repeat == 1) call.out_rest = rest.data();
      ASSERT_EQ(mla_fused_cuda(call, nullptr).code, 0);
      gpu_sync();
      out_ = out.get();
      rest_ = rest.get();
      EXPECT_TRUE(out.guards_intact() && rest.guards_intact());
      if (repeat == 1) {
        EXPECT_EQ(before, out_);
      }
      before = out_;
    }
    for (const int32_t x : counters.get()) EXPECT_EQ(x, 0);
    EXPECT_TRUE(workspace.guards_intact() && data_.guards_intact());
  }

  void check() {
    check_rows();
    std::vector<float> mine(static_cast<size_t>(c_.tokens * c_.heads * 128)), ref(mine.size()), both(mine.size());
    parallel_rows(c_.tokens * c_.heads, [&](int64_t row) {
      const int64_t t = row / c_.heads, h = row % c_.heads;
      const std::vector<float> query = absorbed(t, h);
      std::vector<float> ol(kRank);
      const auto at = [&](int64_t j, int64_t k) { return latents_[static_cast<size_t>(j * kRow + k)]; };
      attend_ref(query.data(), kRow, c_.length - c_.tokens + t + 1, kRank, at, at, ol.data());
      for (int64_t d = 0; d < 128; ++d) {
        double sum = 0;
        for (int64_t i = 0; i < kRank; ++i)
          sum += static_cast<double>(ol[static_cast<size_t>(i)]) *
                 static_cast<double>(kv_b_[static_cast<size_t>((h * 256 + 128 + d) * kRank + i)]);
        if (c_.gated) sum /= 1 + std::exp(-static_cast<double>(gate_[static_cast<size_t>(t * gate_stride_ + h * 128 + d)]));
        ref[static_cast<size_t>(row * 128 + d)] = static_cast<float>(sum);
        const auto column = static_cast<size_t>(t * out_stride_ + h * 128 + d);
        const float out = bf16_to_float(out_[column]), rest = bf16_to_float(rest_[column]);
        EXPECT_LE(std::abs(rest), 0x1p-8F * std::abs(out)) << column;
        mine[static_cast<size_t>(row * 128 + d)] = out;
        both[static_cast<size_t>(row * 128 + d)] = out + rest;
      }
    });
    const double ratio = norm_ratio(mine, ref);
    EXPECT_LE(ratio, 3e-3);
    EXPECT_LT(norm_ratio(both, ref), ratio);
    int shown = 0;
    for (int64_t row = 0; row < c_.tokens * c_.heads; ++row) {
      const double here = norm_ratio(std::span<const float>(mine.data() + row * 128, 128),
                                     std::span<const float>(ref.data() + row * 128, 128));
      if (!(here <= 1e-2) && shown++ < 4) {
        ADD_FAILURE() << fmt::format("token {} head {}: ratio {:.3e}, {} for {}", row / c_.heads, row % c_.heads, here,
                                     mine[static_cast<size_t>(row * 128)], ref[static_cast<size_t>(row * 128)]);
      }
    }
    if (std::getenv("K3_SHOW") != nullptr)
      fmt::print("fused H={} T={} length {}: {:.2e}\n", c_.heads, c_.tokens, c_.length, ratio);
  }

 private:
  // The rows of this step in their pages: half a unit of BF16 and a little; all others as they were.
  void check_rows() {
    const std::vector<uint16_t> pool = data_.pool();
    const std::vector<int32_t> table = data_.table();
    const LatentPages pages = data_.pages();
    latents_ = data_.rows(0);
    for (int64_t i = 0; i < c_.length; ++i) {
      const int64_t at =
          table[static_cast<size_t>(i / c_.page_tokens)] * pages.page_stride + i % c_.page_tokens * pages.row_stride;
      const int64_t t = i - (c_.length - c_.tokens);
      for (int64_t k = 0; k < kRow; ++k) {
        const float got = bf16_to_float(pool[static_cast<size_t>(at + k)]);
        float& expected = latents_[static_cast<size_t>(i * kRow + k)];
        if (t < 0) {
          ASSERT_EQ(got, expected);
          continue;
        }
        const double raw = static_cast<double>(kv_[static_cast<size_t>(t * kv_stride_ + k)]);
        const double value = k < kRank ? raw * factor(t) * static_cast<double>(norm_[static_cast<size_t>(k)]) : raw;
        ASSERT_NEAR(static_cast<double>(got), value, std::abs(value) * 0x1.02p-8) << i << " " << k;
        expected = got;
      }
    }
  }

  double factor(int64_t t) const {
    double squares = 0;
    for (int64_t k = 0; k < kRank; ++k) {
      const auto x = static_cast<double>(kv_[static_cast<size_t>(t * kv_stride_ + k)]);
      squares += x * x;
    }
    return 1 / std::sqrt(squares / kRank + 1e-6);
  }

  std::vector<float> absorbed(int64_t t, int64_t h) const {
    std::vector<double> sums(kRank);
    for (int64_t d = 0; d < 128; ++d) {
      const auto x = static_cast<double>(q_[static_cast<size_t>(t * q_stride_ + h * 192 + d)]);
      for (int64_t i = 0; i < kRank; ++i)
        sums[static_cast<size_t>(i)] += x * static_cast<double>(kv_b_[static_cast<size_t>((h * 256 + d) * kRank + i)]);
    }
    std::vector<float> query;
    for (const double x : sums) query.push_back(round_to_bf16(static_cast<float>(x)));
    for (int64_t i = 0; i < 64; ++i) query.push_back(q_[static_cast<size_t>(t * q_stride_ + h * 192 + 128 + i)]);
    return query;
  }

  Case c_;
  PagedData data_;
  int64_t q_stride_, kv_stride_, gate_stride_, out_stride_;
  std::vector<float> q_, kv_, norm_, kv_b_, gate_, latents_;
  std::vector<uint16_t> out_, rest_;
};

void check(const Case& c) {
  SCOPED_TRACE(fmt::format("H={} T={} length {} page {} scale {}", c.heads, c.tokens, c.length, c.page_tokens, c.scale));
  Fused fused(c);
  fused.run();
  if (!testing::Test::HasFatalFailure()) fused.check();
}

bool usable() { return mla_fused_config(12, 1, 1, device_info()).usable; }

#define NEEDS_FUSED() \
  K3_NEEDS_GPU();     \
  if (!usable()) GTEST_SKIP() << "the fused kernel is for Hopper GPUs"

TEST(MlaFusedGpu, SanitizeTails) {
  NEEDS_FUSED();
  check({.heads = 2, .length = 1});
  check({.heads = 3, .tokens = 3, .length = 66});
  check({.heads = 32, .length = 130});
}

TEST(MlaFusedGpu, HeadsAndLengths) {
  NEEDS_FUSED();
  for (const int64_t heads : {1, 4, 12, 16, 17, 24, 32}) check({.heads = heads, .length = 300});
  for (const int length : {1, 2, 63, 64, 65, 127, 128, 129, 1000, 2048, 2049, 4096, 4097}) {
    check({.heads = 12, .length = length});
    check({.heads = 32, .length = length});
  }
}

TEST(MlaFusedGpu, MoreTilesThanTheRingHolds) {
  NEEDS_FUSED();
  for (const int length : {8192, 17000, 20000, 25400}) check({.heads = 12, .length = length});
  check({.heads = 32, .length = 20000});
  check({.heads = 32, .length = 33850});
}

TEST(MlaFusedGpu, SeveralTokens) {
  NEEDS_FUSED();
  for (int64_t tokens = 2; tokens <= 8; ++tokens) {
    for (const int length : {8, 65, 66, 130, 1000}) check({.heads = 4, .tokens = tokens, .length = length});
  }
  check({.heads = 12, .tokens = 2, .length = 4097});
  check({.heads = 16, .tokens = 2, .length = 129});
  check({.heads = 4, .tokens = 8, .length = 25345});  // rows of the step in two blocks' tiles
}

TEST(MlaFusedGpu, PagesGatesAndNorms) {
  NEEDS_FUSED();
  for (const int64_t page : {16, 32, 48, 128, 512}) check({.length = 1000, .page_tokens = page, .row_gap = 64});
  check({.length = 200, .gated = false});
  check({.heads = 32, .length = 200, .norm_f32 = true});
  check({.heads = 32, .length = 3000, .scale = 8});
}

}  // namespace
}  // namespace k3::ops::cuda
