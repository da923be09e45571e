// The training forms of ops on a GPU against those of the CPU in FP32 on the same BF16 inputs. Tolerances are those of the kernels'
// headers: BF16 results 3e-3 of their norm (rounding is 1.7e-3), chains of two or three roundings 8e-3, FP32 sums over tokens of BF16
// products 3e-3 to 8e-3 as what enters them was rounded.
#include "k3/ops/attn_res/attn_res_train.h"
#include "k3/ops/cross_entropy/cross_entropy.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/cuda/train_pair_gpu_test.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/embedding/embedding.h"
#include "k3/ops/gemm/cuda/mma_train.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"
#include "k3/ops/mla/mla.h"
#include "k3/ops/mla/mla_train.h"
#include "k3/ops/moe/moe_train.h"
#include "k3/ops/rms_norm/rms_norm_train.h"
#include "k3/ops/situ_glu/situ_glu_train.h"

namespace k3::ops::cuda {
namespace {

constexpr double kRounded = 3e-3, kChain = 8e-3;

struct ProductCase {
  int64_t m, n, k;
};

void products(const ProductCase& c, bool own) {
  for (const auto& [op_a, op_b] : {std::pair(Op::plain, Op::transposed), std::pair(Op::plain, Op::plain), std::pair(Op::transposed, Op::plain)}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      for (const bool accumulate : {false, true}) {
        TrainPair pair;
        const bool flip_a = op_a == Op::transposed, flip_b = op_b == Op::transposed;
        const Twin a = pair.activation({flip_a ? c.k : c.m, flip_a ? c.m : c.k}, 1), b = pair.activation({flip_b ? c.n : c.k, flip_b ? c.k : c.n}, 2);
        const Twin y = out == DType::bf16 ? pair.activation({c.m, c.n}, 3) : pair.numbers({c.m, c.n}, 3);
        ops::matmul(pair.host, a.host, op_a, b.host, op_b, y.host, accumulate);
        if (own) {
          MmaTrain p{};
          p.operands[0] = {a.device.data, b.device.data};
          p.c[0] = y.device.data;
          p.a_stride = a.device.stride(0), p.b_stride = b.device.stride(0), p.c_stride = c.n;
          p.m = static_cast<int32_t>(c.m), p.n = static_cast<int32_t>(c.n), p.k = static_cast<int32_t>(c.k);
          p.groups = 1;
          p.b_plain = !flip_b;
          p.c_f32 = out == DType::f32;
          p.accumulate = accumulate;
          EXPECT_EQ(0, flip_a ? mma_depth_launch(p, nullptr) : mma_rows_launch(p, nullptr));
        } else {
          ops::matmul(pair.device, a.device, op_a, b.device, op_b, y.device, accumulate);
        }
        pair.finish();
        SCOPED_TRACE(fmt::format("{} x {} x {} flips {} {} {} accumulate {}", c.m, c.n, c.k, flip_a, flip_b, dtype_name(out), accumulate));
        const double ratio = norm_ratio(pair.on_host(y.device), pair.on_host(y.host));
        EXPECT_LE(ratio, out == DType::bf16 ? kRounded : 1e-5);
      }
    }
  }
}

TEST(TrainOpsGpu, Products) {
  K3_NEEDS_GPU();
  for (const ProductCase& c : {ProductCase{256, 128, 384}, {130, 4, 384}, {77, 33, 51}, {1, 512, 96}, {1024, 12, 72}}) products(c, false);
}

TEST(TrainOpsGpu, OwnProductsSanitize) {
  K3_NEEDS_GPU();
  for (const ProductCase& c : {ProductCase{256, 192, 192}, {130, 4, 384}, {77, 33, 51}, {100, 40, 72}}) products(c, true);
}

TEST(TrainOpsGpu, NormSanitize) {
  K3_NEEDS_GPU();
  for (const auto& [rows, width, wide] : {std::tuple(300, 384, 384), std::tuple(65, 40, 52), std::tuple(7, 512, 576), std::tuple(9, 1536, 1536)}) {
    for (const bool accumulate : {false, true}) {
      TrainPair pair;
      const Twin x = pair.activation({rows, wide}, 1), w = pair.vector(width, 2), y = pair.empty({rows, width}), d = pair.activation({rows, width}, 3);
      const Twin dx = pair.activation({rows, wide}, 4);
      const auto part = [&](const Tensor& t) { return t.columns(0, width); };
      ops::rms_norm_forward(pair.host, part(x.host), w.host, 1e-5F, y.host);
      ops::rms_norm_forward(pair.device, part(x.device), w.device, 1e-5F, y.device);
      const Twin dw = pair.parameter_grads(w);
      ops::rms_norm_vjp(pair.host, part(x.host), w.host, 1e-5F, d.host, part(dx.host), accumulate, dw.host);
      ops::rms_norm_vjp(pair.device, part(x.device), w.device, 1e-5F, d.device, part(dx.device), accumulate, dw.device);
      pair.finish();
      pair.expect("y", y, kRounded);
      pair.expect("dx", dx, kRounded);
      pair.expect("dw", dw, 1e-4);
    }
  }
}

// Sites of a layer and a half: with and without a bank, with and without what came before.
TEST(TrainOpsGpu, SitesSanitize) {
  K3_NEEDS_GPU();
  for (const auto& [tokens, hidden] : {std::pair(333, 384), std::pair(50, 72), std::pair(12, 1280)}) {
    TrainPair pair;
    const Twin prefix = pair.activation({tokens, hidden}, 1), bank = pair.empty({3, tokens, hidden});
    const Twin delta = pair.activation({tokens, hidden}, 2), delta2 = pair.activation({tokens, hidden}, 3);
    const Twin norm = pair.vector(hidden, 4), projection = pair.vector(hidden, 5, 0.2F), query = pair.empty({hidden}, DType::f32);
    Twin dprefix, ddelta, ddelta2;
    Twin out[3];
    pair.keep(prefix, &dprefix);
    pair.keep(delta, &ddelta);
    pair.keep(delta2, &ddelta2);
    for (Twin& o : out) o = pair.empty({tokens, hidden});
    const auto run = [&](const Ctx& ctx, const auto& of) {
      ops::fold_query(ctx, of(norm), of(projection), of(query));
      ops::attn_res_site_train(ctx, ops::AttnResSite{.prefix = of(prefix), .bank_to = of(bank).at(0), .blocks = of(bank).slice(0, 0), .query = of(query), .norm = of(norm), .eps = 1e-5F, .out = of(out[0])});
      ops::attn_res_site_train(ctx, ops::AttnResSite{.delta = of(delta), .prefix = of(prefix), .bank_to = of(bank).at(1), .blocks = of(bank).slice(0, 1), .query = of(query), .norm = of(norm), .eps = 1e-5F, .out = of(out[1])});
      ops::attn_res_site_train(ctx, ops::AttnResSite{.delta = of(delta2), .prefix = of(prefix), .blocks = of(bank).slice(0, 2), .query = of(query), .norm = of(norm), .eps = 1e-5F, .out = of(out[2])});
    };
    run(pair.host, [](const Twin& t) { return t.host; });
    run(pair.device, [](const Twin& t) { return t.device; });
    pair.finish();
    for (int i = 0; i < 3; ++i) {
      pair.expect("out", out[i], kChain);
      pair.seed(out[i], 10 + static_cast<uint64_t>(i));
    }
    pair.backward();
    pair.expect("dprefix", dprefix, kChain);
    pair.expect("ddelta", ddelta, kChain);
    pair.expect("ddelta2", ddelta2, kChain);
    pair.expect("dnorm", pair.parameter_grads(norm), kChain);
    pair.expect("dprojection", pair.parameter_grads(projection), 2 * kChain);  // of scores: differences that cancel
  }
}

TEST(TrainOpsGpu, GluSanitize) {
  K3_NEEDS_GPU();
  for (const auto& kind : {Glu{}, Glu{GluKind::situ, 4.0F, 25.0F}, Glu{GluKind::situ, 4.0F, {}}}) {
    for (const int64_t width : {384, 37}) {
      TrainPair pair;
      const Twin gate = pair.activation({65, width}, 1, 3), up = pair.activation({65, width}, 2, 8), d = pair.activation({65, width}, 3);
      const Twin y = pair.empty({65, width}), dgate = pair.empty({65, width}), dup = pair.empty({65, width});
      Ctx host = pair.host, device = pair.device;
      host.tape = device.tape = nullptr;
      ops::glu_train(host, gate.host, up.host, kind, y.host);
      ops::glu_train(device, gate.device, up.device, kind, y.device);
      ops::glu_vjp(host, gate.host, up.host, kind, d.host, dgate.host, dup.host);
      ops::glu_vjp(device, gate.device, up.device, kind, d.device, dgate.device, dup.device);
      pair.finish();
      pair.expect("y", y, kRounded);
      pair.expect("dgate", dgate, kRounded);
      pair.expect("dup", dup, kRounded);
    }
  }
}

TEST(TrainOpsGpu, EmbeddingAndLossSanitize) {
  K3_NEEDS_GPU();
  for (const auto& [tokens, vocab, hidden] : {std::tuple(5000, 512, 384), std::tuple(70, 301, 72)}) {
    TrainPair pair;
    const auto count = static_cast<size_t>(tokens);
    std::vector<int32_t> ids(count), targets(count), order, starts, distinct;
    for (size_t t = 0; t < count; ++t) {
      ids[t] = static_cast<int32_t>(t % 3 == 0 ? 5 : t * 7919 % static_cast<size_t>(vocab));
      targets[t] = t % 7 == 2 ? -1 : static_cast<int32_t>(t * 104729 % static_cast<size_t>(vocab));
    }
    for (int32_t id = 0; id < vocab; ++id) {
      const size_t before = order.size();
      for (size_t t = 0; t < count; ++t) {
        if (ids[t] == id) order.push_back(static_cast<int32_t>(t));
      }
      if (order.size() == before) continue;
      distinct.push_back(id);
      starts.push_back(static_cast<int32_t>(before));
    }
    starts.push_back(static_cast<int32_t>(count));
    const std::vector<double> zero(1, 0.0);
    pair.step.tokens = pair.upload(std::span<const int32_t>(ids));
    pair.step.targets = pair.upload(std::span<const int32_t>(targets));
    pair.step.by_id = pair.upload(std::span<const int32_t>(order));
    pair.step.id_starts = pair.upload(std::span<const int32_t>(starts));
    pair.step.ids = pair.upload(std::span<const int32_t>(distinct));
    pair.step.distinct = static_cast<int64_t>(distinct.size());
    pair.step.nats = const_cast<double*>(pair.upload(std::span<const double>(zero)));
    const Twin table = pair.matrix(vocab, hidden, 1, 1), head = pair.matrix(vocab, hidden, 2, 0.1F), x = pair.empty({tokens, hidden});
    ops::embedding_train(pair.host, table.host_weight(), ids, x.host);
    ops::embedding_train(pair.device, table.device_weight(), ids, x.device);
    const ops::CrossEntropy loss = ops::cross_entropy(pair.host, x.host, head.host_weight(), targets, 0.5);
    EXPECT_EQ(loss.tokens, ops::cross_entropy(pair.device, x.device, head.device_weight(), targets, 0.5).tokens);
    pair.finish();
    double nats = 0;
    gpu_check(cudaMemcpy(&nats, pair.step.nats, 8, cudaMemcpyDeviceToHost), "copy");
    EXPECT_NEAR(loss.nats, nats, 1e-5 * loss.nats);
    pair.expect("dx", pair.grads(x), kRounded);
    pair.expect("dhead", pair.parameter_grads(head), kRounded);
    pair.backward();
    pair.expect("dtable", pair.parameter_grads(table), kRounded);
  }
}

struct RoutedCase {
  int64_t tokens, experts, topk, width, hidden;
  bool latent;  // norm behind the sum; else a shared down product
  bool mxfp8 = false;
};

void routed(const RoutedCase& c) {
  TrainPair pair;
  SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts {} x {}", c.tokens, c.topk, c.experts, c.width, c.hidden));
  pair.host.mxfp8_experts = pair.device.mxfp8_experts = c.mxfp8;
  const Twin z = pair.activation({c.tokens, c.width}, 1), logits = pair.numbers({c.tokens, c.experts}, 2, 2), bias = pair.numbers({c.experts}, 3, 0.2F);
  const float scale = 1 / std::sqrt(static_cast<float>(c.width));
  // One bank: w1, w2, w3 of each expert one behind the other.
  const int64_t each = c.width * c.hidden;
  const Twin bank = pair.matrix(c.experts, 3 * each, 4, scale);
  std::vector<ExpertWeights> host_experts, device_experts;
  for (int64_t e = 0; e < c.experts; ++e) {
    const auto weights = [&](const Tensor& t, Scheme scheme) {
      const auto at = [&](int64_t i, int64_t rows, int64_t cols) {
        return Weight{static_cast<const std::byte*>(t.data) + (e * 3 + i) * each * dtype_bytes(t.dtype), nullptr, scheme, rows, cols};
      };
      return ExpertWeights{at(0, c.hidden, c.width), at(1, c.width, c.hidden), at(2, c.hidden, c.width)};
    };
    host_experts.push_back(weights(bank.host, Scheme::f32));
    device_experts.push_back(weights(bank.device, Scheme::bf16));
  }
  const Twin norm = pair.vector(c.width, 5), out = pair.empty({c.tokens, c.width}), shared = pair.activation({c.tokens, 48}, 6);
  const Twin down = pair.matrix(c.width, 48, 7, 0.15F);
  Twin dz, dlogits, dshared;
  pair.keep(z, &dz);
  pair.keep(logits, &dlogits);
  pair.keep(shared, &dshared);
  const Twin load{Tensor(pair.host.workspace->bytes(c.experts * 4), DType::i32, {c.experts}), Tensor(pair.device.workspace->bytes(c.experts * 4), DType::i32, {c.experts})};
  std::memset(load.host.data, 0, static_cast<size_t>(c.experts * 4));
  gpu_check(cudaMemset(load.device.data, 0, static_cast<size_t>(c.experts * 4)), "zero");
  pair.host_tape.watch(bias.host.data, "load", load.host);
  pair.device_tape.watch(bias.device.data, "load", load.device);
  const auto run = [&](const Ctx& ctx, const auto& of, const std::vector<ExpertWeights>& experts, const Weight& shared_down) {
    RoutedExperts r;
    r.z = of(z), r.logits = of(logits), r.bias = of(bias), r.out = of(out);
    r.route = {.topk = c.topk, .renormalise = true, .scale = 1.5F};
    r.experts = experts;
    r.activation = {GluKind::situ, 4.0F, 25.0F};
    if (c.latent) {
      r.norm = of(norm);
    } else {
      r.shared_hidden = of(shared);
      r.shared_down = shared_down;
    }
    ops::routed_experts_train(ctx, r);
  };
  run(pair.host, [](const Twin& t) { return t.host; }, host_experts, down.host_weight());
  run(pair.device, [](const Twin& t) { return t.device; }, device_experts, down.device_weight());
  pair.finish();
  std::vector<int32_t> loads(static_cast<size_t>(c.experts));
  gpu_check(cudaMemcpy(loads.data(), load.device.data, loads.size() * 4, cudaMemcpyDeviceToHost), "copy");
  EXPECT_EQ(0, std::memcmp(loads.data(), load.host.data, loads.size() * 4));
  // Quantised inputs: a value between two of the 8 bits may fall to the other side (2^-3 of it); few do.
  pair.expect("out", out, c.mxfp8 ? 4e-2 : kChain);
  pair.seed(out, 9);
  pair.backward();
  const double tolerance = c.mxfp8 ? 4e-2 : kChain;
  pair.expect("dz", dz, tolerance);
  // Through the normalisation a difference that cancels: of a single token nearly all of it may.
  if (c.tokens > 1) pair.expect("dlogits", dlogits, 2 * tolerance);
  pair.expect("dexperts", pair.parameter_grads(bank), tolerance);
  if (c.latent) {
    pair.expect("dnorm", pair.parameter_grads(norm), tolerance);
  } else {
    pair.expect("dshared", dshared, tolerance);
    pair.expect("ddown", pair.parameter_grads(down), tolerance);
  }
}

TEST(TrainOpsGpu, RoutedExpertsSanitize) {
  K3_NEEDS_GPU();
  routed({70, 10, 3, 40, 72, false});
  routed({1, 4, 4, 32, 32, true});
  routed({300, 40, 8, 64, 32, true});
}
TEST(TrainOpsGpu, RoutedExperts) {
  K3_NEEDS_GPU();
  routed({3000, 32, 4, 192, 192, true});
  routed({1000, 256, 8, 96, 32, false});
  routed({2000, 32, 4, 192, 192, true, true});
}

struct MlaCase {
  int64_t heads, nope, rope, value, rank;
  bool gate;
  std::vector<int64_t> offsets;
};

void attention(const MlaCase& c) {
  TrainPair pair;
  const int64_t tokens = c.offsets.back(), width = c.nope + c.rope;
  SCOPED_TRACE(fmt::format("{} tokens, {} heads {} + {}, {}", tokens, c.heads, c.nope, c.rope, c.value));
  std::vector<int32_t> offsets(c.offsets.begin(), c.offsets.end());
  pair.step.offsets = pair.upload(std::span<const int32_t>(offsets));
  const Twin q = pair.activation({tokens, c.heads, width}, 1, 1.5F), kv = pair.activation({tokens, c.rank + c.rope}, 2), norm = pair.vector(c.rank, 3);
  const Twin kv_b = pair.matrix(c.heads * (c.nope + c.value), c.rank, 4, 1 / std::sqrt(static_cast<float>(c.rank)));
  const Twin gate = pair.activation({tokens, c.heads * c.value}, 5), out = pair.empty({tokens, c.heads, c.value});
  Twin dq, dkv, dgate;
  pair.keep(q, &dq);
  pair.keep(kv, &dkv);
  pair.keep(gate, &dgate);
  const Twin largest = pair.numbers({c.heads}, 6, 0);
  const Tensor host_largest = pair.host.workspace->tensor({c.heads}, DType::f64);
  std::fill_n(host_largest.f64(), c.heads, 0.0);
  pair.host_tape.watch(kv_b.host.data, "max_logit", host_largest);
  pair.device_tape.watch(kv_b.device.data, "max_logit", largest.device);
  const auto run = [&](const Ctx& ctx, const auto& of, const Weight& b) {
    MlaArgs m;
    m.kv = of(kv), m.kv_norm = of(norm), m.kv_eps = 1e-5F;
    m.q = of(q), m.kv_b = b;
    m.nope = c.nope, m.rope = c.rope, m.value = c.value, m.rank = c.rank;
    m.offsets = c.offsets;
    m.out = of(out);
    if (c.gate) m.gate = of(gate);
    ops::mla_train(ctx, m);
  };
  run(pair.host, [](const Twin& t) { return t.host; }, kv_b.host_weight());
  run(pair.device, [](const Twin& t) { return t.device; }, kv_b.device_weight());
  pair.finish();
  pair.expect("out", out, kChain);
  std::transform(host_largest.f64(), host_largest.f64() + c.heads, largest.host.f32(), [](double x) { return static_cast<float>(x); });
  pair.expect("largest", largest, kRounded);
  pair.seed(out, 9);
  pair.backward();
  // Keys and values are rounded products of rounded latents: two roundings before the softmax.
  pair.expect("dq", dq, 2 * kChain);
  pair.expect("dkv", dkv, 2 * kChain);
  if (c.gate) pair.expect("dgate", dgate, kChain);
  pair.expect("dnorm", pair.parameter_grads(norm), 2 * kChain);
  pair.expect("dkv_b", pair.parameter_grads(kv_b), 2 * kChain);
}

TEST(TrainOpsGpu, MlaSanitize) {
  K3_NEEDS_GPU();
  attention({2, 128, 64, 128, 64, true, {0, 1, 66, 66, 130}});
  attention({3, 20, 12, 24, 48, false, {0, 33, 100}});
}
TEST(TrainOpsGpu, Mla) {
  K3_NEEDS_GPU();
  attention({4, 128, 64, 128, 512, true, {0, 300, 1024, 1088}});
}

}  // namespace
}  // namespace k3::ops::cuda
