// Purpose:  checks an op on a tape: FP64 against finite differences, FP32 of every instruction set against FP64.
// Shapes:   any.
// Units:    none.
// Memory:   VjpOp owns the values of its inputs; every run has buffers of its own.
// Threads:  runs with one thread and with three must give the same bits.
// Errors:   failed expectations.
// Source:   architecture 4 and 10. The loss is a random weight on every output and, in a second round, on every input as well: what
//           other uses of a buffer have put into its gradient must stay there.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"
#include "k3/ops/test_util.h"
#include "k3/ops/weight.h"

namespace k3::ops {

struct VjpInput {
  enum class Kind {
    parameter,   // its gradient is added to where the caller says
    activation,  // of several uses
    single,      // an activation that nothing else uses
    fixed,       // no gradient
  };
  std::string name;
  Kind kind = Kind::activation;
  int64_t rows = 1, cols = 1;
  std::vector<float> values;
};

inline VjpInput vjp_input(std::string name, VjpInput::Kind kind, int64_t rows, int64_t cols, uint64_t seed, float scale = 1, float offset = 0) {
  VjpInput in{std::move(name), kind, rows, cols, random_normal(rows * cols, seed, scale)};
  for (float& x : in.values) x += offset;
  return in;
}

struct VjpOp {
  std::string name;
  std::vector<VjpInput> inputs;
  // Computes outputs from inputs [rows, cols] of ctx.activation(); what it needs in addition comes from ctx.workspace.
  std::function<std::vector<Tensor>(const Ctx& ctx, std::span<const Tensor> inputs)> forward;
  double tolerance = 1e-5;  // norm ratio of each gradient in FP32: that of the op's header
  bool compare_f32 = true;  // false: gradients that are nothing but what cancellation leaves
};

// The matrix as a weight of a linear layer.
inline Weight vjp_weight(const Tensor& t) { return {t.data, nullptr, t.dtype == DType::f64 ? Scheme::f64 : Scheme::f32, t.dim(0), t.dim(1)}; }

using VjpValues = std::vector<std::vector<double>>;

struct VjpResult {
  double loss = 0;
  VjpValues outputs, grads;
};

namespace vjp_internal {

inline std::vector<double> doubles(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.size()));
  with_real(t.dtype, [&](auto real) { std::copy_n(t.as<decltype(real)>(), out.size(), out.begin()); });
  return out;
}

inline void fill(const Tensor& t, std::span<const double> values) {
  with_real(t.dtype, [&](auto real) {
    for (size_t i = 0; i < values.size(); ++i) t.as<decltype(real)>()[i] = static_cast<decltype(real)>(values[i]);
  });
}

// From -1 to 1, by a congruence: every run draws them anew, and normal numbers would take longer than the op.
inline std::vector<double> weights(int64_t count, uint64_t seed) {
  std::vector<double> out(static_cast<size_t>(count));
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL;
  for (double& w : out) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    w = static_cast<double>(static_cast<int64_t>(x)) * 0x1p-63;
  }
  return out;
}

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

constexpr uint64_t kOutputSeed = 5000, kInputSeed = 6000;

// One forward and, with a tape, its backward.
inline VjpResult run(Ctx ctx, Tape* tape, const VjpOp& op, const VjpValues& values, bool other_uses) {
  using Kind = VjpInput::Kind;
  const Workspace::Scope scope(*ctx.workspace);
  VjpResult result;
  std::vector<Tensor> inputs, grads;
  ctx.training = true;
  ctx.workspace->retain(tape != nullptr);
  const auto weighed = [&](size_t i) { return other_uses && op.inputs[i].kind != Kind::single && op.inputs[i].kind != Kind::fixed; };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const VjpInput& in = op.inputs[i];
    inputs.push_back(ctx.workspace->tensor({in.rows, in.cols}, ctx.activation()));
    fill(inputs.back(), values[i]);
    if (tape == nullptr) continue;
    grads.push_back(ctx.workspace->tensor_like(inputs.back()));
    fill(grads.back(), weighed(i) ? weights(grads.back().size(), kInputSeed + i) : std::vector<double>(values[i].size()));
    if (in.kind == Kind::parameter) tape->parameters(inputs.back().data, inputs.back().dtype, inputs.back().size(), grads.back());
  }
  result.grads.resize(inputs.size());
  if (tape != nullptr) {
    tape->record([&](const Ctx&) {  // the first step is taken back last
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (op.inputs[i].kind == Kind::fixed) continue;
        const Tensor grad = op.inputs[i].kind == Kind::parameter ? grads[i] : tape->grad(inputs[i]);
        EXPECT_TRUE(grad) << op.name << ": no gradient of " << op.inputs[i].name;
        if (grad) result.grads[i] = doubles(grad);
      }
    });
  }
  ctx.tape = tape;
  const std::vector<Tensor> outputs = op.forward(ctx, inputs);
  ctx.workspace->retain(false);
  for (size_t i = 0; i < outputs.size(); ++i) {
    result.outputs.push_back(doubles(outputs[i]));
    const std::vector<double> w = weights(outputs[i].size(), kOutputSeed + i);
    result.loss += dot(w, result.outputs.back());
    if (tape != nullptr) fill(tape->into(outputs[i]).grad, w);
  }
  // An op that changes an input in place leaves the gradient of the changed one there, so it is the changed one that is weighed.
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!weighed(i)) continue;
    const std::vector<double> w = weights(inputs[i].size(), kInputSeed + i);
    result.loss += dot(w, doubles(inputs[i]));
    if (tape != nullptr && op.inputs[i].kind == Kind::activation) fill(tape->into(inputs[i]).grad, w);
  }
  if (tape != nullptr) tape->backward(ctx);
  return result;
}

