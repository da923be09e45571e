// Experts on the GPU: packing bit for bit, the streaming passes and the weighted sum against the double reference.
#include <gtest/gtest.h>

#include <numeric>

#include "k3/ops/moe/cuda/moe_experts_gpu_test.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Problem {
  MoeWeights kind = MoeWeights::mxfp4;
  int tokens = 1, experts = 4, topk = 2, width = 32, hidden = 32;
  Glu glu = {GluKind::situ, 4.0F, 25.0F};
  int first = 0, local = 0;  // local 0: all
  int count = -1;            // tokens really there
  int scale_low = 118, scale_high = 124;
  float input = 1;  // deviation of z
  bool one_expert = false;
  bool norm = false;
};

void check(const Problem& p, uint64_t seed = 1) {
  const std::string name = name_of(p);
  SCOPED_TRACE(name);
  const int local = local_experts(p);
  const std::vector<FileWeight> files = file_weights(p, seed);
  const PackedExperts d = pack_experts(p, files, p.first, local);
  std::vector<float> z = random_bf16(static_cast<int64_t>(p.tokens) * p.width, seed + 100, p.input);
  Routing routing = random_routing(p.tokens, p.experts, p.topk, seed + 200);
  if (p.one_expert) {
    for (int t = 0; t < p.tokens; ++t) {  // slot 0 of every token: expert 1
      int32_t* mine = routing.ids.data() + t * p.topk;
      for (int j = 1; j < p.topk; ++j) {
        if (mine[j] == 1) mine[j] = mine[0];
      }
      mine[0] = 1;
    }
  }
  const std::vector<float> want = moe_reference(p, z, routing, files);

  const int64_t slots = static_cast<int64_t>(p.tokens) * p.topk;
  const DeviceArray<uint16_t> d_z(to_bf16(z)), out(static_cast<int64_t>(p.tokens) * p.width),
      normed(static_cast<int64_t>(p.tokens) * p.width);
  const DeviceArray<int32_t> d_ids(routing.ids), d_count(std::vector<int32_t>{p.count});
  const DeviceArray<float> d_weights(routing.weights), slot_out(slots * p.width),
      sums(static_cast<int64_t>(p.tokens) * p.width);
  const DeviceArray<uint8_t> workspace(moe_stream_workspace_bytes(p.tokens, p.topk, local, p.hidden));
  workspace.zero();
  MoeStreamCuda args{.weights = d.view,
                     .glu = moe_glu_of(p.glu),
                     .z = d_z.data(),
                     .ids = d_ids.data(),
                     .token_count = p.count < 0 ? nullptr : d_count.data(),
                     .tokens = p.tokens,
                     .topk = p.topk,
                     .first_expert = p.first,
                     .slot_out = slot_out.data(),
                     .workspace = workspace.data()};
  ASSERT_EQ(moe_stream_cuda(args, nullptr).code, 0);
  const std::vector<float> gain = random_bf16(p.width, seed + 300);
  const DeviceArray<uint16_t> d_gain(to_bf16(gain));
  MoeCombineCuda combine{.slot_out = slot_out.data(),
                         .ids = d_ids.data(),
                         .weights = d_weights.data(),
                         .token_count = args.token_count,
                         .tokens = p.tokens,
                         .topk = p.topk,
                         .width = p.width,
                         .experts = local,
                         .first_expert = p.first,
                         .out = out.data(),
                         .out_f32 = sums.data()};
  ASSERT_EQ(moe_combine_cuda(combine, nullptr).code, 0);
  combine.out = normed.data();
  combine.norm_weight = d_gain.data();
  ASSERT_EQ(moe_combine_cuda(combine, nullptr).code, 0);
  gpu_sync();

  const int counted = p.count < 0 ? p.tokens : p.count;
  std::vector<float> got = from_bf16(out.get()), slot_values = slot_out.get(), got_sums = sums.get(),
                     got_normed = from_bf16(normed.get());
  const auto used = static_cast<size_t>(counted) * static_cast<size_t>(p.width);
  for (size_t i = used; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
  for (size_t s = 0; s < static_cast<size_t>(slots); ++s) {  // rows of slots that are not ours stay as they were
    const bool ours =
        s < static_cast<size_t>(counted * p.topk) && routing.ids[s] >= p.first && routing.ids[s] < p.first + local;
    ASSERT_EQ(!ours, std::isnan(slot_values[s * static_cast<size_t>(p.width)])) << "slot " << s;
  }
  const std::span<const float> ref = std::span(want).first(used);
  const double error = norm_ratio(std::span<const float>(got).first(used), ref),
               exact = norm_ratio(std::span<const float>(got_sums).first(used), ref);
  fmt::print("{}: {:.2e}, before rounding {:.2e}\n", name, error, exact);
  EXPECT_LT(error, kMoeTolerance);
  if (!(error < kMoeTolerance)) {
    size_t shown = 0;
    for (size_t i = 0; i < used && shown < 6; ++i) {
      if (std::abs(got_sums[i] - want[i]) <= 0.02F * std::abs(want[i]) + 1e-3F) continue;
      fmt::print("  first wrong: token {} column {}: {} for {}\n", i / static_cast<size_t>(p.width),
                 i % static_cast<size_t>(p.width), got_sums[i], want[i]);
      ++shown;
    }
  }
  const std::vector<float> want_normed = normed_rows(std::span(got).first(used), gain, static_cast<double>(combine.eps));
  EXPECT_LT(norm_ratio(std::span<const float>(got_normed).first(used), std::span<const float>(want_normed)), 3e-3);
  for (const auto* a : {&out, &normed}) EXPECT_TRUE(a->guards_intact());
  EXPECT_TRUE(slot_out.guards_intact() && workspace.guards_intact() && sums.guards_intact());

  const DeviceArray<uint16_t> fused(normed.size());  // again, with the sum in the same launch: the same bits
  const DeviceArray<float> fused_sums(sums.size());
  args.sum = {.weights = d_weights.data(), .out = fused.data(), .out_f32 = fused_sums.data(), .norm_weight = d_gain.data()};
  ASSERT_EQ(moe_stream_cuda(args, nullptr).code, 0);
  gpu_sync();
  const std::vector<float> again = slot_out.get(), again_sums = fused_sums.get();
  EXPECT_EQ(compare_bytes(again.data(), slot_values.data(), again.size() * 4), 0);
  EXPECT_EQ(compare_bytes(again_sums.data(), got_sums.data(), again_sums.size() * 4), 0);
  EXPECT_LT(norm_ratio(std::span<const float>(from_bf16(fused.get())).first(used), std::span<const float>(want_normed)),
            3e-3);
  EXPECT_TRUE(fused.guards_intact() && fused_sums.guards_intact());
}

std::vector<uint16_t> unpacked(MoeWeights kind, const uint8_t* packed, bool w13, int rows, int cols) {
  const DeviceArray<uint16_t> out(static_cast<int64_t>(rows) * cols);
  EXPECT_EQ(moe_unpack_cuda(kind, packed, w13, rows, cols, out.data(), nullptr).code, 0);
  gpu_sync();
  EXPECT_TRUE(out.guards_intact());
  return out.get();
}

// Every code at every place of a word, under every scale byte in [low, high].
void check_dequantisation(int low, int high) {
  Problem p{.experts = 1, .width = 544, .hidden = 96};
  std::vector<FileWeight> files;
  for (int m = 0; m < 3; ++m) {
    const int64_t rows = m == 1 ? p.width : p.hidden, cols = m == 1 ? p.hidden : p.width;
    FileWeight w = file_weight(p.kind, rows, cols, 5 + static_cast<uint64_t>(m), low, high);
    for (size_t i = 0; i < w.scales.size(); ++i)
      w.scales[i] = static_cast<uint8_t>(low + static_cast<int>(i) % (high - low + 1));
    w.scales[3] = static_cast<uint8_t>(high);
    mxfp4_dequantise_ref(w.data.data(), w.scales.data(), rows, cols, w.values.data());
    files.push_back(std::move(w));
  }
  const PackedExperts d = pack_experts(p, files, 0, 1);
  const std::vector<float> factors = d.factors.get();
  const std::vector<uint16_t> w13 = unpacked(p.kind, d.w13.data(), true, 2 * p.hidden, p.width),
                              w2 = unpacked(p.kind, d.w2.data(), false, p.width, p.hidden);
  const auto compare = [&](const uint16_t* got, const FileWeight& w, float factor, const char* name) {
    EXPECT_EQ(factor, std::ldexp(1.0F, std::max(0, high - 128)));
    for (size_t i = 0; i < w.values.size(); ++i) {
      const float want = w.values[i];
      if (w.scales[i / 32] < high - 128) continue;  // lost beside the largest
      const float value = bf16_to_float(got[i]) * factor;
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(want))
          << name << " element " << i << " scale " << int{w.scales[i / 32]} << ": " << value << " for " << want;
    }
  };
  const size_t one = files[0].values.size();
  compare(w13.data(), files[0], factors[0], "w1");
  compare(w13.data() + one, files[2], factors[2], "w3");
  compare(w2.data(), files[1], factors[1], "w2");
}

