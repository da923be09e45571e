// The inter-block part of many sites, alone and merged with a prefix, against attn_res_ref and its formulas in double.
#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/attn_res/cuda/attn_res_cuda.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops::cuda {
namespace {

struct Case {
  int64_t tokens, hidden;
  int blocks, sites;
  int64_t pad = 0;
  float query_scale = 1;
};

void run(const Case& c) {
  SCOPED_TRACE(fmt::format("T={} hidden={} blocks={} sites={} pad={}", c.tokens, c.hidden, c.blocks, c.sites, c.pad));
  const int64_t T = c.tokens, H = c.hidden, stride = H + c.pad;
  std::vector<float> bank = random_bf16(c.blocks * T * stride, 1), prefix = random_bf16(T * H, 2), norm = random_bf16(H, 3);
  std::vector<float> query = random_normal(c.sites * H, 4, c.query_scale / std::sqrt(static_cast<float>(H)));
  const DeviceArray<uint16_t> d_bank(to_bf16(bank)), d_prefix(to_bf16(prefix)), y1(c.sites * T * stride), out(T * H);
  const DeviceArray<float> d_query(query), d_norm(norm), m1(c.sites * T), d1(c.sites * T);
  const DeviceArray<std::byte> workspace(attn_res_inter_workspace_bytes(T));
  const CudaStatus status = attn_res_inter_cuda({.tokens = T,
                                                 .hidden = H,
                                                 .blocks = c.blocks,
                                                 .sites = c.sites,
                                                 .bank = d_bank.data(),
                                                 .bank_block_stride = T * stride,
                                                 .bank_stride = stride,
                                                 .query = d_query.data(),
                                                 .y1 = y1.data(),
                                                 .y1_site_stride = T * stride,
                                                 .y1_stride = stride,
                                                 .m1 = m1.data(),
                                                 .d1 = d1.data(),
                                                 .workspace = workspace.data()},
                                                nullptr);
  ASSERT_TRUE(status.ok()) << to_status(status, "inter").error().message;
  gpu_sync();
  const std::vector<float> got = from_bf16(y1.get()), got_m = m1.get(), got_d = d1.get();
  std::vector<float> want_y, have_y;
  double worst_m = 0, worst_d = 0;
  for (int64_t s = 0; s < c.sites; ++s) {
    for (int64_t t = 0; t < T; ++t) {
      std::vector<double> scores, y(static_cast<size_t>(H));
      for (int64_t j = 0; j < c.blocks; ++j) {
        const float* row = &bank[static_cast<size_t>((j * T + t) * stride)];
        double dot = 0, squares = 0;
        for (int64_t i = 0; i < H; ++i) {
          dot += static_cast<double>(row[i]) * static_cast<double>(query[static_cast<size_t>(s * H + i)]);
          squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
        }
        scores.push_back(dot / std::sqrt(squares / static_cast<double>(H) + 1e-5));
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double mass = 0;
      for (int64_t j = 0; j < c.blocks; ++j) {
        const double e = std::exp(scores[static_cast<size_t>(j)] - top);
        mass += e;
        for (int64_t i = 0; i < H; ++i)
          y[static_cast<size_t>(i)] += e * static_cast<double>(bank[static_cast<size_t>((j * T + t) * stride + i)]);
      }
      const auto at = static_cast<size_t>(s * T + t);
      worst_m = std::max(worst_m, std::abs(static_cast<double>(got_m[at]) - top));
      worst_d = std::max(worst_d, std::abs(static_cast<double>(got_d[at]) / mass - 1));
      for (int64_t i = 0; i < H; ++i) {
        want_y.push_back(static_cast<float>(y[static_cast<size_t>(i)]));
        have_y.push_back(got[static_cast<size_t>((s * T + t) * stride + i)]);
      }
    }
  }
  const double ratio = norm_ratio(have_y, want_y);
  EXPECT_LE(ratio, 3e-3);
  EXPECT_LE(worst_m, 1e-4 * std::max(1.0F, c.query_scale));
  EXPECT_LE(worst_d, 2e-4 * static_cast<double>(std::max(1.0F, c.query_scale)));
  for (size_t i = 0; i < got.size(); ++i) {
    if (static_cast<int64_t>(i) % stride < H) continue;
    ASSERT_TRUE(std::isnan(got[i])) << "a gap was written";
  }
  EXPECT_TRUE(workspace.guards_intact() && y1.guards_intact() && m1.guards_intact() && d1.guards_intact());

  // Merged with a prefix: the whole site.
  double worst = 0;
  for (int64_t s = 0; s < c.sites; s += std::max(1, c.sites - 1)) {
    std::vector<float> want(static_cast<size_t>(T * H)), rows;
    for (int64_t r = 0; r < c.blocks * T; ++r)
      rows.insert(rows.end(), bank.begin() + r * stride, bank.begin() + r * stride + H);
    const Tensor want_t = matrix(want.data(), T, H);
    attn_res_ref(Tensor(rows.data(), DType::f32, {c.blocks, T, H}), matrix(prefix.data(), T, H),
                 Tensor(query.data() + s * H, DType::f32, {H}), 1e-5F, want_t);
    rms_norm_ref(want_t, Tensor(norm.data(), DType::f32, {H}), 1e-5F, want_t);
    ASSERT_TRUE(attn_res_cuda({.tokens = T,
                               .hidden = H,
                               .blocks = 1,
                               .bank = y1.data() + s * T * stride,
                               .bank_stride = stride,
                               .prefix = d_prefix.data(),
                               .prefix_stride = H,
                               .query = d_query.data() + s * H,
                               .norm = d_norm.data(),
                               .inter_max = m1.data() + s * T,
                               .inter_sum = d1.data() + s * T,
                               .out = out.data(),
                               .out_stride = H},
                              nullptr)
                    .ok());
    gpu_sync();
    worst = std::max(worst, norm_ratio(from_bf16(out.get()), want));
  }
  EXPECT_LE(worst, 3e-3);
  fmt::print("inter T={} hidden={} blocks={} sites={}: y1 {:.2e}, m1 {:.1e}, d1 {:.1e}, merged {:.2e}\n", T, H, c.blocks,
             c.sites, ratio, worst_m, worst_d, worst);
}

TEST(AttnResInterGpu, SanitizeSmallestShapes) {
  K3_NEEDS_GPU();
  run({1, 128, 1, 1});
  run({3, 256, 3, 24, 8});
}

TEST(AttnResInterGpu, ShapesOfK3) {
  K3_NEEDS_GPU();
  run({2, 7168, 8, 24});
  run({37, 7168, 5, 4, 16});
  run({3, 7168, 8, 24, 0, 8.0F});
  run({9, 2304, 7, 13});
  run({101, 384, 8, 24});
}

}  // namespace
}  // namespace k3::ops::cuda
