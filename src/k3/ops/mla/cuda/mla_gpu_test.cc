// Rows in and out of the cache, the products around absorbed decode, and prefill, against double on the same BF16 inputs.
#include <gtest/gtest.h>

#include "k3/ops/mla/cuda/mla_gpu_cases.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

std::vector<int32_t> offsets_of(const std::vector<int>& counts) {
  std::vector<int32_t> out{0};
  for (const int n : counts) out.push_back(out.back() + n);
  return out;
}

bool show() { return std::getenv("K3_SHOW") != nullptr; }

// The cache holds history; the rows behind it are appended and read back by gather.
void check_append(const std::vector<int>& history, const std::vector<int>& counts, int64_t page_tokens) {
  PagedCase c{.page_tokens = page_tokens, .row_gap = 8, .page_gap = 16};
  for (size_t s = 0; s < history.size(); ++s) c.lengths.push_back(history[s] + counts[s]);
  const PagedData data(c, 7);
  const std::vector<int32_t> offsets = offsets_of(counts), all = offsets_of(c.lengths);
  const int64_t tokens = offsets.back(), stride = kRow + 24, padded = tokens + 3;
  const std::vector<float> kv = random_bf16(padded * stride, 5), weight = random_bf16(kRank, 6);
  const DeviceArray<uint16_t> kv_d(to_bf16(kv)), weight_d(to_bf16(weight)), rows(all.back() * kRow + 1);
  const DeviceArray<int32_t> offsets_d(offsets), all_d(all), history_d(std::vector<int32_t>(history.begin(), history.end()));
  ASSERT_TRUE(latent_append_cuda({.kv = kv_d.data(),
                                  .kv_stride = stride,
                                  .norm_weight = weight_d.data(),
                                  .eps = 1e-6F,
                                  .tokens = padded,
                                  .batch = data.requests(),
                                  .offsets = offsets_d.data(),
                                  .history = history_d.data(),
                                  .pages = data.pages()},
                                 nullptr)
                  .ok());
  ASSERT_TRUE(latent_gather_cuda({.out = rows.data(),
                                  .out_stride = kRow,
                                  .tokens = all.back(),
                                  .batch = data.requests(),
                                  .offsets = all_d.data(),
                                  .pages = data.pages()},
                                 nullptr)
                  .ok());
  gpu_sync();
  const std::vector<float> got = from_bf16(rows.get());
  for (size_t s = 0; s < history.size(); ++s) {
    for (int64_t t = 0; t < c.lengths[s]; ++t) {
      const float* mine = got.data() + (all[s] + t) * kRow;
      if (t < history[s]) {  // untouched
        for (int64_t i = 0; i < kRow; ++i) ASSERT_EQ(mine[i], data.rows(s)[static_cast<size_t>(t * kRow + i)]);
        continue;
      }
      const float* raw = kv.data() + (offsets[s] + t - history[s]) * stride;
      double squares = 0;
      for (int64_t i = 0; i < kRank; ++i) squares += static_cast<double>(raw[i]) * static_cast<double>(raw[i]);
      const double factor = 1 / std::sqrt(squares / kRank + 1e-6);
      for (int64_t i = 0; i < kRow; ++i) {
        if (i >= kRank) {
          ASSERT_EQ(mine[i], raw[i]);
          continue;
        }
        const double expected = static_cast<double>(raw[i]) * factor * static_cast<double>(weight[static_cast<size_t>(i)]);
        ASSERT_NEAR(static_cast<double>(mine[i]), expected, std::abs(expected) * 0x1.02p-8)
            << i;  // half a unit of BF16 and a little
      }
    }
  }
  EXPECT_TRUE(data.guards_intact() && rows.guards_intact());
}

TEST(MlaRowsGpu, SanitizeAppendAndGather) {
  K3_NEEDS_GPU();
  check_append({0, 63, 5}, {1, 2, 0}, 64);
  check_append({17, 0, 200}, {40, 16, 1}, 16);
}

