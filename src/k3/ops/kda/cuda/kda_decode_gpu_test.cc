#include <gtest/gtest.h>

#include "k3/ops/kda/cuda/kda_decode_session_test.h"

namespace k3::ops::cuda {
namespace {

constexpr double kOutTolerance = DecodeSession::kOutTolerance;

// `steps` tokens of every request.
void compare(const KdaCase& shape, int64_t requests, int64_t steps, const DecodeForm& form, WorstRatios& worst) {
  DecodeSession s(shape, requests, steps, form, 5 + static_cast<uint64_t>(form.form));
  s.worst = &worst;
  for (int64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) s.step();
  s.check_rest_of_memory();
}

TEST(KdaDecodeGpu, SanitizeEveryFormAndDtype) {
  K3_NEEDS_GPU();
  WorstRatios f32("decode forms f32"), bf16("decode forms bf16");
  for (int form = 0; form <= 4; ++form) {
    compare(plain(1), 1, 2, {.form = form}, f32);
    compare(plain(1), 1, 2, {.form = form, .state_bf16 = true}, bf16);
  }
  compare(plain(3), 2, 2, {.conv_bf16 = false}, f32);
  compare(plain(3), 2, 2, {.form = 1, .conv_bf16 = false}, f32);
}

// z and the gate of products of low rank, which have more than 16 bits here.
TEST(KdaDecodeGpu, SanitizeLowRank) {
  K3_NEEDS_GPU();
  WorstRatios f32("decode low rank f32"), bf16("decode low rank bf16");
  for (const DecodeLow low : {DecodeLow::z, DecodeLow::z_and_gate}) {
    compare(plain(3), 2, 2, {.form = 2, .low = low}, f32);
    compare(plain(3), 2, 2, {.form = 2, .state_bf16 = true, .low = low}, bf16);
  }
}

TEST(KdaDecodeGpu, EveryInputSet) {
  K3_NEEDS_GPU();
  WorstRatios f32("decode input sets f32"), bf16("decode input sets bf16");
  for (const KdaCase& c : kda_input_sets(2, 128, {1})) {
    compare(c, 2, 3, {.form = 4}, f32);
    compare(c, 2, 3, {.form = 3, .state_bf16 = true}, bf16);
    compare(c, 2, 1, {}, f32);
  }
}

TEST(KdaDecodeGpu, ShapesOfTheModel) {
  K3_NEEDS_GPU();
  WorstRatios f32("decode shapes f32"), bf16("decode shapes bf16");
  for (const auto& [heads, requests] : {std::pair{12, 1}, {96, 1}, {12, 8}, {5, 33}, {96, 4}}) {
    compare(plain(heads), requests, 1, {}, f32);
    compare(plain(heads), requests, 1, {.state_bf16 = true}, bf16);
  }
}

TEST(KdaDecodeGpu, SanitizeNegativeSlots) {
  K3_NEEDS_GPU();
  for (int form = 1; form <= 4; ++form) {
    DecodeSession s(plain(2), 3, 1, {.form = form}, 9);
    s.lose_slot(1);
    s.step();
    s.check_rest_of_memory();
  }
}

TEST(KdaDecodeGpu, SanitizeWithAndWithoutRest) {
  K3_NEEDS_GPU();
  for (int form = 1; form <= 4; ++form) check_rest_changes_nothing({.form = form}, 13);
  check_rest_changes_nothing({.form = 2, .low = DecodeLow::z_and_gate}, 13);
}

// A captured step is replayed for other requests by changing the slot array alone.
TEST(KdaDecodeGpu, GraphReplayWithChangedSlots) {
  K3_NEEDS_GPU();
  StepProblem p(plain(2), 4, 4, false, true, 31);
  StepDevice d(p);
  const std::vector<int32_t> all = d.slots;
  std::vector<RequestState> states = p.initial;
  cudaStream_t stream = nullptr;
  gpu_check(cudaStreamCreate(&stream), "stream");
  KdaDecodeArgs args = d.decode(0, 0);
  args.batch = 2;
  args.launch.dependent = 1;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  ASSERT_TRUE(kda_decode_cuda(args, stream).ok());
  gpu_check(cudaStreamEndCapture(stream, &graph), "capture");
  gpu_check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  for (const auto& [first, second] : {std::pair<size_t, size_t>{0, 1}, {3, 2}, {1, 3}}) {
    std::vector<int32_t> slots = all;
    slots[0] = all[first], slots[1] = all[second];
    d.set_slots(slots);
    gpu_check(cudaGraphLaunch(exec, stream), "graph");
    gpu_check(cudaStreamSynchronize(stream), "graph");
    for (size_t i = 0; i < 2; ++i) {
      const size_t r = i == 0 ? first : second;
      std::vector<float> expected(static_cast<size_t>(p.width));
      RequestState& state = states[r];
      p.advance(static_cast<int64_t>(i), 1, state, expected.data());
      EXPECT_LE(norm_ratio(d.out(static_cast<int64_t>(i), 1), expected), kOutTolerance);
      const std::vector<float> got = d.state_of(all[r]);
      EXPECT_LE(norm_ratio(got, state.state), DecodeSession::state_tolerance(false));
      EXPECT_TRUE(d.conv_is(all[r], state));
      state.state = got;
    }
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Steps that may overlap give the bits of steps that wait for each other.
TEST(KdaDecodeGpu, DependentLaunchesChangeNothing) {
  K3_NEEDS_GPU();
  constexpr int64_t kSteps = 12, kRequests = 3;
  for (const int form : {2, 1, 3}) {
    StepProblem p(plain(4), kSteps * kRequests, kRequests, false, true, 77);
    StepDevice a(p), b(p);
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(kda_decode_cuda(a.decode(step * kRequests, form), nullptr).ok());
      gpu_sync();
    }
    for (int64_t step = 0; step < kSteps; ++step) {
      KdaDecodeArgs args = b.decode(step * kRequests, form);
      args.launch.dependent = 1;
      ASSERT_TRUE(kda_decode_cuda(args, nullptr).ok());
    }
    gpu_sync();
    EXPECT_EQ(a.out(0, kSteps * kRequests), b.out(0, kSteps * kRequests));
    for (const int32_t slot : a.slots) {
      EXPECT_EQ(a.state_bytes_of(slot), b.state_bytes_of(slot));
      EXPECT_EQ(a.conv_bytes_of(slot), b.conv_bytes_of(slot));
    }
  }
}

// Rounding to BF16 once a step must not drift (kernels.md 9): 4,096 steps. Where the gate keeps nearly all, the format
// itself is off by 2 %: there the kernel is held to what double arithmetic makes of the same roundings.
TEST(KdaDecodeGpu, LongRunsStayNearTheReference) {
  K3_NEEDS_GPU();
  constexpr int64_t kSteps = 4096;
  KdaCase keep = plain(1);
  keep.name = "keep", keep.z_scale = 0, keep.z_offset = -8;
  for (const KdaCase& c : {plain(1), keep}) {
    for (const bool bf16 : {false, true}) {
      StepProblem p(c, kSteps, 1, bf16, true, 3);
      StepDevice d(p);
      for (int64_t step = 0; step < kSteps; ++step) ASSERT_TRUE(kda_decode_cuda(d.decode(step, 0), nullptr).ok());
      gpu_sync();
      RequestState s = p.initial[0], rounded = p.initial[0];
      std::vector<float> expected(static_cast<size_t>(kSteps * p.width)), other = expected;
      p.advance(0, kSteps, s, expected.data());
      double allowed = bf16 ? 2e-2 : 1e-5, allowed_out = bf16 ? 2e-2 : kOutTolerance;
      if (bf16 && c.name == "keep") {
        for (int64_t step = 0; step < kSteps; ++step) {
          p.advance(step, 1, rounded, other.data() + step * p.width);
          for (float& v : rounded.state) v = round_to_bf16(v);
        }
        allowed = 1.1 * norm_ratio(rounded.state, s.state);
      }
      const double state = norm_ratio(d.state_of(d.slots[0]), s.state), out = norm_ratio(d.out(0, kSteps), expected);
      fmt::print("  {} {} after {} steps: out {:.2e}, state {:.2e} (allowed {:.2e})\n", c.name, bf16 ? "bf16" : "f32",
                 kSteps, out, state, allowed);
      EXPECT_LE(state, allowed);
      EXPECT_LE(out, allowed_out);
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
