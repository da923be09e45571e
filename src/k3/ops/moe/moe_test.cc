// moe: every instruction set, scheme and case against the double reference; independence of neighbours and threads;
// the plan; experts that nobody chose.
#include "k3/ops/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/weight_value.h"
#include "k3/ops/moe/moe_cases.h"
#include "k3/ops/moe/moe_plan.h"

namespace k3::ops {
namespace {

const Glu kSitu{GluKind::situ, 4.0F, 25.0F};
const Glu kSilu{GluKind::silu, 1.0F, {}};

Tensor ids_of(Routing& r, int64_t tokens, int64_t topk) { return Tensor(r.ids.data(), DType::i32, {tokens, topk}); }

// The same numbers as FP32 weights, for fast references.
OwnedExperts unpacked(const OwnedExperts& from) {
  OwnedExperts out;
  for (const OwnedWeight& w : from.storage) {
    OwnedWeight f{.data = std::vector<uint8_t>(static_cast<size_t>(w.rows * w.cols) * 4),
                  .scales = {},
                  .scheme = Scheme::f32,
                  .rows = w.rows,
                  .cols = w.cols};
    for (int64_t i = 0; i < w.rows * w.cols; ++i) {
      const float v = weight_value(w.view(), i / w.cols, i % w.cols);
      std::memcpy(f.data.data() + i * 4, &v, 4);
    }
    out.storage.push_back(std::move(f));
  }
  for (size_t e = 0; e < out.storage.size(); e += 3) {
    out.views.push_back({out.storage[e].view(), out.storage[e + 1].view(), out.storage[e + 2].view()});
  }
  return out;
}

// sum_i |x_i w_i| of every row of an f32 weight.
std::vector<double> magnitudes(const float* x, const Weight& w) {
  std::vector<double> out(static_cast<size_t>(w.rows));
  const auto* data = static_cast<const float*>(w.data);
  for (int64_t o = 0; o < w.rows; ++o) {
    for (int64_t i = 0; i < w.cols; ++i)
      out[static_cast<size_t>(o)] += static_cast<double>(std::abs(x[i] * data[o * w.cols + i]));
  }
  return out;
}

// "That of linear, twice": the error 2e-6 sum |x w| of gate and up goes through the activation (slopes of SiTU and SwiGLU:
// at most 1.1 |up| and |gate activation|, plus the activation's own 1e-6), perhaps over a rounding border of BF16, then
// through w2, which adds its own 2e-6 sum |h w|, and the weighted sum over topk terms.
void add_bound(const float* z, const ExpertWeights& e, const Glu& activation, bool round, double weight, double* bound) {
  const int64_t width = e.w1.cols, hidden = e.w1.rows;
  std::vector<float> x(z, z + width), g(static_cast<size_t>(hidden)), u(g), h(g), h_rounded(g);
  for (float& v : x) v = round ? round_to_bf16(v) : v;
  const auto view = [&](std::vector<float>& v) { return matrix(v.data(), 1, static_cast<int64_t>(v.size())); };
  linear_ref(view(x), e.w1, view(g), false);
  linear_ref(view(x), e.w3, view(u), false);
  glu_ref(view(g), view(u), activation, view(h));
  const std::vector<double> mg = magnitudes(x.data(), e.w1), mu = magnitudes(x.data(), e.w3);
  std::vector<double> noise(h.size());
  for (size_t f = 0; f < h.size(); ++f) {
    const double a = std::abs(static_cast<double>(h[f])), up = std::abs(static_cast<double>(u[f]));
    const double gate = activation.kind == GluKind::situ ? 4.0 : std::abs(static_cast<double>(g[f]));
    const double delta = 2e-6 * (1.1 * up * mg[f] + gate * mu[f]) + 1e-6 * a + 1e-7;
    const auto low = static_cast<float>(static_cast<double>(h[f]) - delta),
               high = static_cast<float>(static_cast<double>(h[f]) + delta);
    noise[f] = delta;
    if (round) {
      noise[f] = static_cast<double>(round_to_bf16(high) - round_to_bf16(low));  // 0 far from a border
      h[f] = round_to_bf16(h[f]);
    }
  }
  const auto* w2 = static_cast<const float*>(e.w2.data);
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    for (size_t f = 0; f < h.size(); ++f) {
      sum += std::abs(static_cast<double>(w2[i * hidden + static_cast<int64_t>(f)])) *
             (noise[f] + 2.5e-6 * std::abs(static_cast<double>(h[f])));
    }
    bound[i] += std::abs(weight) * sum;
  }
}

TEST(Moe, EveryIsaSchemeAndCaseAgainstReference) {
  for (const MoeCase& c : kMoeCases) {
    for (const Scheme scheme : kSchemes) {
      if (scheme_has_scales(scheme) && (c.width % 32 != 0 || c.hidden % 32 != 0)) continue;
      const OwnedExperts experts = random_experts(scheme, c.experts, c.width, c.hidden, 7);
      const OwnedExperts dense = unpacked(experts);
      std::vector<float> zs = random_normal(c.tokens * c.width, 1);
      const Tensor z = matrix(zs.data(), c.tokens, c.width);
      Routing r = random_routing(c.tokens, c.experts, c.topk, 3);
      const Tensor ids = ids_of(r, c.tokens, c.topk), weights = matrix(r.weights.data(), c.tokens, c.topk);
      for (const bool round : {false, true}) {
        const Glu& activation = c.tokens % 2 == 0 ? kSilu : kSitu;
        std::vector<float> want(zs.size());
        moe_ref(z, ids, weights, dense.views, activation, round, matrix(want.data(), c.tokens, c.width));
        std::vector<double> bound(zs.size());
        for (size_t slot = 0; slot < r.ids.size(); ++slot) {
          const auto t = static_cast<int64_t>(slot) / c.topk;
          add_bound(z.row(t), dense.views[static_cast<size_t>(r.ids[slot])], activation, round,
                    static_cast<double>(r.weights[slot]), bound.data() + t * c.width);
        }
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 2, round ? Policy::bf16 : Policy::exact);
          run.ctx.deterministic = false;  // tiles where there are some
          Guarded out(c.tokens * c.width);
          moe(run.ctx, z, ids, weights, experts.views, activation, matrix(out.data(), c.tokens, c.width));
          EXPECT_TRUE(out.intact());
          for (size_t i = 0; i < zs.size(); ++i) {
            const double error = std::abs(static_cast<double>(out.data()[i]) - static_cast<double>(want[i]));
            ASSERT_LE(error, bound[i]) << isa_name(isa) << " scheme " << static_cast<int>(scheme) << " round " << round
                                       << " case " << c.tokens << "x" << c.width << "x" << c.hidden << " at " << i << " "
                                       << want[i];
          }
        }
      }
    }
  }
}