TEST(MoeStreamCuda, SanitizeDequantisationIsExact) {
  K3_NEEDS_GPU();
  check_dequantisation(0, 128);
  check_dequantisation(120, 122);
  check_dequantisation(127, 252);
  check_dequantisation(2, 250);
}

TEST(MoeStreamCuda, SanitizeBf16PacksAndUnpacks) {
  K3_NEEDS_GPU();
  const Problem p{.kind = MoeWeights::bf16, .experts = 1, .width = 200, .hidden = 72};
  std::vector<FileWeight> files;
  for (int m = 0; m < 3; ++m)
    files.push_back(
        file_weight(p.kind, m == 1 ? p.width : p.hidden, m == 1 ? p.hidden : p.width, 9 + static_cast<uint64_t>(m), 0, 0));
  const PackedExperts d = pack_experts(p, files, 0, 1);
  const std::vector<float> w13 = from_bf16(unpacked(p.kind, d.w13.data(), true, 2 * p.hidden, p.width));
  std::vector<float> both = files[0].values;
  both.insert(both.end(), files[2].values.begin(), files[2].values.end());
  EXPECT_EQ(w13, both);
  EXPECT_EQ(from_bf16(unpacked(p.kind, d.w2.data(), false, p.width, p.hidden)), files[1].values);
}

