#include "k3/ops/mla/mla_train.h"

#include <cmath>
#include <limits>
#include <vector>

#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"
#include "k3/ops/rms_norm/rms_norm_train.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

constexpr int64_t kBlock = 64;  // queries whose probabilities are in memory at once

struct Kept {
  Tensor latent, keys, out, logsum;  // [T, R], [T, H (nope + v)], [T, H v], [T, H]
};

void exp_rows(Isa isa, float* row, int64_t n) { vec_apply(isa, VecFn::exp, row, n, row); }
void exp_rows(Isa, double* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = std::exp(row[i]);
}

// One head of one sequence: views into the tensors of the batch, and a worker's scratch.
struct Head {
  int64_t begin, end, head;
  Tensor query_nope, query_rope, key_nope, key_rope, value;
};

Head head_of(const MlaArgs& a, const Tensor& kv, const Tensor& keys, int64_t begin, int64_t end, int64_t h) {
  const int64_t width = a.nope + a.rope, expanded = a.nope + a.value;
  const Tensor q = a.q.reshape({a.q.dim(0), a.q.dim(1) * width}).slice(begin, end), k = keys.slice(begin, end);
  return {begin,
          end,
          h,
          q.columns(h * width, h * width + a.nope),
          q.columns(h * width + a.nope, (h + 1) * width),
          k.columns(h * expanded, h * expanded + a.nope),
          kv.slice(begin, end).columns(a.rank, a.rank + a.rope),
          k.columns(h * expanded + a.nope, (h + 1) * expanded)};
}

int64_t longest(std::span<const int64_t> offsets) {
  int64_t most = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) most = std::max(most, offsets[s + 1] - offsets[s]);
  return most;
}

// Scaled logits of queries [from, to) of the head against keys [0, to); what a query may not see stays in, to be skipped.
void logits_of(Isa isa, const MlaArgs& a, const Head& head, int64_t from, int64_t to, const Tensor& logits, void* room) {
  matmul_one(isa, head.query_nope.slice(from, to), Op::plain, head.key_nope.slice(0, to), Op::transposed, logits, false, room);
  if (a.rope > 0) {
    matmul_one(isa, head.query_rope.slice(from, to), Op::plain, head.key_rope.slice(0, to), Op::transposed, logits, true, room);
  }
}

// Runs body(worker, sequence, head) for all.
template <class Body>
void for_heads(const Ctx& ctx, const MlaArgs& a, const Body& body) {
  const int64_t heads = a.q.dim(1), sequences = static_cast<int64_t>(a.offsets.size()) - 1;
  run_tasks(ctx, sequences * heads, [&](int worker, int64_t task) {
    const auto s = static_cast<size_t>(task / heads);
    if (a.offsets[s + 1] > a.offsets[s]) body(worker, s, task % heads);
  });
}

template <class T>
T scale_of(const MlaArgs& a) {
  return T{1} / std::sqrt(static_cast<T>(a.nope + a.rope));
}

