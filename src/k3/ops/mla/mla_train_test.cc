// Gradients of MLA without a cache: heads of every shape, packed sequences around the borders of query blocks, with and without a gate.
#include "k3/ops/mla/mla_train.h"

#include "k3/ops/mla/mla_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

std::vector<int64_t> offsets_of(const MlaCase& c) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

VjpOp mla_op(const MlaCase& c, bool gated) {
  const std::vector<int64_t> offsets = offsets_of(c);
  const int64_t tokens = offsets.back(), out = c.heads * c.value;
  VjpOp op;
  op.name = fmt::format("MLA of {} heads {}+{}/{}, rank {}, {} tokens, scale {}{}", c.heads, c.nope, c.rope, c.value, c.rank, tokens, c.scale,
                        gated ? ", gated" : "");
  op.inputs = {vjp_input("q", Kind::single, tokens, c.heads * (c.nope + c.rope), 1, c.scale),
               vjp_input("kv", Kind::activation, tokens, c.rank + c.rope, 2), vjp_input("norm", Kind::parameter, 1, c.rank, 3, 0.3F, 1),
               vjp_input("kv_b", Kind::parameter, c.heads * (c.nope + c.value), c.rank, 4, 1 / std::sqrt(static_cast<float>(c.rank)))};
  if (gated) op.inputs.push_back(vjp_input("gate", Kind::single, tokens, out, 5));
  op.forward = [=](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
    MlaArgs a;
    a.q = in[0].reshape({tokens, c.heads, c.nope + c.rope});
    a.kv = in[1];
    a.kv_norm = in[2].reshape({c.rank});
    a.kv_eps = 1e-6F;
    a.kv_b = vjp_weight(in[3]);
    if (gated) a.gate = in[4];
    a.nope = c.nope, a.rope = c.rope, a.value = c.value, a.rank = c.rank;
    static thread_local std::vector<int64_t> kept;  // the batch's, which outlives the backward
    kept = offsets;
    a.offsets = kept;
    a.out = ctx.workspace->tensor({tokens, c.heads, c.value}, in[0].dtype);
    mla_train(ctx, a);
    return {a.out};
  };
  return op;
}

TEST(MlaTrain, HeadsAgainstDifferencesAndDouble) {
  for (MlaCase c : mla_shapes()) {
    const bool wide = c.rank > 100;
    c.lengths = wide ? std::vector<int64_t>{5, 2} : std::vector<int64_t>{9, 0, 1, 4};
    for (const bool gated : {false, true}) check_vjp(mla_op(c, gated), !wide);
  }
}

// Blocks are of 64 queries.
TEST(MlaTrain, LengthsAroundTheBlocks) {
  MlaCase c{.heads = 2, .nope = 5, .rope = 3, .value = 7, .rank = 9};
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{1}, {63}, {64}, {65}, {0, 130, 0}, {64, 1, 129}}) {
    c.lengths = lengths;
    check_vjp(mla_op(c, true), offsets_of(c).back() < 70);
  }
}

TEST(MlaTrain, SharpSoftmax) {
  MlaCase c{.heads = 2, .nope = 16, .rope = 4, .value = 12, .rank = 24};
  c.lengths = {40, 7};
  c.scale = 6;
  VjpOp op = mla_op(c, true);
  // Logits of 20: their FP32 rounding, 2e-6, is a relative error of probabilities, and gradients of q and kv are differences of those.
  op.tolerance = 1e-4;
  check_vjp(op);
}

// The largest logit of each head, over all sequences: what QK-clip reads.
TEST(MlaTrain, ReportsTheLargestLogitOfEachHead) {
  MlaCase c{.heads = 3, .nope = 6, .rope = 2, .value = 5, .rank = 8};
  c.lengths = {70, 3};
  const VjpOp op = mla_op(c, false);
  const int64_t width = c.nope + c.rope;
  TestRun run(Isa::scalar);
  run.ctx.training = true;
  run.ctx.double_precision = true;
  Tape tape;
  run.ctx.tape = &tape;
  run.workspace.retain(true);
  std::vector<Tensor> in;
  for (const VjpInput& i : op.inputs) {
    in.push_back(run.workspace.tensor({i.rows, i.cols}, DType::f64));
    vjp_internal::fill(in.back(), std::vector<double>(i.values.begin(), i.values.end()));
  }
  std::vector<double> largest(3, -std::numeric_limits<double>::infinity()), wanted = largest;
  tape.watch(in[3].data, "max_logit", Tensor(largest.data(), DType::f64, {3}));
  op.forward(run.ctx, in);
  const std::vector<int64_t> offsets = offsets_of(c);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
      for (int64_t u = offsets[s]; u <= t; ++u) {
        const double* const row = in[1].f64() + u * (c.rank + c.rope);
        double squares = 0;
        for (int64_t r = 0; r < c.rank; ++r) squares += row[r] * row[r];
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(c.rank) + static_cast<double>(1e-6F));
        for (int64_t h = 0; h < c.heads; ++h) {
          const double* const q = in[0].f64() + (t * c.heads + h) * width;
          double logit = 0;
          for (int64_t i = 0; i < c.nope; ++i) {
            for (int64_t r = 0; r < c.rank; ++r) {
              logit += q[i] * in[3].f64()[(h * (c.nope + c.value) + i) * c.rank + r] * row[r] * inverse * in[2].f64()[r];
            }
          }
          for (int64_t i = 0; i < c.rope; ++i) logit += q[c.nope + i] * row[c.rank + i];
          double& most = wanted[static_cast<size_t>(h)];
          most = std::max(most, logit / std::sqrt(static_cast<double>(width)));
        }
      }
    }
  }
  for (size_t h = 0; h < 3; ++h) EXPECT_NEAR(wanted[h], largest[h], 1e-12);
}

}  // namespace
}  // namespace k3::ops
