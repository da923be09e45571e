#include "k3/ops/attn_res/attn_res.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "k3/ops/attn_res/attn_res_cases.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

constexpr double kTolerance = 2e-6;  // attn_res.h
constexpr float kEps = 1e-5F;

double norm_ratio(const float* x, const float* ref, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

class AttnResTest : public testing::Test {
 protected:
  ThreadPool pool{2};
  Ctx ctx(Isa isa) { return {.pool = &pool, .isa = isa}; }
};

TEST_F(AttnResTest, EveryCaseEveryIsa) {
  for (const AttnResCase& c : attn_res_cases()) {
    std::vector<float> blocks = random_normal(c.blocks * c.tokens * c.hidden, 1, c.row_scale);
    std::vector<float> prefix = random_normal(c.tokens * c.hidden, 2, c.row_scale);
    std::vector<float> query = random_normal(c.hidden, 3, c.query_scale);
    const Tensor b(blocks.data(), DType::f32, {c.blocks, c.tokens, c.hidden});
    const Tensor p(prefix.data(), DType::f32, {c.tokens, c.hidden}), q(query.data(), DType::f32, {c.hidden});
    Guarded want(c.tokens * c.hidden);
    attn_res_ref(b, p, q, kEps, Tensor(want.data(), DType::f32, {c.tokens, c.hidden}));
    for (const Isa isa : test_isas()) {
      Guarded out(c.tokens * c.hidden);
      attn_res(ctx(isa), b, p, q, kEps, Tensor(out.data(), DType::f32, {c.tokens, c.hidden}));
      EXPECT_TRUE(out.intact());
      EXPECT_LE(norm_ratio(out.data(), want.data(), out.size()), kTolerance)
          << isa_name(isa) << " blocks " << c.blocks << " tokens " << c.tokens << " hidden " << c.hidden;
      std::vector<float> in_place = prefix;
      const Tensor alias(in_place.data(), DType::f32, {c.tokens, c.hidden});
      attn_res(ctx(isa), b, alias, q, kEps, alias);
      EXPECT_TRUE(std::equal(in_place.begin(), in_place.end(), out.data()));
      if (c.blocks == 0) {
        EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), out.data()));
      }
    }
  }
}

TEST_F(AttnResTest, NormIsThatOfRmsNormBitForBit) {
  for (const AttnResCase& c : attn_res_cases()) {
    std::vector<float> blocks = random_normal(c.blocks * c.tokens * c.hidden, 1, c.row_scale);
    std::vector<float> prefix = random_normal(c.tokens * c.hidden, 2, c.row_scale);
    std::vector<float> query = random_normal(c.hidden, 3, c.query_scale), weight = random_normal(c.hidden, 4);
    const Tensor b(blocks.data(), DType::f32, {c.blocks, c.tokens, c.hidden}), p = matrix(prefix.data(), c.tokens, c.hidden);
    const Tensor q(query.data(), DType::f32, {c.hidden}), w(weight.data(), DType::f32, {c.hidden});
    for (const Isa isa : test_isas()) {
      std::vector<float> want(prefix.size()), in_place = prefix;
      attn_res(ctx(isa), b, p, q, kEps, matrix(want.data(), c.tokens, c.hidden));
      rms_norm(ctx(isa), matrix(want.data(), c.tokens, c.hidden), w, kEps, matrix(want.data(), c.tokens, c.hidden));
      Guarded out(c.tokens * c.hidden);
      attn_res(ctx(isa), b, p, q, kEps, matrix(out.data(), c.tokens, c.hidden), w);
      EXPECT_TRUE(out.intact());
      EXPECT_EQ(0, compare_bytes(out.data(), want.data(), want.size() * sizeof(float))) << isa_name(isa);
      attn_res(ctx(isa), b, matrix(in_place.data(), c.tokens, c.hidden), q, kEps,
               matrix(in_place.data(), c.tokens, c.hidden), w);
      EXPECT_EQ(0, compare_bytes(in_place.data(), want.data(), want.size() * sizeof(float))) << isa_name(isa);
    }
  }
}

// The blocks of a step are often the first rows of a larger bank.
TEST_F(AttnResTest, StridedBank) {
  std::vector<float> bank = random_normal(4 * 10 * 32, 1), prefix = random_normal(6 * 32, 2), query = random_normal(32, 3);
  Tensor b(bank.data(), DType::f32, {4, 10, 32});
  b.dims[1] = 6;
  const Tensor p(prefix.data(), DType::f32, {6, 32}), q(query.data(), DType::f32, {32});
  std::vector<float> want(6 * 32), out(6 * 32);
  attn_res_ref(b, p, q, kEps, Tensor(want.data(), DType::f32, {6, 32}));
  for (const Isa isa : test_isas()) {
    attn_res(ctx(isa), b, p, q, kEps, Tensor(out.data(), DType::f32, {6, 32}));
    EXPECT_LE(norm_ratio(out.data(), want.data(), 6 * 32), kTolerance);
  }
}

TEST_F(AttnResTest, NoBlocksTensorAtAll) {
  std::vector<float> prefix = random_normal(64, 2), query = random_normal(32, 3), out(64);
  attn_res(ctx(Isa::scalar), Tensor(), Tensor(prefix.data(), DType::f32, {2, 32}), Tensor(query.data(), DType::f32, {32}),
           kEps, Tensor(out.data(), DType::f32, {2, 32}));
  EXPECT_EQ(prefix, out);
}

TEST_F(AttnResTest, Vectors) {
  std::ifstream file(K3_SOURCE_DIR "/tests/data/oracle-ops/attnres.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  const auto numbers = [&](const char* name) { return json.at(name).at("data").get<std::vector<float>>(); };
  std::vector<float> prefix = numbers("prefix_sum"), by_token = numbers("block_residual"), query = numbers("proj_weight");
  const std::vector<float> norm = numbers("norm_weight"), want = numbers("out");
  for (size_t i = 0; i < query.size(); ++i) query[i] *= norm[i];
  std::vector<float> blocks(by_token.size());  // the vectors have [tokens, blocks, hidden]
  for (size_t t = 0; t < 4; ++t) {
    for (size_t j = 0; j < 8; ++j) std::copy_n(&by_token[(t * 8 + j) * 128], 128, &blocks[(j * 4 + t) * 128]);
  }
  for (const Isa isa : test_isas()) {
    std::vector<float> out(prefix.size());
    attn_res(ctx(isa), Tensor(blocks.data(), DType::f32, {8, 4, 128}), Tensor(prefix.data(), DType::f32, {4, 128}),
             Tensor(query.data(), DType::f32, {128}), json.at("eps").get<float>(), Tensor(out.data(), DType::f32, {4, 128}));
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], want[i], 1e-5 + 1e-4 * std::abs(static_cast<double>(want[i])));
  }
}

}  // namespace
}  // namespace k3::ops
