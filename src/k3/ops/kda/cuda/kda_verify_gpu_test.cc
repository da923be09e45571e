#include <gtest/gtest.h>

#include "k3/ops/kda/cuda/kda_verify_session_test.h"

namespace k3::ops::cuda {
namespace {

TEST(KdaVerifyGpu, SanitizeEveryDtype) {
  K3_NEEDS_GPU();
  WorstRatios f32("verify dtypes f32"), bf16("verify dtypes bf16");
  for (const bool conv_bf16 : {false, true}) {
    for (const bool state_bf16 : {false, true}) {
      for (const int32_t form : {0, 1}) {
        if (state_bf16 && form != 0) continue;
        VerifySession s(plain(1), 3, 8, 30, state_bf16, conv_bf16, 3);
        s.worst = state_bf16 ? &bf16 : &f32;
        s.form = form;
        s.run({same(3, 0), {3, 8, 0}}, "first");
        s.run({{2, 8, 0}, {1, 5, 2}, {1, 8, 0}}, "second");
        s.finish({1, 0, 2}, {1, 0, 1}, "commit");
        if (HasFailure()) return;
      }
    }
  }
}

// Many heads and requests, by both ways of bringing states.
TEST(KdaVerifyGpu, ManyPairs) {
  K3_NEEDS_GPU();
  for (const int32_t form : {0, 1}) {
    WorstRatios worst(fmt::format("verify many form {}", form));
    VerifySession s(plain(96), 7, 8, 2 * 56, false, true, 31);
    s.worst = &worst;
    s.form = form;
    s.run({same(7, 0), same(7, 8)}, "first");
    s.run({{0, 1, 3, 4, 6, 7, 8}, same(7, 8), {0, 0, 3, 2, 1, 7, 5}}, "second");
    s.finish({8, 7, 6, 5, 4, 3, 2}, {0, 1, 2, 3, 4, 3, 2}, "commit");
  }
}

TEST(KdaVerifyGpu, EveryAcceptedCount) {
  K3_NEEDS_GPU();
  for (const int kind : {0, 1, 2}) {  // FP32 by both ways, BF16
    const bool state_bf16 = kind == 2;
    for (const bool separate : {false, true}) {
      WorstRatios worst(fmt::format("replay T 8 {}{} form {}", state_bf16 ? "bf16" : "f32", separate ? " separate" : "", kind % 2));
      VerifySession s(plain(2), 9, 8, 3 * 72, state_bf16, true, 11);
      s.worst = &worst;
      s.separate = separate;
      s.form = kind % 2;
      std::vector<int32_t> up, down, half;
      for (int32_t i = 0; i <= 8; ++i) up.push_back(i), down.push_back(8 - i), half.push_back(i / 2);
      s.run({same(9, 0), same(9, 8)}, "first");
      s.run({up, same(9, 8), half}, "second");
      s.run({down, same(9, 8)}, "third");
      s.finish(up, half, "commit");
      if (HasFailure()) return;
    }
  }
}

TEST(KdaVerifyGpu, SixteenTokensAndAnyLength) {
  K3_NEEDS_GPU();
  for (const bool state_bf16 : {false, true}) {
    WorstRatios worst(fmt::format("replay T 16 {}", state_bf16 ? "bf16" : "f32"));
    VerifySession s(plain(1), 17, 16, 2 * 17 * 16 + 17 * 9, state_bf16, true, 12);
    s.worst = &worst;
    std::vector<int32_t> up;
    for (int32_t i = 0; i <= 16; ++i) up.push_back(i);
    s.run({same(17, 0), same(17, 16)}, "first");
    s.run({up, up}, "second");
    s.run({up, same(17, 9)}, "third");
    s.finish(same(17, 9), same(17, 4), "commit");
  }
}

TEST(KdaVerifyGpu, EveryInputSet) {
  K3_NEEDS_GPU();
  WorstRatios f32("verify input sets f32"), bf16("verify input sets bf16");
  for (const KdaCase& c : kda_input_sets(1, 128, {1})) {
    for (const bool state_bf16 : {false, true}) {
      VerifySession s(c, 2, 8, 32, state_bf16, true, 21);
      s.worst = state_bf16 ? &bf16 : &f32;
      s.run({same(2, 0), same(2, 8)}, c.name + " first");
      s.run({{8, 5}, same(2, 8)}, c.name + " second");
      s.finish({3, 8}, {0, 7}, c.name + " commit");
    }
  }
}

TEST(KdaVerifyGpu, HeadsOfTheModelAndNegativeSlots) {
  K3_NEEDS_GPU();
  WorstRatios worst("verify heads");
  VerifySession s(plain(12), 3, 8, 3 * 12, false, true, 5);
  s.worst = &worst;
  s.run({same(3, 0), same(3, 6)}, "first");
  s.check_negative_slot();
}

// One captured cycle, replayed with other counts and slots.
TEST(KdaVerifyGpu, GraphReplay) {
  K3_NEEDS_GPU();
  VerifySession s(plain(2), 3, 8, 24, false, true, 8);
  s.dependent = true;
  StepDevice& d = s.device();
  cudaStream_t stream = nullptr;
  gpu_check(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  s.set_counts(same(3, 0), {0, 8, 16, 24});
  const KdaVerifyArgs args = s.verify_args(false);
  gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  ASSERT_TRUE(kda_verify_cuda(args, stream).ok());
  gpu_check(cudaStreamEndCapture(stream, &graph), "capture");
  gpu_check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  const std::vector<VerifyCycle> cycles = {{{0, 0, 0}, {8, 8, 8}}, {{3, 0, 8}, {8, 4, 1}}, {{8, 4, 0}, {2, 2, 2}}};
  for (const VerifyCycle& cycle : cycles) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t n : cycle.counts) offsets.push_back(offsets.back() + n);
    s.set_counts(cycle.accepted, offsets);
    gpu_check(cudaGraphLaunch(exec, stream), "graph");
    gpu_check(cudaStreamSynchronize(stream), "graph");
    s.check(cycle, offsets, {}, "graph");
  }
  EXPECT_TRUE(d.guards_intact());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace k3::ops::cuda
