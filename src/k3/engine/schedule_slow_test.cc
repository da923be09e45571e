// 10,000 random schedules (schedule_test.cc).
#include "k3/engine/schedule_harness_test.h"

namespace k3::test {
namespace {

TEST(SlowSchedules, EveryAnswerIsThePlainLoops) {
  for (uint64_t seed = 1000001; seed <= 1010000 && !HasFailure(); ++seed) Schedule(seed).run();
}

}  // namespace
}  // namespace k3::test
