// Speculative windows of delta attention, as for Hopper, by the sessions of the tests on a GPU: with copies that land late,
// warps in random order.
#include "k3/ops/kda/cuda/kda_verify_session_test.h"
#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {
namespace {

void pace(uint32_t seed, uint32_t latest = 400) {
  emulator::set_options({.seed = seed, .late_copies = true, .latest = latest});
}

// FP32 by both ways, BF16.
struct Kind {
  bool state_bf16 = false;
  int32_t form = 0;
};
constexpr Kind kKinds[] = {{false, 0}, {false, 1}, {true, 0}};

TEST(KdaVerifyEmulated, EveryAcceptedCount) {
  for (const Kind& kind : kKinds) {
    pace(1);
    VerifySession s(plain(1), 9, 8, 2 * 72, kind.state_bf16, true, 11);
    s.form = kind.form;
    std::vector<int32_t> up, down;
    for (int32_t i = 0; i <= 8; ++i) up.push_back(i), down.push_back(8 - i);
    s.run({same(9, 0), same(9, 8)}, "first");
    s.run({up, same(9, 8)}, "second");
    s.finish(down, same(9, 0), "commit");
    ASSERT_FALSE(HasFailure()) << emulator::failure();
  }
}

// Exports at a boundary, windows of fewer tokens or none, both kinds of conv state, several heads; in one call, or a commit
// and a verification.
TEST(KdaVerifyEmulated, ExportsAndFewTokens) {
  uint32_t seed = 20;
  for (const Kind& kind : kKinds) {
    for (const bool conv_bf16 : {false, true}) {
      for (const bool separate : {false, true}) {
        pace(++seed, 3000);
        VerifySession s(plain(2), 3, 8, 30, kind.state_bf16, conv_bf16, seed);
        s.form = kind.form;
        s.separate = separate;
        s.dependent = !separate;
        s.run({same(3, 0), {3, 8, 0}}, "first");
        s.run({{2, 8, 0}, {1, 5, 2}, {1, 6, 0}}, "second");
        s.run({{1, 3, 2}, {0, 7, 1}, {0, 2, 2}}, "third");
        s.finish({0, 7, 1}, {0, 4, 1}, "commit");
        ASSERT_FALSE(HasFailure()) << emulator::failure();
      }
    }
  }
}

TEST(KdaVerifyEmulated, SixteenTokens) {
  for (const bool state_bf16 : {false, true}) {
    pace(50);
    VerifySession s(plain(1), 3, 16, 2 * 48, state_bf16, true, 12);
    s.run({same(3, 0), same(3, 16)}, "first");
    s.run({{16, 9, 1}, {16, 7, 12}, {11, 8, 0}}, "second");
    s.finish({13, 7, 9}, {12, 3, 0}, "commit");
    ASSERT_FALSE(HasFailure()) << emulator::failure();
  }
}

// A request without a slot: zeros, and what it had stays.
TEST(KdaVerifyEmulated, NegativeSlot) {
  for (const Kind& kind : kKinds) {
    pace(60);
    VerifySession s(plain(2), 3, 8, 3 * 12, kind.state_bf16, true, 5);
    s.form = kind.form;
    s.run({same(3, 0), same(3, 6)}, "first");
    s.check_negative_slot();
    ASSERT_FALSE(HasFailure()) << emulator::failure();
  }
}

// Many schedules, copies that come very late, new rows that the kernel before still writes.
TEST(KdaVerifyEmulated, Schedules) {
  for (const Kind& kind : kKinds) {
    for (uint32_t seed = 100; seed < 112; ++seed) {
      pace(seed, 20000);
      VerifySession s(plain(1), 1, 8, 24, kind.state_bf16, seed % 2 == 0, seed);
      s.form = kind.form;
      s.dependent = seed % 3 != 0, s.early = seed % 3 == 1;
      if (s.dependent) {
        s.young = [seed](std::span<uint16_t> rows) {
          const std::span<char> bytes(reinterpret_cast<char*>(rows.data()), rows.size_bytes());
          emulator::set_options({.seed = seed, .late_copies = true, .latest = 20000, .before = {bytes}});
        };
      }
      s.run({{0}, {8}}, "first");
      s.run({{5}, {7}, {3}}, "second");
      s.run({{7}, {8}}, "third");
      ASSERT_FALSE(HasFailure()) << emulator::failure();
      emulator::set_options({});
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