template <class T>
void attend(const Ctx& ctx, const MlaArgs& args, const Kept& kept, double* largest) {
  const Workspace::Scope scope(*ctx.workspace);
  const MlaArgs& a = args;
  const int64_t heads = a.q.dim(1), most = longest(a.offsets), room = matmul_room_bytes(ctx.isa);
  const T scale = scale_of<T>(a);
  const Tensor blocks = ctx.workspace->tensor({worker_count(ctx), kBlock * most}, a.q.dtype);
  auto* const rooms = static_cast<std::byte*>(ctx.workspace->bytes(worker_count(ctx) * room));
  for_heads(ctx, a, [&](int worker, size_t s, int64_t h) {
    const Head head = head_of(a, args.kv, kept.keys, a.offsets[s], a.offsets[s + 1], h);
    const int64_t length = head.end - head.begin;
    double most_seen = -std::numeric_limits<double>::infinity();
    for (int64_t from = 0; from < length; from += kBlock) {
      const int64_t to = std::min(length, from + kBlock);
      const Tensor p = Tensor(blocks.at(worker).data, a.q.dtype, {to - from, to});
      logits_of(ctx.isa, a, head, from, to, p, rooms + worker * room);
      for (int64_t i = from; i < to; ++i) {
        T* const row = p.as<T>() + (i - from) * to;
        T top = row[0];
        for (int64_t j = 1; j <= i; ++j) top = std::max(top, row[j]);
        for (int64_t j = 0; j <= i; ++j) row[j] = (row[j] - top) * scale;
        exp_rows(ctx.isa, row, i + 1);
        T sum = 0;
        for (int64_t j = 0; j <= i; ++j) sum += row[j];
        for (int64_t j = 0; j <= i; ++j) row[j] /= sum;
        std::fill(row + i + 1, row + to, T{0});
        kept.logsum.as<T>()[(head.begin + i) * heads + h] = top * scale + std::log(sum);
        most_seen = std::max(most_seen, static_cast<double>(top * scale));
      }
      matmul_one(ctx.isa, p, Op::plain, head.value.slice(0, to), Op::plain,
                 kept.out.slice(head.begin + from, head.begin + to).columns(h * a.value, (h + 1) * a.value), false, rooms + worker * room);
    }
    largest[static_cast<int64_t>(s) * heads + h] = most_seen;
  });
}

template <class T>
void apply_gate(const Ctx& ctx, const Tensor& gate, const Tensor& o, const Tensor& y) {
  ctx.pool->parallel_for(y.size(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y.as<T>()[i] = o.as<T>()[i] / (T{1} + std::exp(-gate.as<T>()[i]));
  });
}

// dy becomes do; dgate is written.
template <class T>
void gate_vjp(const Ctx& ctx, const Tensor& gate, const Tensor& o, const Tensor& dy, const Tensor& dgate) {
  ctx.pool->parallel_for(dy.size(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T s = T{1} / (T{1} + std::exp(-gate.as<T>()[i])), d = dy.as<T>()[i];
      dgate.as<T>()[i] = d * o.as<T>()[i] * s * (T{1} - s);
      dy.as<T>()[i] = d * s;
    }
  });
}

struct Grads {
  Tensor q, keys, shared;  // [T, H (nope + rope)], [T, H (nope + v)], [T, H rope]: of the shared key, by head
};

