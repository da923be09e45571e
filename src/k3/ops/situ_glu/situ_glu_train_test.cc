// Gradients of the gated activations over the table of their shapes and kinds.
#include "k3/ops/situ_glu/situ_glu_train.h"

#include "k3/ops/situ_glu/situ_glu_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

TEST(GluTrain, EveryKindAndCaseAgainstDifferencesAndDouble) {
  for (size_t k = 0; k < kGluKinds.size(); ++k) {
    for (const GluCase& c : kGluCases) {
      if (c.tokens == 0) continue;
      VjpOp op;
      op.name = fmt::format("glu {} x {}, kind {}", c.tokens, c.width, k);
      // Deviation 3: both caps and the linear part of each are met.
      op.inputs = {vjp_input("gate", Kind::single, c.tokens, c.width, 1, 3), vjp_input("up", Kind::single, c.tokens, c.width, 2, 3)};
      op.forward = [&kind = kGluKinds[k]](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
        const Tensor out = ctx.workspace->tensor_like(in[0]);
        glu_train(ctx, in[0], in[1], kind, out);
        return {out};
      };
      check_vjp(op, c.tokens * c.width < 4000);
    }
  }
}

// Element by element, far out where factors saturate or vanish: the bound of the header.
TEST(GluTrain, EveryElementIsWithinTheBound) {
  const std::vector<float> points = {0,    1e-30F, 1e-6F, 0.1F, 1,   2.5F, 7,   15, 30, 88, 104, 1e4F,
                                     -0.0F, -1e-6F, -0.1F, -1,   -2.5F, -7, -15, -30, -88, -104, -1e4F};
  const auto n = static_cast<int64_t>(points.size() * points.size());
  std::vector<float> gate, up, dout = random_normal(n, 3);
  for (const float a : points) {
    for (const float c : points) gate.push_back(a), up.push_back(c);
  }
  const auto wide = [](std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  std::vector<double> gate64 = wide(gate), up64 = wide(up), dout64 = wide(dout), dgate64(dout64.size()), dup64(dout64.size());
  const auto row64 = [&](std::vector<double>& x) { return Tensor(x.data(), DType::f64, {1, n}); };
  for (const Glu& kind : kGluKinds) {
    glu_vjp(TestRun(Isa::scalar).ctx, row64(gate64), row64(up64), kind, row64(dout64), row64(dgate64), row64(dup64));
    for (const Isa isa : test_isas()) {
      Guarded dgate(n), dup(n);
      glu_vjp(TestRun(isa).ctx, matrix(gate.data(), 1, n), matrix(up.data(), 1, n), kind, matrix(dout.data(), 1, n), matrix(dgate.data(), 1, n),
              matrix(dup.data(), 1, n));
      EXPECT_TRUE(dgate.intact() && dup.intact());
      for (size_t i = 0; i < dout.size(); ++i) {
        const double bound = 2e-6 * std::max({1.0, std::abs(gate64[i]), std::abs(up64[i])}) * std::abs(dout64[i]);
        EXPECT_NEAR(dgate64[i], dgate.data()[i], bound) << gate[i] << ", " << up[i] << ", isa " << static_cast<int>(isa);
        EXPECT_NEAR(dup64[i], dup.data()[i], bound) << gate[i] << ", " << up[i] << ", isa " << static_cast<int>(isa);
      }
    }
  }
}

// Where the gradients may lie: either on the upstream one.
TEST(GluTrain, GradientsMayLieOnTheUpstreamOne) {
  const int64_t n = 37;
  std::vector<float> gate = random_normal(n, 1), up = random_normal(n, 2), dout = random_normal(n, 3), dgate(gate), dup(up);
  const auto row = [n](std::vector<float>& x) { return matrix(x.data(), 1, n); };
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    glu_vjp(run.ctx, row(gate), row(up), kGluKinds[1], row(dout), row(dgate), row(dup));
    std::vector<float> on_gate = dout, on_up = dout, other(dout);
    glu_vjp(run.ctx, row(gate), row(up), kGluKinds[1], row(on_gate), row(on_gate), row(other));
    EXPECT_EQ(dgate, on_gate);
    EXPECT_EQ(dup, other);
    glu_vjp(run.ctx, row(gate), row(up), kGluKinds[1], row(on_up), row(other), row(on_up));
    EXPECT_EQ(dgate, other);
    EXPECT_EQ(dup, on_up);
  }
}

}  // namespace
}  // namespace k3::ops
