#include "k3/ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

constexpr int64_t kChunk = 256;

void exp_row(Isa isa, float* row, int64_t n) { vec_apply(isa, VecFn::exp, row, n, row); }
void exp_row(Isa, double* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = std::exp(row[i]);
}

// Sixteen chains, so that the compiler keeps them in vectors and no pass waits for one addition after another.
constexpr int64_t kLanes = 16;

template <class T>
T largest(const T* row, int64_t n) {
  T best[kLanes];
  std::fill_n(best, kLanes, row[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) best[j] = best[j] < row[i + j] ? row[i + j] : best[j];
  }
  for (; i < n; ++i) best[0] = best[0] < row[i] ? row[i] : best[0];
  return *std::max_element(best, best + kLanes);
}

template <class T>
double sum_of(const T* row, int64_t n) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += static_cast<double>(row[i + j]);
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(row[i]);
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

// Logits of one token become their gradient; its loss.
template <class T>
double token_loss(Isa isa, T* row, int64_t vocab, int32_t target, double scale) {
  const T top = largest(row, vocab);
  const double wanted = static_cast<double>(row[target] - top);
  for (int64_t i = 0; i < vocab; ++i) row[i] -= top;
  exp_row(isa, row, vocab);
  const double sum = sum_of(row, vocab);
  const T factor = static_cast<T>(scale / sum);
  for (int64_t i = 0; i < vocab; ++i) row[i] *= factor;
  row[target] -= static_cast<T>(scale);
  return std::log(sum) - wanted;
}

template <class T>
double chunk_loss(const Ctx& ctx, const Tensor& logits, std::span<const int32_t> targets, double scale) {
  std::vector<double> losses(targets.size(), 0.0);
  const int64_t vocab = logits.dim(1);
  run_tasks(ctx, logits.dim(0), [&](int, int64_t t) {
    T* const row = logits.as<T>() + t * vocab;
    const int32_t target = targets[static_cast<size_t>(t)];
    if (target < 0) {
      std::fill_n(row, vocab, T{0});
    } else {
      losses[static_cast<size_t>(t)] = token_loss(ctx.isa, row, vocab, target, scale);
    }
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

}  // namespace

CrossEntropy cross_entropy(const Ctx& ctx, const Tensor& x, const Weight& head, std::span<const int32_t> targets, double scale) noexcept {
  const int64_t tokens = x.dim(0), vocab = head.rows;
  K3_CHECK(static_cast<int64_t>(targets.size()) == tokens && head.cols == x.dim(1), "cross_entropy: x {}, head {} x {}, {} targets",
           x.shape_text(), head.rows, head.cols, targets.size());
  CrossEntropy out;
  for (const int32_t target : targets) {
    K3_CHECK(target < vocab, "cross_entropy: target {} of {}", target, vocab);
    out.tokens += target >= 0 ? 1 : 0;
  }
  if (out.tokens == 0) return out;
  if (ctx.device.is_cuda()) {
    cuda::cross_entropy(ctx, x, head, scale);
    return out;
  }
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor weight = weight_matrix(head), logits = ctx.workspace->tensor({std::min(tokens, kChunk), vocab}, x.dtype);
  Tape* const tape = ctx.tape;
  Tape::Into dx;
  Tensor dhead;
  if (tape != nullptr) {
    dx = tape->into(x);
    dhead = tape->parameter_grad(head.data, vocab * head.cols);
  }
  for (int64_t begin = 0; begin < tokens; begin += kChunk) {
    const int64_t end = std::min(tokens, begin + kChunk);
    const Tensor part = logits.slice(0, end - begin), rows = x.slice(begin, end);
    matmul(ctx, rows, Op::plain, weight, Op::transposed, part);
    with_real(x.dtype, [&](auto real) {
      out.nats += chunk_loss<decltype(real)>(ctx, part, targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), scale);
    });
    if (tape == nullptr) continue;
    matmul(ctx, part, Op::plain, weight, Op::plain, dx.grad.slice(begin, end), !dx.fresh);
    if (dhead) matmul(ctx, part, Op::transposed, rows, Op::plain, dhead.reshape({vocab, head.cols}), true);
  }
  return out;
}

}  // namespace k3::ops