template <class T>
void attend_vjp(const Ctx& ctx, const MlaArgs& args, const Kept& kept, const Tensor& dout, const Grads& grads) {
  const Workspace::Scope scope(*ctx.workspace);
  const MlaArgs& a = args;
  const int64_t heads = a.q.dim(1), most = longest(a.offsets), room = matmul_room_bytes(ctx.isa), width = a.nope + a.rope;
  const int64_t expanded = a.nope + a.value;
  const T scale = scale_of<T>(a);
  const Tensor probabilities = ctx.workspace->tensor({worker_count(ctx), kBlock * most}, a.q.dtype);
  const Tensor slopes = ctx.workspace->tensor({worker_count(ctx), kBlock * most}, a.q.dtype);
  auto* const rooms = static_cast<std::byte*>(ctx.workspace->bytes(worker_count(ctx) * room));
  for_heads(ctx, a, [&](int worker, size_t s, int64_t h) {
    const Head head = head_of(a, args.kv, kept.keys, a.offsets[s], a.offsets[s + 1], h);
    const int64_t length = head.end - head.begin;
    const auto rows = [&](const Tensor& t, int64_t first, int64_t count) {
      return t.slice(head.begin, head.end).columns(first, first + count);
    };
    const Tensor dquery_nope = rows(grads.q, h * width, a.nope), dquery_rope = rows(grads.q, h * width + a.nope, a.rope);
    const Tensor dkey = rows(grads.keys, h * expanded, a.nope), dvalue = rows(grads.keys, h * expanded + a.nope, a.value);
    const Tensor dshared = rows(grads.shared, h * a.rope, a.rope);
    const Tensor o = rows(kept.out, h * a.value, a.value), d = rows(dout, h * a.value, a.value);
    for (int64_t from = 0; from < length; from += kBlock) {
      const int64_t to = std::min(length, from + kBlock);
      const Tensor p(probabilities.at(worker).data, a.q.dtype, {to - from, to}), ds(slopes.at(worker).data, a.q.dtype, {to - from, to});
      void* const scratch = rooms + worker * room;
      logits_of(ctx.isa, a, head, from, to, p, scratch);
      matmul_one(ctx.isa, d.slice(from, to), Op::plain, head.value.slice(0, to), Op::transposed, ds, false, scratch);
      for (int64_t i = from; i < to; ++i) {
        T* const row = p.as<T>() + (i - from) * to;
        T* const slope = ds.as<T>() + (i - from) * to;
        const T logsum = kept.logsum.as<T>()[(head.begin + i) * heads + h];
        const T* const di = d.as<T>() + i * d.stride(0);
        const T* const oi = o.as<T>() + i * o.stride(0);
        T along = 0;
        for (int64_t c = 0; c < a.value; ++c) along += di[c] * oi[c];
        for (int64_t j = 0; j <= i; ++j) row[j] = row[j] * scale - logsum;
        exp_rows(ctx.isa, row, i + 1);
        for (int64_t j = 0; j <= i; ++j) slope[j] = row[j] * (slope[j] - along) * scale;
        std::fill(row + i + 1, row + to, T{0});
        std::fill(slope + i + 1, slope + to, T{0});
      }
      // Rows of keys from `from` on meet their first block here: those are written, earlier ones added to.
      const auto back = [&](const Tensor& weights, const Tensor& x, const Tensor& to_rows) {
        if (from > 0) matmul_one(ctx.isa, weights.columns(0, from), Op::transposed, x, Op::plain, to_rows.slice(0, from), true, scratch);
        matmul_one(ctx.isa, weights.columns(from, to), Op::transposed, x, Op::plain, to_rows.slice(from, to), false, scratch);
      };
      back(p, d.slice(from, to), dvalue);
      back(ds, head.query_nope.slice(from, to), dkey);
      matmul_one(ctx.isa, ds, Op::plain, head.key_nope.slice(0, to), Op::plain, dquery_nope.slice(from, to), false, scratch);
      if (a.rope == 0) continue;
      back(ds, head.query_rope.slice(from, to), dshared);
      matmul_one(ctx.isa, ds, Op::plain, head.key_rope.slice(0, to), Op::plain, dquery_rope.slice(from, to), false, scratch);
    }
  });
}

// The gradient of the raw latent rows: through the norm, and that of the shared key summed over heads.
template <class T>
void latent_vjp(const Ctx& ctx, const MlaArgs& args, const Tensor& dlatent, const Tensor& shared, const Tensor& dkv, bool accumulate,
                const Tensor& dnorm) {
  const MlaArgs& a = args;
  rms_norm_vjp(ctx, args.kv.columns(0, a.rank), args.kv_norm, args.kv_eps, dlatent, dkv.columns(0, a.rank), accumulate, dnorm);
  const int64_t heads = a.q.dim(1), width = dkv.dim(1);
  ctx.pool->parallel_for(dkv.dim(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* const to = dkv.as<T>() + t * width + a.rank;
      if (!accumulate) std::fill_n(to, a.rope, T{0});
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < a.rope; ++i) to[i] += shared.as<T>()[(t * heads + h) * a.rope + i];
      }
    }
  });
}

