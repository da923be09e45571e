// What runs where: the plan, without a GPU.
#include <gtest/gtest.h>

#include "k3/ops/kda/cuda/kda_prefill_cuda.h"

namespace k3::ops::cuda {
namespace {

const DeviceInfo kH200{.sm_count = 132, .capability = 90};

TEST(KdaPrefillPlan, OnlyHopperTakesChunksAndNoBoundsBetween) {
  KdaPrefillShape shape{8192, 12, 1, 8192};
  EXPECT_EQ(kda_prefill_plan(shape, {.sm_count = 108, .capability = 80}).form, KdaPrefillForm::recurrent);
  shape.lower_bound = std::nullopt;
  EXPECT_EQ(kda_prefill_plan(shape, kH200).form, KdaPrefillForm::segments);
  shape.lower_bound = -6;
  EXPECT_EQ(kda_prefill_plan(shape, kH200).form, KdaPrefillForm::recurrent);
}

TEST(KdaPrefillPlan, FewHeadsAndLongPromptsAreCut) {
  for (const int64_t tokens : {8192, 32768, 131072}) {
    const KdaPrefillPlan plan = kda_prefill_plan({tokens, 12, 1, tokens}, kH200);
    EXPECT_EQ(plan.form, KdaPrefillForm::segments) << tokens;
    EXPECT_EQ(plan.segment % 16, 0);
    EXPECT_GE((tokens + plan.segment - 1) / plan.segment, 3);
    EXPECT_EQ(kda_prefill_plan({tokens, 96, 1, tokens}, kH200).form, KdaPrefillForm::fused) << tokens;
  }
  const KdaPrefillPlan brief = kda_prefill_plan({1024, 12, 1, 1024}, kH200);
  EXPECT_EQ(brief.form, KdaPrefillForm::fused);
  EXPECT_TRUE(brief.pairs);  // 24 of 132 multiprocessors
  EXPECT_FALSE(kda_prefill_plan({1024, 96, 1, 1024}, kH200).pairs);
  EXPECT_EQ(kda_prefill_plan({1, 12, 1, 1}, kH200).form, KdaPrefillForm::fused);
  EXPECT_EQ(kda_prefill_plan({32768, 12, 64, 512}, kH200).form, KdaPrefillForm::fused);  // many sequences fill the device
}

TEST(KdaPrefillPlan, WorkspaceHoldsTheMapOfEveryPiece) {
  const KdaPrefillShape shape{1000, 3, 4, 900};
  const KdaPrefillPlan plan{KdaPrefillForm::segments, 64, false};
  // Indices are offset / segment + sequence + piece; the last one possible belongs to the last sequence's last piece.
  EXPECT_EQ(kda_prefill_workspace_bytes(shape, plan), (1000 / 64 + 4) * 3 * 2 * 128 * 128 * 4);
  EXPECT_EQ(kda_prefill_workspace_bytes(shape, {KdaPrefillForm::fused, 0, false}), 0);
}

}  // namespace
}  // namespace k3::ops::cuda