inline VjpResult run_f64(const VjpOp& op, const VjpValues& values, bool other_uses, bool gradient) {
  TestRun test(Isa::scalar);
  test.ctx.double_precision = true;
  Tape tape;
  return run(test.ctx, gradient ? &tape : nullptr, op, values, other_uses);
}

// Along random directions of each input by itself: all at once would hide one behind a larger one.
inline void compare_with_differences(const VjpOp& op, const VjpValues& values, const VjpResult& exact, bool other_uses) {
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < values.size(); ++i) {
    if (op.inputs[i].kind == VjpInput::Kind::fixed) continue;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const std::vector<double> way = weights(static_cast<int64_t>(values[i].size()), 7000 + seed);
      double sides[2];
      for (const int side : {0, 1}) {
        VjpValues moved = values;
        for (size_t j = 0; j < way.size(); ++j) moved[i][j] += (side == 0 ? kStep : -kStep) * way[j];
        sides[side] = run_f64(op, moved, other_uses, false).loss;
      }
      const double size = std::sqrt(dot(exact.grads[i], exact.grads[i]));
      EXPECT_NEAR((sides[0] - sides[1]) / (2 * kStep), dot(exact.grads[i], way), 1e-6 * (size + 1)) << op.name << ": " << op.inputs[i].name;
    }
  }
}

inline double norm_ratio(std::span<const double> wanted, std::span<const double> got) {
  double error = 0;
  for (size_t i = 0; i < wanted.size(); ++i) error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
  const double norm = std::sqrt(dot(wanted, wanted));
  return norm > 0 ? std::sqrt(error) / norm : std::sqrt(error);
}

inline void compare_f32(const VjpOp& op, const VjpValues& values, const VjpResult& exact, Isa isa, bool other_uses) {
  VjpResult first;
  for (const int threads : {1, 3}) {
    TestRun test(isa, threads);
    Tape tape;
    // The second round of a tape finds its pool full of old gradients.
    for (int round = 0; round < 2; ++round) {
      const VjpResult got = run(test.ctx, &tape, op, values, other_uses);
      if (threads == 1 && round == 0) {
        first = got;
        continue;
      }
      EXPECT_EQ(first.outputs, got.outputs) << op.name << ": " << threads << " threads, round " << round;
      EXPECT_EQ(first.grads, got.grads) << op.name << ": " << threads << " threads, round " << round;
    }
  }
  for (size_t i = 0; i < exact.outputs.size(); ++i) {
    EXPECT_LT(norm_ratio(exact.outputs[i], first.outputs[i]), op.tolerance) << op.name << ": output " << i << ", isa " << static_cast<int>(isa);
  }
  for (size_t i = 0; i < exact.grads.size(); ++i) {
    ASSERT_EQ(exact.grads[i].size(), first.grads[i].size());
    EXPECT_LT(norm_ratio(exact.grads[i], first.grads[i]), op.tolerance)
        << op.name << ": gradient of " << op.inputs[i].name << ", isa " << static_cast<int>(isa);
  }
}

}  // namespace vjp_internal

// `differences`: false where the op is too large to be computed a dozen times in double.
inline void check_vjp(const VjpOp& op, bool differences = true) {
  VjpValues values;
  for (const VjpInput& in : op.inputs) values.emplace_back(in.values.begin(), in.values.end());
  for (const bool other_uses : {false, true}) {
    const VjpResult exact = vjp_internal::run_f64(op, values, other_uses, true);
    if (differences) vjp_internal::compare_with_differences(op, values, exact, other_uses);
    for (const Isa isa : test_isas()) {
      if (op.compare_f32 && isa <= Isa::avx512) vjp_internal::compare_f32(op, values, exact, isa, other_uses);
    }
  }
}

}  // namespace k3::ops
