// rms_norm, situ_glu, router and the latent MoE against vectors of an independent engine (tests/data/oracle-ops).
// Tolerance of the vectors: 1e-5 absolute, 1e-4 relative (MANIFEST.json); for the whole MoE layer the absolute part is 1e-6
// of the largest output, because a small output there is a cancelling sum of terms of that size.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/router/router.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

using Json = nlohmann::json;
using Floats = std::vector<float>;

Json load(const std::string& name) {
  std::ifstream file(K3_SOURCE_DIR "/tests/data/oracle-ops/" + name + ".json");
  EXPECT_TRUE(file.good()) << name;
  return Json::parse(file);
}

Floats floats(const Json& j, const std::string& name) { return j.at(name).at("data").get<Floats>(); }

void expect_near(const Floats& got, const Floats& want, const std::string& where, float absolute = 1e-5F) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], absolute + 1e-4F * std::abs(want[i])) << where << " at " << i;
  }
}

Tensor rows_of(Floats& v, int64_t width) { return matrix(v.data(), static_cast<int64_t>(v.size()) / width, width); }

TEST(DenseOracle, RmsNorm) {
  const Json j = load("rmsnorm");
  Floats x = floats(j, "in"), w = floats(j, "weight"), out(x.size());
  const auto width = static_cast<int64_t>(w.size());
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    rms_norm(run.ctx, rows_of(x, width), Tensor(w.data(), DType::f32, {width}), j.at("eps").get<float>(),
             rows_of(out, width));
    expect_near(out, floats(j, "out"), std::string(isa_name(isa)));
  }
}

TEST(DenseOracle, SituGlu) {
  const Json j = load("situ_glu");
  Floats in = floats(j, "in");  // rows of gate, then up
  const auto tokens = j.at("in").at("shape").at(0).get<int64_t>();
  const int64_t width = static_cast<int64_t>(in.size()) / tokens / 2;
  const Glu kind{GluKind::situ, j.at("beta").get<float>(), j.at("linear_beta").get<float>()};
  const Tensor both = matrix(in.data(), tokens, 2 * width);
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    Floats out(static_cast<size_t>(tokens * width));
    glu(run.ctx, both.columns(0, width), both.columns(width, 2 * width), kind, matrix(out.data(), tokens, width));
    expect_near(out, floats(j, "out"), std::string(isa_name(isa)));
  }
}

Weight weight_of(const Floats& v, int64_t cols) {
  return {v.data(), nullptr, Scheme::f32, static_cast<int64_t>(v.size()) / cols, cols};
}

TEST(DenseOracle, Router) {
  const Json j = load("router");
  Floats x = floats(j, "in"), gate = floats(j, "gate_weight"), bias = floats(j, "bias");
  const auto experts = j.at("n_experts").get<int64_t>(), topk = j.at("top_k").get<int64_t>();
  const int64_t width = static_cast<int64_t>(gate.size()) / experts, tokens = static_cast<int64_t>(x.size()) / width;
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    Floats logits(static_cast<size_t>(tokens * experts)), weights(static_cast<size_t>(tokens * topk));
    std::vector<int32_t> ids(weights.size());
    linear(run.ctx, rows_of(x, width), weight_of(gate, width), rows_of(logits, experts), {.full_precision = true});
    router(run.ctx, rows_of(logits, experts), Tensor(bias.data(), DType::f32, {experts}), {topk, true, 1.0F},
           Tensor(ids.data(), DType::i32, {tokens, topk}), rows_of(weights, topk));
    expect_near(Floats(ids.begin(), ids.end()), floats(j, "topk_idx"), std::string(isa_name(isa)) + " ids");
    expect_near(weights, floats(j, "topk_weight"), std::string(isa_name(isa)) + " weights");
  }
}

// The whole of model.md 3.6 composed from the ops.
TEST(DenseOracle, LatentMoe) {
  const Json j = load("moe");
  const auto hidden = j.at("hidden").get<int64_t>(), latent = j.at("latent").get<int64_t>();
  const auto experts = j.at("n_experts").get<int64_t>(), topk = j.at("top_k").get<int64_t>();
  const Glu kind{GluKind::situ, j.at("situ_b1").get<float>(), j.at("situ_b2").get<float>()};
  Floats x = floats(j, "in"), bias = floats(j, "e_score_correction_bias"), norm = floats(j, "norm_weight");
  const Floats gate = floats(j, "gate_weight"), down = floats(j, "down_weight"), up = floats(j, "up_weight");
  const Floats s1 = floats(j, "shared_w1_weight"), s2 = floats(j, "shared_w2_weight"), s3 = floats(j, "shared_w3_weight");
  std::vector<Floats> store;
  for (int64_t e = 0; e < experts; ++e) {
    for (const char* w : {"w1", "w2", "w3"}) store.push_back(floats(j, fmt::format("experts_{}_{}_weight", e, w)));
  }
  const auto inner = static_cast<int64_t>(store[0].size()) / latent;
  std::vector<ExpertWeights> weights;
  for (size_t e = 0; e < store.size(); e += 3) {
    weights.push_back({weight_of(store[e], latent), weight_of(store[e + 1], inner), weight_of(store[e + 2], latent)});
  }
  const int64_t tokens = static_cast<int64_t>(x.size()) / hidden;
  for (const Isa isa : test_isas()) {
    TestRun run(isa, 2);
    const auto space = [&](int64_t width) { return Floats(static_cast<size_t>(tokens * width)); };
    Floats logits = space(experts), p = space(topk), z = space(latent), u = space(latent), y = space(hidden);
    std::vector<int32_t> ids(p.size());
    const Tensor in = rows_of(x, hidden), chosen(ids.data(), DType::i32, {tokens, topk});
    linear(run.ctx, in, weight_of(gate, hidden), rows_of(logits, experts), {.full_precision = true});
    router(run.ctx, rows_of(logits, experts), Tensor(bias.data(), DType::f32, {experts}),
           {topk, true, j.at("routed_scale").get<float>()}, chosen, rows_of(p, topk));
    linear(run.ctx, in, weight_of(down, hidden), rows_of(z, latent));
    moe(run.ctx, rows_of(z, latent), chosen, rows_of(p, topk), weights, kind, rows_of(u, latent));
    rms_norm(run.ctx, rows_of(u, latent), Tensor(norm.data(), DType::f32, {latent}), j.at("rms_eps").get<float>(),
             rows_of(u, latent));
    linear(run.ctx, rows_of(u, latent), weight_of(up, latent), rows_of(y, hidden));
    const int64_t wide = static_cast<int64_t>(s1.size()) / hidden;
    Floats a = space(wide), b = space(wide), shared = space(hidden);
    linear(run.ctx, in, weight_of(s1, hidden), rows_of(a, wide));
    linear(run.ctx, in, weight_of(s3, hidden), rows_of(b, wide));
    glu(run.ctx, rows_of(a, wide), rows_of(b, wide), kind, rows_of(a, wide));
    linear(run.ctx, rows_of(a, wide), weight_of(s2, wide), rows_of(shared, hidden));
    for (size_t i = 0; i < y.size(); ++i) y[i] += shared[i];
    const Floats want = floats(j, "out");
    float largest = 0;
    for (const float v : want) largest = std::max(largest, std::abs(v));
    expect_near(y, want, std::string(isa_name(isa)), 1e-6F * largest);
  }
}

}  // namespace
}  // namespace k3::ops
