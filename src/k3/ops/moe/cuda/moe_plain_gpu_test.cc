// The plain experts against moe_ref.
#include "k3/ops/moe/cuda/moe_plain.h"

#include <gtest/gtest.h>

#include "k3/ops/moe/cuda/moe_experts_gpu_test.h"

namespace k3::ops::cuda {
namespace {

struct Problem {
  MoeWeights kind = MoeWeights::mxfp4;
  int tokens = 1, experts = 4, topk = 2, width = 32, hidden = 32;
  Glu glu = {GluKind::situ, 4.0F, 25.0F};
  int first = 0, local = 0;
  int scale_low = 118, scale_high = 124;
};

void check(const Problem& p) {
  SCOPED_TRACE(fmt::format("tokens {} of {} experts, {} x {}", p.tokens, p.experts, p.width, p.hidden));
  const int local = local_experts(p);
  const std::vector<FileWeight> files = file_weights(p, 1);
  // Codes of w1 and w3, then their scales; w2 alike.
  std::vector<uint8_t> gate_up, down;
  const auto append = [](std::vector<uint8_t>& to, const std::vector<uint8_t>& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (int e = p.first; e < p.first + local; ++e) {
    const FileWeight* w = &files[static_cast<size_t>(3 * e)];
    for (const size_t m : {0U, 2U}) append(gate_up, w[m].data);
    for (const size_t m : {0U, 2U}) append(gate_up, w[m].scales);
    append(down, w[1].data);
    append(down, w[1].scales);
  }
  ASSERT_EQ(static_cast<int64_t>(gate_up.size()), local * moe_plain_bytes(p.kind, 2 * p.hidden, p.width));
  ASSERT_EQ(static_cast<int64_t>(down.size()), local * moe_plain_bytes(p.kind, p.width, p.hidden));
  std::vector<float> z = random_bf16(int64_t{p.tokens} * p.width, 101);
  Routing routing = random_routing(p.tokens, p.experts, p.topk, 201);
  const std::vector<float> want = moe_reference(p, z, routing, files);
  const DeviceArray<uint8_t> gate_up_d(gate_up), down_d(down);
  const DeviceArray<uint16_t> z_d(to_bf16(z)), hidden(int64_t{p.tokens} * p.topk * p.hidden), out(int64_t{p.tokens} * p.width);
  const DeviceArray<int32_t> ids(routing.ids);
  const DeviceArray<float> gates(routing.weights);
  MoePlain m;
  m.weights = {p.kind, local, p.width, p.hidden, gate_up_d.data(), down_d.data(), nullptr};
  m.glu = {p.glu.kind == GluKind::situ, p.glu.beta, p.glu.linear_beta.value_or(0)};
  m.z = z_d.data();
  m.ids = ids.data();
  m.gates = gates.data();
  m.tokens = p.tokens;
  m.topk = p.topk;
  m.first_expert = p.first;
  m.hidden = hidden.data();
  m.out = out.data();
  ASSERT_EQ(moe_plain_launch(m, nullptr), 0);
  gpu_sync();
  EXPECT_LE(norm_ratio(from_bf16(out.get()), want), kMoeTolerance);
  EXPECT_TRUE(out.guards_intact() && hidden.guards_intact());
}

TEST(MoePlainGpu, SanitizeKindsAndShares) {
  K3_NEEDS_GPU();
  check({});
  check({.tokens = 9, .experts = 7, .topk = 3, .width = 96, .hidden = 64, .glu = {}, .scale_low = 100, .scale_high = 128});
  check({.kind = MoeWeights::bf16, .tokens = 5, .experts = 6, .topk = 4, .width = 40, .hidden = 24});
  check({.tokens = 6, .experts = 8, .topk = 4, .width = 64, .hidden = 32, .first = 2, .local = 3});
}

}  // namespace
}  // namespace k3::ops::cuda