void mix_vjp(const Ctx& ctx, Tape& tape, const MlaArgs& args, const Kept& kept, const Tensor& dy) {
  const Workspace::Scope scope(*ctx.workspace);
  const MlaArgs& a = args;
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  const DType dtype = a.q.dtype;
  if (a.gate) {
    const Tape::Into dgate = tape.into(a.gate);
    K3_CHECK(dgate.fresh, "the output gate has one use");
    with_real(dtype, [&](auto real) { gate_vjp<decltype(real)>(ctx, a.gate, kept.out, dy, dgate.grad); });
  }
  const Tape::Into dq = tape.into(a.q);
  K3_CHECK(dq.fresh, "queries have one use");
  Grads grads;
  grads.q = dq.grad.reshape({tokens, heads * (a.nope + a.rope)});
  grads.keys = ctx.workspace->tensor({tokens, heads * (a.nope + a.value)}, dtype);
  grads.shared = ctx.workspace->tensor({tokens, heads * a.rope}, dtype);
  const Tensor dlatent = ctx.workspace->tensor({tokens, a.rank}, dtype);
  with_real(dtype, [&](auto real) { attend_vjp<decltype(real)>(ctx, args, kept, dy.reshape({tokens, heads * a.value}), grads); });
  matmul(ctx, grads.keys, Op::plain, weight_matrix(a.kv_b), Op::plain, dlatent);
  if (const Tensor dw = tape.parameter_grad(a.kv_b.data, a.kv_b.rows * a.kv_b.cols)) {
    matmul(ctx, grads.keys, Op::transposed, kept.latent, Op::plain, dw.reshape({a.kv_b.rows, a.kv_b.cols}), true);
  }
  const Tape::Into dkv = tape.into(args.kv);
  const Tensor dnorm = tape.parameter_grad(args.kv_norm.data, args.kv_norm.size());
  with_real(dtype, [&](auto real) { latent_vjp<decltype(real)>(ctx, args, dlatent, grads.shared, dkv.grad, !dkv.fresh, dnorm); });
}

void report_largest(const Ctx& ctx, const MlaArgs& a, const std::vector<double>& largest) {
  if (ctx.tape == nullptr || ctx.tape->repeating()) return;
  const Tensor to = ctx.tape->watched(a.kv_b.data, "max_logit");
  if (!to) return;
  const size_t heads = static_cast<size_t>(a.q.dim(1));
  for (size_t i = 0; i < largest.size(); ++i) {
    double& most = to.f64()[i % heads];
    most = std::max(most, largest[i]);
  }
}

}  // namespace

void mla_train(const Ctx& ctx, const MlaArgs& args) noexcept {
  const MlaArgs& a = args;
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  K3_CHECK(a.q.rank == 3 && a.q.dim(2) == a.nope + a.rope && args.kv.dim(1) == a.rank + a.rope &&
               a.kv_b.rows == heads * (a.nope + a.value) && a.offsets.back() == tokens,
           "mla: q {}, kv {}, kv_b {} x {}", a.q.shape_text(), args.kv.shape_text(), a.kv_b.rows, a.kv_b.cols);
  if (ctx.device.is_cuda()) return cuda::mla_train(ctx, a);
  Kept kept;
  kept.latent = ctx.workspace->tensor({tokens, a.rank}, a.q.dtype);
  kept.keys = ctx.workspace->tensor({tokens, a.kv_b.rows}, a.q.dtype);
  kept.out = a.gate ? ctx.workspace->tensor({tokens, heads * a.value}, a.q.dtype) : a.out.reshape({tokens, heads * a.value});
  kept.logsum = ctx.workspace->tensor({tokens, heads}, a.q.dtype);
  rms_norm_forward(ctx, args.kv.columns(0, a.rank), args.kv_norm, args.kv_eps, kept.latent);
  matmul(ctx, kept.latent, Op::plain, weight_matrix(a.kv_b), Op::transposed, kept.keys);
  std::vector<double> largest((a.offsets.size() - 1) * static_cast<size_t>(heads), -std::numeric_limits<double>::infinity());
  const bool retaining = ctx.workspace->retaining();
  ctx.workspace->retain(false);
  with_real(a.q.dtype, [&](auto real) { attend<decltype(real)>(ctx, args, kept, largest.data()); });
  ctx.workspace->retain(retaining);
  if (a.gate) with_real(a.q.dtype, [&](auto real) { apply_gate<decltype(real)>(ctx, a.gate, kept.out, a.out); });
  report_largest(ctx, a, largest);
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  // Offsets belong to the batch, which outlives the step.
  tape->record([=](const Ctx& back) {
    const Tensor dy = tape->grad(a.out);
    if (!dy) return;
    mix_vjp(back, *tape, args, kept, dy);
    tape->done(a.out);
  });
}

}  // namespace k3::ops