void check_products(int64_t heads, int64_t tokens) {
  SCOPED_TRACE(fmt::format("H={} T={}", heads, tokens));
  const int64_t q_stride = heads * 192 + 16, gate_stride = heads * 128 + 8, out_stride = heads * 128 + 24;
  const std::vector<float> q = random_bf16(tokens * q_stride, 1), kv_b = random_bf16(heads * 256 * kRank, 2, 0.044F);
  const std::vector<float> ol = random_bf16(tokens * heads * kRank, 3), gate = random_bf16(tokens * gate_stride, 4);
  const DeviceArray<uint16_t> q_d(to_bf16(q)), kv_b_d(to_bf16(kv_b)), ol_d(to_bf16(ol)), gate_d(to_bf16(gate));
  const DeviceArray<uint16_t> query(tokens * heads * kRow), out(tokens * out_stride), rest(tokens * out_stride);
  ASSERT_TRUE(mla_absorb_cuda({q_d.data(), q_stride, kv_b_d.data(), query.data(), tokens, heads}, nullptr).ok());
  ASSERT_TRUE(mla_values_cuda(
                  {ol_d.data(), kv_b_d.data(), gate_d.data(), gate_stride, out.data(), out_stride, tokens, heads, rest.data()}, nullptr)
                  .ok());
  gpu_sync();
  const std::vector<float> got_query = from_bf16(query.get()), got_out = from_bf16(out.get()), got_rest = from_bf16(rest.get());
  std::vector<float> ref_query(got_query.size()), ref_out, mine_out, both;
  ref_out.resize(static_cast<size_t>(tokens * heads * 128));
  mine_out.resize(ref_out.size());
  both.resize(ref_out.size());
  parallel_rows(tokens * heads, [&](int64_t row) {
    const int64_t t = row / heads, h = row % heads;
    std::vector<double> sums(kRank);
    for (int64_t d = 0; d < 128; ++d) {
      const auto x = static_cast<double>(q[static_cast<size_t>(t * q_stride + h * 192 + d)]);
      for (int64_t i = 0; i < kRank; ++i)
        sums[static_cast<size_t>(i)] += x * static_cast<double>(kv_b[static_cast<size_t>((h * 256 + d) * kRank + i)]);
    }
    for (int64_t i = 0; i < kRank; ++i)
      ref_query[static_cast<size_t>(row * kRow + i)] = static_cast<float>(sums[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < 64; ++i)
      ref_query[static_cast<size_t>(row * kRow + kRank + i)] = q[static_cast<size_t>(t * q_stride + h * 192 + 128 + i)];
    for (int64_t d = 0; d < 128; ++d) {
      double sum = 0;
      for (int64_t i = 0; i < kRank; ++i) {
        sum += static_cast<double>(ol[static_cast<size_t>(row * kRank + i)]) *
               static_cast<double>(kv_b[static_cast<size_t>((h * 256 + 128 + d) * kRank + i)]);
      }
      sum /= 1 + std::exp(-static_cast<double>(gate[static_cast<size_t>(t * gate_stride + h * 128 + d)]));
      ref_out[static_cast<size_t>(row * 128 + d)] = static_cast<float>(sum);
      const auto at = static_cast<size_t>(t * out_stride + h * 128 + d);
      mine_out[static_cast<size_t>(row * 128 + d)] = got_out[at];
      both[static_cast<size_t>(row * 128 + d)] = got_out[at] + got_rest[at];
    }
  });
  const double first = norm_ratio(got_query, ref_query), second = norm_ratio(mine_out, ref_out);
  EXPECT_LE(first, 3e-3);
  EXPECT_LE(second, 3e-3);
  EXPECT_LE(norm_ratio(both, ref_out), 5e-5);
  for (int64_t t = 0; t < tokens; ++t) {  // gaps between rows stay as they were
    ASSERT_TRUE(std::isnan(got_out[static_cast<size_t>(t * out_stride + heads * 128)]));
    ASSERT_TRUE(std::isnan(got_rest[static_cast<size_t>(t * out_stride + heads * 128)]));
  }
  if (show()) fmt::print("products H={} T={}: {:.2e} {:.2e}\n", heads, tokens, first, second);
  EXPECT_TRUE(query.guards_intact() && out.guards_intact() && rest.guards_intact());
}

TEST(MlaProductsGpu, Sanitize) {
  K3_NEEDS_GPU();
  check_products(2, 3);
}

TEST(MlaProductsGpu, HeadsAndRows) {
  K3_NEEDS_GPU();
  for (const int64_t heads : {1, 12, 96}) {
    for (const int64_t tokens : {1, 16, 17}) check_products(heads, tokens);
  }
  check_products(12, 256);
  check_products(48, 70);
}

// In parts of so many keys; 0: at once. What a part does not bring must not be read: it is NaN then.
void check_prefill(int64_t heads, const std::vector<int>& counts, const std::vector<int>& history, bool any = false,
                   bool gated = true, int64_t part = 0) {
  SCOPED_TRACE(fmt::format("H={} n={} history {} parts of {}", heads, counts[0], history[0], part));
  std::vector<int> lengths;
  for (size_t s = 0; s < counts.size(); ++s) lengths.push_back(counts[s] + history[s]);
  const std::vector<int32_t> q_offsets = offsets_of(counts), k_offsets = offsets_of(lengths);
  const int64_t tokens = q_offsets.back(), keys = k_offsets.back(), slack = 5;
  const int64_t q_stride = heads * 192, e_stride = heads * 256 + 8, s_stride = kRow, out_stride = heads * 128 + 8;
  const std::vector<float> q = random_bf16((tokens + slack) * q_stride, 1, 2), expanded = random_bf16(keys * e_stride, 2),
                           latent = random_bf16(keys * s_stride, 3), gate = random_bf16(tokens * heads * 128, 4);
  std::vector<uint16_t> expanded_bits = to_bf16(expanded), latent_bits = to_bf16(latent);
  expanded_bits.resize(static_cast<size_t>((keys + slack) * e_stride), 0xFFFF);  // NaN behind the last key
  latent_bits.resize(static_cast<size_t>((keys + slack) * s_stride), 0xFFFF);
  const DeviceArray<uint16_t> q_d(to_bf16(q)), expanded_d(expanded_bits), latent_d(latent_bits), gate_d(to_bf16(gate)),
      out(tokens * out_stride);
  const DeviceArray<float> lse(tokens * heads), so_far(tokens * heads * 128);
  const DeviceArray<int32_t> q_offsets_d(q_offsets), k_offsets_d(k_offsets);
  MlaPrefill args{.q = q_d.data(),
                        .q_stride = q_stride,
                        .expanded = expanded_d.data(),
                        .expanded_stride = e_stride,
                        .shared_keys = latent_d.data() + kRank,
                        .shared_stride = s_stride,
                        .query_offsets = q_offsets_d.data(),
                        .key_offsets = k_offsets_d.data(),
                        .batch = static_cast<int64_t>(counts.size()),
                        .heads = heads,
                        .tokens = tokens + slack,
                        .keys = keys + slack,
                        .gate = gated ? gate_d.data() : nullptr,
                        .gate_stride = heads * 128,
                        .out = out.data(),
                        .out_stride = out_stride,
                        .lse = lse.data()};
  const auto run = [&] { ASSERT_EQ(any ? mla_prefill_any_launch(args, nullptr) : mla_prefill_cuda(args, nullptr).code, 0); };
  if (part == 0) {
    run();
  } else {
    args.so_far = so_far.data();
    for (args.first_key = 0; args.first_key < keys; args.first_key += part) {
      args.keys = std::min(part, keys - args.first_key);
      const auto cut = [&](const std::vector<uint16_t>& bits, int64_t stride) {
        std::vector<uint16_t> rows(bits.begin() + args.first_key * stride, bits.begin() + (args.first_key + args.keys) * stride);
        rows.resize(rows.size() + static_cast<size_t>(slack * stride), 0xFFFF);
        return rows;
      };
      const DeviceArray<uint16_t> expanded_part(cut(expanded_bits, e_stride)), latent_part(cut(latent_bits, s_stride));
      args.expanded = expanded_part.data();
      args.shared_keys = latent_part.data() + kRank;
      run();
      gpu_sync();
    }
  }
  gpu_sync();
  const std::vector<float> got = from_bf16(out.get()), got_lse = lse.get();
  std::vector<float> mine(static_cast<size_t>(tokens * heads * 128)), ref(mine.size());
  std::vector<double> lse_error(static_cast<size_t>(tokens * heads));
  for (size_t s = 0; s < counts.size(); ++s) {
    parallel_rows(counts[s] * heads, [&](int64_t i) {
      const int64_t t = q_offsets[s] + i / heads, h = i % heads, row = t * heads + h;
      const auto key = [&](int64_t j, int64_t k) {
        const int64_t at = k_offsets[s] + j;
        return k < 128 ? expanded[static_cast<size_t>(at * e_stride + h * 256 + k)]
                       : latent[static_cast<size_t>(at * s_stride + kRank + k - 128)];
      };
      const auto value = [&](int64_t j, int64_t k) {
        return expanded[static_cast<size_t>((k_offsets[s] + j) * e_stride + h * 256 + 128 + k)];
      };
      const double reference = attend_ref(q.data() + t * q_stride + h * 192, 192, history[s] + i / heads + 1, 128, key,
                                          value, ref.data() + row * 128);
      lse_error[static_cast<size_t>(row)] = std::abs(static_cast<double>(got_lse[static_cast<size_t>(row)]) - reference);
      for (int64_t d = 0; d < 128; ++d) {
        const double g =
            gated ? 1 / (1 + std::exp(-static_cast<double>(gate[static_cast<size_t>(t * heads * 128 + h * 128 + d)]))) : 1;
        ref[static_cast<size_t>(row * 128 + d)] *= static_cast<float>(g);
        mine[static_cast<size_t>(row * 128 + d)] = got[static_cast<size_t>(t * out_stride + h * 128 + d)];
      }
    });
  }
  const double ratio = norm_ratio(mine, ref);
  EXPECT_LE(ratio, 3e-3);
  double worst = 0;
  for (const double e : lse_error) worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  EXPECT_LE(worst, 1e-4);
  int shown = 0;
  for (int64_t row = 0; row < tokens * heads && shown < 4; ++row) {
    const double here = norm_ratio(std::span<const float>(mine.data() + row * 128, 128),
                                   std::span<const float>(ref.data() + row * 128, 128));
    if (here <= 1e-2) continue;
    ++shown;
    ADD_FAILURE() << fmt::format("token {} head {}: ratio {:.3e}, {} for {}; lse off by {:.2e}", row / heads, row % heads,
                                 here, mine[static_cast<size_t>(row * 128)], ref[static_cast<size_t>(row * 128)],
                                 lse_error[static_cast<size_t>(row)]);
  }
  if (show()) fmt::print("prefill H={} n={} history {}: {:.2e}, lse {:.1e}\n", heads, counts[0], history[0], ratio, worst);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact() && so_far.guards_intact());
}

