// Routing inside the streaming kernel, and what may follow its sum, against the same in launches of their own.
#include <gtest/gtest.h>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/moe/cuda/moe_experts_gpu_test.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "k3/ops/router/cuda/router_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Problem {
  MoeWeights kind = MoeWeights::mxfp4;
  int tokens = 1, experts = 4, topk = 2, width = 32, hidden = 32;
  Glu glu = {};
  int first = 0, local = 0;
  int count = -1;
  int scale_low = 118, scale_high = 124;
  bool bias = true;
  int ties = 0;  // so many logits are equal
};

void check(const Problem& p) {
  SCOPED_TRACE(name_of(p));
  ASSERT_TRUE(moe_stream_routes(p.tokens, p.topk));
  const int local = local_experts(p);
  Problem few = p;  // weights of local experts alone
  few.experts = local, few.first = 0;
  const PackedExperts d = pack_experts(few, file_weights(few, 1), 0, local);
  const int64_t numbers = static_cast<int64_t>(p.tokens) * p.width, slots = static_cast<int64_t>(p.tokens) * p.topk;
  std::vector<float> logits = random_normal(static_cast<int64_t>(p.tokens) * p.experts, 7);
  for (int i = 0; i < p.ties; ++i) logits[static_cast<size_t>(i)] = 1;
  const DeviceArray<uint16_t> z(to_bf16(random_bf16(numbers, 8))), add(to_bf16(random_bf16(numbers, 9)));
  const DeviceArray<float> d_logits(logits), bias(random_normal(p.experts, 10, 0.1F)), weights(slots);
  const std::vector<float> gain = random_bf16(p.width, 11);
  const DeviceArray<uint16_t> gain_bf16(to_bf16(gain));
  const DeviceArray<float> gain_f32(gain);
  const DeviceArray<int32_t> ids(slots), count(std::vector<int32_t>{p.count});
  const DeviceArray<uint8_t> workspace(moe_stream_workspace_bytes(p.tokens, p.topk, local, p.hidden));
  workspace.zero();
  ASSERT_TRUE(router_cuda({.logits = d_logits.data(),
                           .bias = p.bias ? bias.data() : nullptr,
                           .ids = ids.data(),
                           .weights = weights.data(),
                           .tokens = p.tokens,
                           .experts = p.experts,
                           .topk = p.topk,
                           .scale = 2.5F},
                          nullptr)
                  .ok());
  MoeStreamCuda args{.weights = d.view,
                     .glu = moe_glu_of(p.glu),
                     .z = z.data(),
                     .token_count = p.count < 0 ? nullptr : count.data(),
                     .tokens = p.tokens,
                     .topk = p.topk,
                     .first_expert = p.first,
                     .workspace = workspace.data()};
  const auto run = [&](bool routes, const MoeCombineCuda& sum) {
    const DeviceArray<float> slot_out(slots * p.width), sums(numbers);
    const DeviceArray<uint16_t> out(numbers);
    args.ids = routes ? nullptr : ids.data();
    args.route = {};
    if (routes) {
      args.route = {.logits = d_logits.data(), .bias = p.bias ? bias.data() : nullptr, .experts = p.experts, .scale = 2.5F};
    }
    args.slot_out = slot_out.data();
    args.sum = sum;
    args.sum.weights = routes ? nullptr : weights.data();
    args.sum.out = out.data();
    args.sum.out_f32 = sums.data();
    EXPECT_TRUE(moe_stream_cuda(args, nullptr).ok());
    gpu_sync();
    EXPECT_TRUE(out.guards_intact() && slot_out.guards_intact() && sums.guards_intact() && workspace.guards_intact());
    return std::pair(out.get(), sums.get());
  };
  const auto [plain, sums] = run(false, {});
  EXPECT_EQ(run(true, {}).first, plain);
  const auto normed = run(false, {.norm_weight = gain_bf16.data()}).first;
  EXPECT_EQ(run(true, {.norm_weight = gain_bf16.data()}).first, normed);
  EXPECT_EQ(run(true, {.norm_weight = gain_f32.data(), .norm_f32 = true}).first, normed);
  // Added before the one rounding.
  const std::vector<float> more = from_bf16(add.get()), added = from_bf16(run(true, {.add = add.data()}).first);
  const int counted = p.count < 0 ? p.tokens : p.count;
  for (size_t i = 0; i < static_cast<size_t>(counted) * static_cast<size_t>(p.width); ++i) {
    ASSERT_EQ(added[i], round_to_bf16(sums[i] + more[i])) << i;
  }
  // The shared experts' product in the same launch.
  for (const int64_t columns : {8, 136, 1024}) {
    if (!moe_stream_takes_shared(d.view, p.tokens, p.topk, columns, device_info())) continue;
    std::vector<float> hidden = random_bf16(p.tokens * columns, 12);
    const OwnedWeight w = random_weight(Scheme::bf16, p.width, columns, 13);
    const DeviceArray<uint16_t> d_hidden(to_bf16(hidden));
    const DeviceArray<uint8_t> d_w(w.data);
    std::vector<float> product(static_cast<size_t>(numbers));
    linear_ref(matrix(hidden.data(), p.tokens, columns), w.view(), matrix(product.data(), p.tokens, p.width), false);
    args.shared = {d_w.data(), d_hidden.data(), static_cast<int>(columns)};
    const DeviceArray<float> slot_out(slots * p.width);
    const DeviceArray<uint16_t> out(numbers);
    args.slot_out = slot_out.data();
    args.sum = {.out = out.data()};
    ASSERT_TRUE(moe_stream_cuda(args, nullptr).ok());
    gpu_sync();
    args.shared = {};
    const auto used = static_cast<size_t>(counted) * static_cast<size_t>(p.width);
    std::vector<float> got = from_bf16(out.get()), want(sums.begin(), sums.begin() + static_cast<int64_t>(used));
    got.resize(used);
    for (size_t i = 0; i < used; ++i) want[i] += product[i];
    EXPECT_LE(norm_ratio(got, want), 3e-3) << columns;
    EXPECT_TRUE(out.guards_intact());
  }
}

TEST(MoeRouteCuda, SanitizeSmallest) {
  K3_NEEDS_GPU();
  check({.tokens = 1, .experts = 4, .topk = 2, .width = 32, .hidden = 32});
  check({.kind = MoeWeights::bf16, .tokens = 3, .experts = 5, .topk = 2, .width = 40, .hidden = 24, .bias = false});
}

TEST(MoeRouteCuda, SameAsInLaunchesOfTheirOwn) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    check({.kind = kind, .tokens = 1, .experts = 32, .topk = 8, .width = 2304, .hidden = 96});
    check({.kind = kind, .tokens = 8, .experts = 64, .topk = 16, .width = 544, .hidden = 96, .bias = false});
    check({.kind = kind, .tokens = 5, .experts = 256, .topk = 8, .width = 96, .hidden = 64, .first = 32, .local = 48});
    check({.kind = kind, .tokens = 2, .experts = 896, .topk = 16, .width = 512, .hidden = 32, .first = 112, .local = 112});
    check({.kind = kind, .tokens = 8, .experts = 16, .topk = 4, .width = 96, .hidden = 96, .count = 5});
    check({.kind = kind, .tokens = 2, .experts = 256, .topk = 8, .width = 96, .hidden = 64, .local = 200, .ties = 200});
  }
}

}  // namespace
}  // namespace k3::ops::cuda
