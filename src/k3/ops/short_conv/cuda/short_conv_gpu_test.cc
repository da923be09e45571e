#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"
#include "k3/ops/short_conv/short_conv.h"

namespace k3::ops::cuda {
namespace {

struct Case {
  int64_t channels;
  int parts;
  std::vector<int64_t> lengths;
  bool conv_bf16 = true;
  int64_t negative = -1;  // this sequence has no slot
  int64_t fresh = -1;     // this one begins here
};

double worst = 0;

void compare(const Case& c, uint64_t seed) {
  const auto count = static_cast<int64_t>(c.lengths.size());
  std::vector<int32_t> offsets = {0}, slots, fresh;
  for (const int64_t n : c.lengths) offsets.push_back(offsets.back() + static_cast<int32_t>(n));
  for (int64_t s = 0; s < count; ++s) slots.push_back(s == c.negative ? -1 : static_cast<int32_t>(2 * (count - s)));
  for (int64_t s = 0; s < count; ++s) fresh.push_back(s == c.fresh ? 1 : 0);
  const int64_t tokens = offsets.back(), pad = 5, wide = c.parts * c.channels + 8, slot_count = 4 * count + 4;
  const int64_t stride = 3 * c.parts * c.channels + 8, y_stride = c.channels + 8;
  const std::vector<float> x = random_bf16((tokens + pad) * wide, seed);
  std::vector<float> pool =
      c.conv_bf16 ? random_bf16(slot_count * stride, seed + 1) : random_normal(slot_count * stride, seed + 1);
  // Exports: every sequence at two positions, to odd slots.
  std::vector<int32_t> export_sequences, export_tokens, export_slots;
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t n = c.lengths[static_cast<size_t>(s)];
      export_sequences.push_back(s == c.negative || n == 0 ? -1 : static_cast<int32_t>(s));
      export_tokens.push_back(static_cast<int32_t>(i == 0 ? std::min<int64_t>(1 + s % 4, n) : n));
      export_slots.push_back(static_cast<int32_t>(2 * (2 * s + i) + 1));
    }
  }
  const auto encode = [&](const std::vector<float>& v) {
    std::vector<uint8_t> out(v.size() * (c.conv_bf16 ? 2 : 4));
    const std::vector<uint16_t> bits = to_bf16(v);
    std::memcpy(out.data(), c.conv_bf16 ? static_cast<const void*>(bits.data()) : v.data(), out.size());
    return out;
  };

  const DeviceArray<uint16_t> dx(to_bf16(x));
  const DeviceArray<uint8_t> conv(encode(pool));
  const DeviceArray<int32_t> doffsets(offsets), dslots(slots), dfresh(fresh), es(export_sequences), et(export_tokens),
      eslots(export_slots);
  std::vector<DeviceArray<float>> taps;
  std::vector<DeviceArray<uint16_t>> y;
  std::vector<std::vector<float>> host_taps;
  ShortConvArgs a{};
  for (int part = 0; part < c.parts; ++part) {
    host_taps.push_back(random_normal(c.channels * 4, seed + 2 + static_cast<uint64_t>(part), 0.5F));
    taps.emplace_back(host_taps.back());
    y.emplace_back((tokens + pad) * y_stride);
    a.x[part] = dx.data() + part * c.channels, a.x_stride[part] = wide;
    a.y[part] = y.back().data(), a.y_stride[part] = y_stride;
    a.taps[part] = taps.back().data();
  }
  a.parts = c.parts, a.channels = static_cast<int32_t>(c.channels), a.tokens = static_cast<int32_t>(tokens + pad);
  a.sequences = static_cast<int32_t>(count);
  a.offsets = doffsets.data(), a.slots = dslots.data(), a.fresh = c.fresh < 0 ? nullptr : dfresh.data();
  a.conv = conv.data(), a.conv_stride = stride, a.conv_bf16 = c.conv_bf16 ? 1 : 0;
  a.exports = static_cast<int32_t>(export_slots.size());
  a.export_sequences = es.data(), a.export_tokens = et.data(), a.export_slots = eslots.data();
  ASSERT_TRUE(short_conv_cuda(a, nullptr).ok());
  gpu_sync();