TEST(MlaPrefillGpu, SanitizeTails) {
  K3_NEEDS_GPU();
  check_prefill(2, {1, 130}, {0, 3});
  check_prefill(2, {1, 130}, {0, 3}, false, true, 50);
  check_prefill(2, {1, 13}, {0, 3}, true, true, 5);
}

// Parts that end inside a request's history, inside its own tokens (some of which see nothing of the next part), at its last key, and
// that hold several requests.
TEST(MlaPrefillGpu, Parts) {
  K3_NEEDS_GPU();
  for (const int64_t part : {1, 37, 128, 200, 384, 1000, 3000}) {
    check_prefill(2, {200}, {part > 100 ? 1000 : 90}, false, part != 200, part);
    check_prefill(3, {5, 0, 300, 128, 1, 64}, {part > 100 ? 700 : 70, 10, 0, 128, 400, 0}, false, true, part);
  }
  check_prefill(2, {5, 0, 40}, {20, 3, 0}, true, true, 16);
  check_prefill(2, {5, 0, 40}, {20, 3, 0}, true, false, 64);
}

TEST(MlaPrefillGpu, LengthsAndHistories) {
  K3_NEEDS_GPU();
  for (const int n : {1, 63, 64, 65, 127, 128, 129, 500}) check_prefill(2, {n}, {0});
  for (const int before : {1, 100, 128, 300}) check_prefill(3, {200}, {before}, false, before != 100);
  check_prefill(2, {1500}, {600});
}

TEST(MlaPrefillGpu, Packed) {
  K3_NEEDS_GPU();
  check_prefill(4, {5, 0, 300, 128, 1, 64}, {70, 10, 0, 128, 400, 0});
}

TEST(MlaPrefillGpu, PathOfOtherDevices) {
  K3_NEEDS_GPU();
  check_prefill(2, {5, 0, 40}, {20, 3, 0}, true);
}

}  // namespace
}  // namespace k3::ops::cuda
