// moe on 8-bit inputs is the composition of linear, the activation and the weighted sum: to the bit where the order of sums
// is fixed; elsewhere within what one step of the second quantisation may do.
#include <gtest/gtest.h>

#include <cmath>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/weight_value.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/moe/moe_cases.h"

namespace k3::ops {
namespace {

const Glu kSitu{GluKind::situ, 4.0F, 25.0F};

struct Composed {
  std::vector<float> out;
  std::vector<double> bound;  // of one step in every hidden value, and of the FP32 sums
};

Composed compose(TestRun& run, const Tensor& z, const Routing& r, int64_t topk, const OwnedExperts& experts) {
  const int64_t width = z.dim(1), hidden = experts.views[0].w1.rows;
  Composed c{std::vector<float>(static_cast<size_t>(z.size())), std::vector<double>(static_cast<size_t>(z.size()))};
  std::vector<float> gate(static_cast<size_t>(hidden)), up(gate), y(static_cast<size_t>(width));
  for (int64_t t = 0; t < z.dim(0); ++t) {
    for (int64_t j = 0; j < topk; ++j) {
      const ExpertWeights& e = experts.views[static_cast<size_t>(r.ids[static_cast<size_t>(t * topk + j)])];
      const float weight = r.weights[static_cast<size_t>(t * topk + j)];
      linear(run.ctx, z.slice(t, t + 1), e.w1, matrix(gate.data(), 1, hidden));
      linear(run.ctx, z.slice(t, t + 1), e.w3, matrix(up.data(), 1, hidden));
      glu_row(run.ctx.isa, gate.data(), up.data(), hidden, kSitu, gate.data());
      linear(run.ctx, matrix(gate.data(), 1, hidden), e.w2, matrix(y.data(), 1, width));
      for (int64_t i = 0; i < width; ++i) {
        float& out = c.out[static_cast<size_t>(t * width + i)];
        out = j == 0 ? weight * y[static_cast<size_t>(i)] : out + weight * y[static_cast<size_t>(i)];
        double bound = 0;
        for (int64_t g = 0; g < hidden; g += 32) {
          double amax = 0, sum = 0;
          for (int64_t f = g; f < g + 32; ++f) {
            amax = std::max(amax, static_cast<double>(std::abs(gate[static_cast<size_t>(f)])));
            sum += std::abs(static_cast<double>(weight_value(e.w2, i, f)));
          }
          bound += sum * amax * (1.0 / 127 + 4e-6);
        }
        c.bound[static_cast<size_t>(t * width + i)] += static_cast<double>(weight) * bound;
      }
    }
  }
  return c;
}

TEST(MoeInt8, IsTheCompositionOfItsParts) {
  std::vector<MoeCase> cases = kMoeCases;
  cases.push_back({80, 3, 2, 160, 224});  // groups of many tokens
  for (const MoeCase& c : cases) {
    if (c.tokens == 0 || c.width % 32 != 0 || c.hidden % 32 != 0 || c.width > 2000 || c.hidden > 2000) continue;
    for (const Scheme scheme : {Scheme::mxfp4, Scheme::i8}) {
      const OwnedExperts experts = random_experts(scheme, c.experts, c.width, c.hidden, 7);
      std::vector<float> zs = random_normal(c.tokens * c.width, 1);
      const Tensor z = matrix(zs.data(), c.tokens, c.width);
      Routing r = random_routing(c.tokens, c.experts, c.topk, 3);
      const Tensor ids(r.ids.data(), DType::i32, {c.tokens, c.topk}), weights = matrix(r.weights.data(), c.tokens, c.topk);
      for (const Isa isa : test_isas()) {
        TestRun alone(isa, 1);
        alone.ctx.int8_activations = true;
        const Composed want = compose(alone, z, r, c.topk, experts);
        for (const bool deterministic : {true, false}) {
          TestRun run(isa, 2);
          run.ctx.int8_activations = true;
          run.ctx.deterministic = deterministic;
          Guarded out(c.tokens * c.width);
          moe(run.ctx, z, ids, weights, experts.views, kSitu, matrix(out.data(), c.tokens, c.width));
          EXPECT_TRUE(out.intact());
          for (size_t i = 0; i < zs.size(); ++i) {
            const double error = std::abs(static_cast<double>(out.data()[i]) - static_cast<double>(want.out[i]));
            ASSERT_LE(error, deterministic ? 0.0 : want.bound[i])
                << isa_name(isa) << " scheme " << static_cast<int>(scheme) << " case " << c.tokens << "x" << c.width << "x"
                << c.hidden << " at " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