TEST(Moe, ReferenceReadsPackedWeights) {
  const OwnedExperts experts = random_experts(Scheme::mxfp4, 3, 64, 32, 5), dense = unpacked(experts);
  std::vector<float> z = random_normal(2 * 64, 1), a(2 * 64), b(2 * 64);
  Routing r = random_routing(2, 3, 2, 4);
  const Tensor weights = matrix(r.weights.data(), 2, 2);
  moe_ref(matrix(z.data(), 2, 64), ids_of(r, 2, 2), weights, experts.views, kSitu, true, matrix(a.data(), 2, 64));
  moe_ref(matrix(z.data(), 2, 64), ids_of(r, 2, 2), weights, dense.views, kSitu, true, matrix(b.data(), 2, 64));
  EXPECT_EQ(a, b);
}

TEST(Moe, PartsGiveTheBitsOfTheWhole) {
  constexpr int64_t kTokens = 37, kExperts = 11, kTopk = 3, kWidth = 96, kHidden = 160;
  for (const Scheme scheme : {Scheme::mxfp4, Scheme::bf16}) {
    const OwnedExperts experts = random_experts(scheme, kExperts, kWidth, kHidden, 5);
    std::vector<float> zs = random_normal(kTokens * kWidth, 2);
    const Tensor z = matrix(zs.data(), kTokens, kWidth);
    Routing r = random_routing(kTokens, kExperts, kTopk, 8);
    const Tensor ids = ids_of(r, kTokens, kTopk), weights = matrix(r.weights.data(), kTokens, kTopk);
    for (const Isa isa : test_isas()) {
      for (const auto& [policy, deterministic] : {std::pair{Policy::exact, true}, {Policy::bf16, true}, {Policy::bf16, false}}) {
        TestRun run(isa, 2, policy);
        run.ctx.deterministic = deterministic;
        std::vector<float> whole(zs.size()), parts(zs.size()), slots(zs.size() * kTopk, NAN);
        moe(run.ctx, z, ids, weights, experts.views, kSitu, matrix(whole.data(), kTokens, kWidth));
        const Tensor slot_out = matrix(slots.data(), kTokens * kTopk, kWidth);
        for (const std::vector<int32_t>& subset : {std::vector<int32_t>{0, 7, 3}, {}, {10}, {1, 2, 4, 5, 6, 8, 9}}) {
          std::vector<ExpertWeights> present(experts.views.size());  // the others have no weights
          for (const int32_t e : subset) present[static_cast<size_t>(e)] = experts.views[static_cast<size_t>(e)];
          moe_slots(run.ctx, z, ids, subset, present, kSitu, slot_out);
        }
        moe_combine(run.ctx, slot_out, weights, matrix(parts.data(), kTokens, kWidth));
        EXPECT_EQ(whole, parts) << isa_name(isa);
      }
    }
  }
}