TEST(MoeStreamCuda, SanitizeSmallest) {
  K3_NEEDS_GPU();
  check({.tokens = 1, .experts = 4, .topk = 2, .width = 32, .hidden = 32});
  check({.kind = MoeWeights::bf16, .tokens = 3, .experts = 5, .topk = 2, .width = 40, .hidden = 24});
  check({.tokens = 9, .experts = 9, .topk = 2, .width = 96, .hidden = 64});
  check({.kind = MoeWeights::bf16, .tokens = 17, .experts = 3, .topk = 2, .width = 136, .hidden = 40});
  check({.tokens = 0, .experts = 4, .topk = 2, .width = 32, .hidden = 32});
}

TEST(MoeStreamCuda, TokensInOrder) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    check({.kind = kind, .tokens = 2, .experts = 40, .topk = 16, .width = 288, .hidden = 160});
    check({.kind = kind, .tokens = 8, .experts = 40, .topk = 16, .width = 544, .hidden = 96});
    check({.kind = kind,
           .tokens = 8,
           .experts = 12,
           .topk = 4,
           .width = 160,
           .hidden = 544,
           .glu = {GluKind::silu, 1.0F, {}}});
    check({.kind = kind, .tokens = 7, .experts = 16, .topk = 4, .width = 96, .hidden = 96, .first = 4, .local = 5});
    check({.kind = kind, .tokens = 8, .experts = 16, .topk = 4, .width = 96, .hidden = 96, .count = 5});
    check({.kind = kind, .tokens = 8, .experts = 3, .topk = 2, .width = 96, .hidden = 96, .one_expert = true});
  }
}

TEST(MoeStreamCuda, TokensByPlan) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    check({.kind = kind, .tokens = 16, .experts = 60, .topk = 8, .width = 288, .hidden = 96});
    check({.kind = kind,
           .tokens = 33,
           .experts = 100,
           .topk = 4,
           .width = 96,
           .hidden = 288,
           .glu = {GluKind::situ, 4.0F, {}}});
    check({.kind = kind, .tokens = 70, .experts = 5, .topk = 2, .width = 160, .hidden = 96});  // more than 16 rows an expert
    check({.kind = kind, .tokens = 40, .experts = 64, .topk = 4, .width = 96, .hidden = 64, .first = 16, .local = 16});
    check({.kind = kind, .tokens = 40, .experts = 64, .topk = 4, .width = 96, .hidden = 64, .count = 11});
    check({.kind = kind, .tokens = 60, .experts = 64, .topk = 2, .width = 96, .hidden = 64, .one_expert = true});
  }
}

TEST(MoeStreamCuda, WholeWidths) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    check({.kind = kind, .tokens = 1, .experts = 3, .topk = 2, .width = 3584, .hidden = 3072});
    check({.kind = kind,
           .tokens = 9,
           .experts = 2,
           .topk = 1,
           .width = 2304,
           .hidden = 1024,
           .glu = {GluKind::silu, 1.0F, {}}});
  }
}

TEST(MoeStreamCuda, ScalesAtTheEndsOfTheirRange) {
  K3_NEEDS_GPU();
  check({.tokens = 3,
         .experts = 4,
         .topk = 2,
         .width = 288,
         .hidden = 96,
         .scale_low = 236,
         .scale_high = 242,
         .input = 0x1p-118F});
  check({.tokens = 3,
         .experts = 4,
         .topk = 2,
         .width = 288,
         .hidden = 96,
         .scale_low = 1,
         .scale_high = 6,
         .input = 0x1p118F});
  check({.tokens = 20,
         .experts = 9,
         .topk = 2,
         .width = 288,
         .hidden = 96,
         .scale_low = 0,
         .scale_high = 252,
         .input = 0x1p-110F});
}

}  // namespace
}  // namespace k3::ops::cuda
