// The experts of one token against the double reference, again and again on the same counters.
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
  int shared = 0;  // columns
};

void check(const Problem& p) {
  SCOPED_TRACE(name_of(p));
  const int local = local_experts(p);
  const std::vector<FileWeight> files = file_weights(p, 1);
  const PackedExperts d = pack_experts(p, files, p.first, local);
  std::vector<float> z = random_bf16(p.width, 2);
  const DeviceArray<uint16_t> d_z(to_bf16(z)), add(to_bf16(random_bf16(p.width, 9)));
  const DeviceArray<float> logits(random_normal(p.experts, 3)), bias(random_normal(p.experts, 4, 0.1F)), weights(p.topk);
  const DeviceArray<int32_t> ids(p.topk);
  ASSERT_TRUE(router_cuda({.logits = logits.data(),
                           .bias = bias.data(),
                           .ids = ids.data(),
                           .weights = weights.data(),
                           .tokens = 1,
                           .experts = p.experts,
                           .topk = p.topk,
                           .scale = 2.5F},
                          nullptr)
                  .ok());
  gpu_sync();
  Routing routing;
  routing.ids = ids.get(), routing.weights = weights.get();
  std::vector<float> want = moe_reference(p, z, routing, files);
  std::vector<float> hidden = random_bf16(std::max(p.shared, 8), 12);
  const OwnedWeight w = random_weight(Scheme::bf16, p.width, std::max(p.shared, 8), 13);
  const DeviceArray<uint16_t> d_hidden(to_bf16(hidden));
  const DeviceArray<uint8_t> d_w(w.data);
  const DeviceArray<uint8_t> workspace(moe_stream_workspace_bytes(1, p.topk, local, p.hidden));
  workspace.zero();
  const auto run = [&](bool routes, bool adds, bool shared) {
    const DeviceArray<float> slot_out(static_cast<int64_t>(p.topk) * p.width), sums(p.width);
    const DeviceArray<uint16_t> out(p.width);
    MoeStreamCuda a{.weights = d.view, .glu = moe_glu_of(p.glu), .z = d_z.data(), .tokens = 1, .topk = p.topk, .first_expert = p.first};
    if (routes) {
      a.route = {.logits = logits.data(), .bias = bias.data(), .experts = p.experts, .scale = 2.5F};
    } else {
      a.ids = ids.data();
      a.sum.weights = weights.data();
    }
    if (shared) a.shared = {d_w.data(), d_hidden.data(), p.shared};
    a.slot_out = slot_out.data();
    a.workspace = workspace.data();
    a.sum.out = out.data();
    if (!shared) a.sum.out_f32 = sums.data();
    if (adds) a.sum.add = add.data();
    EXPECT_TRUE(moe_stream_cuda(a, nullptr).ok());
    gpu_sync();
    EXPECT_TRUE(out.guards_intact() && slot_out.guards_intact() && sums.guards_intact() && workspace.guards_intact());
    return std::pair(out.get(), sums.get());
  };
  const auto [first, sums] = run(false, false, false);
  EXPECT_LT(norm_ratio(from_bf16(first), want), kMoeTolerance);
  for (int again = 0; again < 20; ++again) ASSERT_EQ(run(true, false, false).first, first) << again;
  const std::vector<float> more = from_bf16(add.get()), added = from_bf16(run(true, true, false).first);
  for (size_t i = 0; i < added.size(); ++i) ASSERT_EQ(added[i], round_to_bf16(sums[i] + more[i])) << i;
  if (p.shared == 0) return;
  std::vector<float> product(want.size());
  linear_ref(matrix(hidden.data(), 1, p.shared), w.view(), matrix(product.data(), 1, p.width), false);
  for (size_t i = 0; i < want.size(); ++i) want[i] += product[i];
  const auto with_shared = run(true, false, true).first;
  EXPECT_LT(norm_ratio(from_bf16(with_shared), want), kMoeTolerance);
  EXPECT_EQ(run(false, false, true).first, with_shared);
}

TEST(MoeOneCuda, SanitizeSmallest) {
  K3_NEEDS_GPU();
  check({.experts = 4, .topk = 2, .width = 32, .hidden = 32});
  check({.kind = MoeWeights::bf16, .experts = 5, .topk = 2, .width = 40, .hidden = 24, .shared = 8});
}

TEST(MoeOneCuda, AgreesWithTheReference) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    check({.kind = kind, .experts = 9, .topk = 8, .width = 2304, .hidden = 1024, .shared = 1024});
    check({.kind = kind, .experts = 40, .topk = 16, .width = 288, .hidden = 160, .glu = {GluKind::situ, 4.0F, 25.0F}, .shared = 136});
    check({.kind = kind, .experts = 17, .topk = 16, .width = 3584, .hidden = 96, .glu = {GluKind::situ, 4.0F, 25.0F}});
    check({.kind = kind, .experts = 64, .topk = 8, .width = 544, .hidden = 96, .first = 16, .local = 20, .shared = 64});
    check({.kind = kind, .experts = 64, .topk = 2, .width = 96, .hidden = 64, .first = 60, .local = 1, .shared = 64});  // none is here
  }
  check({.experts = 3, .topk = 2, .width = 3584, .hidden = 3072, .glu = {GluKind::situ, 4.0F, 25.0F}});
}

}  // namespace
}  // namespace k3::ops::cuda