TEST(Moe, BitIdenticalWhateverNeighboursAndThreads) {
  constexpr int64_t kTokens = 90, kExperts = 12, kTopk = 4, kWidth = 96, kHidden = 160;
  for (const Scheme scheme : kSchemes) {
    const OwnedExperts experts = random_experts(scheme, kExperts, kWidth, kHidden, 9);
    std::vector<float> zs = random_normal(kTokens * kWidth, 2);
    Routing r = random_routing(kTokens, kExperts, kTopk, 6);
    const Tensor z = matrix(zs.data(), kTokens, kWidth), ids = ids_of(r, kTokens, kTopk);
    const Tensor weights = matrix(r.weights.data(), kTokens, kTopk);
    for (const Isa isa : test_isas()) {
      for (const Policy policy : {Policy::exact, Policy::bf16}) {
        TestRun many(isa, 3, policy), one(isa, 1, policy);
        std::vector<float> all(zs.size()), part(zs.size());
        moe(many.ctx, z, ids, weights, experts.views, kSitu, matrix(all.data(), kTokens, kWidth));
        for (int64_t begin = 0, step = 1; begin < kTokens; begin += step, step = step % 7 + 1) {
          const int64_t end = std::min(kTokens, begin + step);
          moe(one.ctx, z.slice(begin, end), ids.slice(begin, end), weights.slice(begin, end), experts.views, kSitu,
              matrix(part.data(), kTokens, kWidth).slice(begin, end));
        }
        EXPECT_EQ(0, compare_bytes(all.data(), part.data(), all.size() * sizeof(float))) << isa_name(isa);
      }
    }
  }
}

TEST(Moe, ExpertsNobodyChoseAreNotRead) {
  OwnedExperts experts = random_experts(Scheme::bf16, 3, 32, 32, 9);
  for (size_t e : {0U, 2U}) experts.views[e] = {};  // not even loaded
  std::vector<float> z = random_normal(32, 2), out(32), weight = {1.0F};
  std::vector<int32_t> id = {1};
  TestRun run(detect_isa(), 2);
  moe(run.ctx, matrix(z.data(), 1, 32), Tensor(id.data(), DType::i32, {1, 1}), matrix(weight.data(), 1, 1), experts.views,
      kSilu, matrix(out.data(), 1, 32));
  for (const float v : out) EXPECT_TRUE(std::isfinite(v));
}

TEST(Moe, ExpertsMayDifferInScheme) {
  const OwnedExperts mx = random_experts(Scheme::mxfp4, 2, 64, 32, 9), plain = random_experts(Scheme::bf16, 2, 64, 32, 9);
  const std::vector<ExpertWeights> mixed = {
      mx.views[0], plain.views[1], {plain.views[0].w1, mx.views[0].w2, mx.views[1].w3}};
  std::vector<float> z = random_normal(64, 2), out(64), want(64), weights = {0.5F, 0.25F, 0.25F};
  std::vector<int32_t> ids = {2, 0, 1};
  TestRun run(detect_isa());
  const Tensor i(ids.data(), DType::i32, {1, 3}), w = matrix(weights.data(), 1, 3);
  moe(run.ctx, matrix(z.data(), 1, 64), i, w, mixed, kSitu, matrix(out.data(), 1, 64));
  moe_ref(matrix(z.data(), 1, 64), i, w, mixed, kSitu, false, matrix(want.data(), 1, 64));
  for (size_t k = 0; k < 64; ++k) EXPECT_NEAR(out[k], want[k], 1e-4F);
}

// Every block of every group belongs to exactly one worker, and no worker has more than its share plus one block.
TEST(MoePlan, CoversEveryRowOnceAndBalances) {
  Workspace workspace;
  for (const auto& [tokens, experts, topk] : {std::array<int64_t, 3>{1, 896, 16}, {40, 16, 4}, {512, 8, 2}, {3, 1, 1}}) {
    Routing r = random_routing(tokens, experts, topk, 11);
    const Workspace::Scope scope(workspace);
    const MoePlan plan = moe_plan(workspace, ids_of(r, tokens, topk), experts);
    int64_t covered = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      EXPECT_EQ(plan.groups[g].begin, covered);
      covered = plan.groups[g].end;
      if (g > 0) {
        EXPECT_LT(plan.groups[g - 1].expert, plan.groups[g].expert);
      }
    }
    EXPECT_EQ(covered, tokens * topk);
    for (size_t slot = 0; slot < r.ids.size(); ++slot) {
      const auto position = static_cast<size_t>(plan.position_of[slot]);
      EXPECT_EQ(plan.token_of[position], static_cast<int64_t>(slot) / topk);
      for (const MoeGroup& g : plan.groups) {
        if (g.expert == r.ids[slot]) {
          EXPECT_TRUE(static_cast<int64_t>(position) >= g.begin && static_cast<int64_t>(position) < g.end);
        }
      }
    }
    for (const int64_t rows : {1, 64, 100, 3072}) {
      for (const int64_t workers : {1, 2, 7, 64}) {
        for (size_t g = 0; g < plan.groups.size(); ++g) {
          int64_t next = 0;
          for (int64_t w = 0; w < workers; ++w) {
            const RowRange range = moe_rows_of(plan, g, rows, 64, w, workers);
            EXPECT_EQ(range.begin, next);
            EXPECT_LE(range.begin, range.end);
            next = range.end;
          }
          EXPECT_EQ(next, rows);
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