  const std::string what = fmt::format("{} x {} channels, {} sequences, {} tokens", c.parts, c.channels, count, tokens);
  for (int part = 0; part < c.parts; ++part) {
    const auto got = from_bf16(y[static_cast<size_t>(part)].get());
    const auto run = [&](int64_t s, int64_t n, std::vector<float>& tail) {  // the first n tokens of sequence s
      std::vector<float> out(static_cast<size_t>(n * c.channels));
      if (n == 0) return out;
      const std::vector<int64_t> range = {0, n};
      const ConvTail t{tail.data(), DType::f32};
      short_conv_ref(matrix(const_cast<float*>(x.data()) + offsets[static_cast<size_t>(s)] * wide + part * c.channels, n,
                            c.channels, wide),
                     matrix(host_taps[static_cast<size_t>(part)].data(), c.channels, 4), range, {&t, 1},
                     matrix(out.data(), n, c.channels));
      return out;
    };
    for (int64_t s = 0; s < count; ++s) {
      const int64_t n = c.lengths[static_cast<size_t>(s)], slot = slots[static_cast<size_t>(s)];
      std::vector<float> before(static_cast<size_t>(3 * c.channels), 0.0F);
      if (slot >= 0 && s != c.fresh) {
        std::copy_n(pool.begin() + slot * stride + part * 3 * c.channels, 3 * c.channels, before.begin());
      }
      std::vector<float> tail = before, mine;
      std::vector<float> expected = run(s, n, tail);
      if (slot < 0) std::fill(expected.begin(), expected.end(), 0.0F);
      for (int64_t t = 0; t < n; ++t) {
        const auto row = got.begin() + (offsets[static_cast<size_t>(s)] + t) * y_stride;
        mine.insert(mine.end(), row, row + c.channels);
      }
      const double ratio = norm_ratio(mine, expected);
      EXPECT_LE(ratio, slot < 0 ? 0 : 3e-3) << what << " sequence " << s;
      worst = std::max(worst, ratio);
      if (slot < 0) continue;
      if (n > 0) std::copy(tail.begin(), tail.end(), pool.begin() + slot * stride + part * 3 * c.channels);
      for (size_t e = 0; e < export_slots.size(); ++e) {
        if (export_sequences[e] != s) continue;
        std::vector<float> at = before;
        run(s, export_tokens[e], at);
        std::copy(at.begin(), at.end(), pool.begin() + export_slots[e] * stride + part * 3 * c.channels);
      }
    }
    for (int64_t t = tokens; t < tokens + pad; ++t) EXPECT_TRUE(std::isnan(got[static_cast<size_t>(t * y_stride)])) << what;
    EXPECT_TRUE(y[static_cast<size_t>(part)].guards_intact()) << what;
  }
  EXPECT_EQ(conv.get(), encode(pool)) << what;  // tails, exports and everything else, bit by bit
  EXPECT_TRUE(conv.guards_intact()) << what;
}

TEST(ShortConvGpu, SanitizeTails) {
  K3_NEEDS_GPU();
  compare({8, 1, {1}}, 1);
  compare({40, 2, {2, 0, 3}, false}, 2);
  compare({24, 3, {0, 1, 7}, true, 1}, 3);
}

TEST(ShortConvGpu, PackedSequences) {
  K3_NEEDS_GPU();
  compare({128, 3, {0, 1, 15, 16, 17, 63, 64, 65, 1000, 0, 2, 3, 4, 0}}, 4);
  compare({1536, 3, {33, 1, 1, 1, 300}, true, 2, 4}, 5);
  compare({520, 1, {5, 0, 0, 700}, false, -1, 0}, 6);
  compare({12288, 1, {3, 40}}, 7);
  compare({4096, 1, {2000, 100}}, 8);  // the long runs
  fmt::print("  short conv: worst {:.2e}\n", worst);
}

}  // namespace
}  // namespace k3::ops::cuda
