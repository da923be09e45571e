// Cache on equals cache off, bit for bit, whatever happens meanwhile. 10,000 more in the slow suite.
#include "k3/engine/schedule_harness_test.h"

namespace k3::test {
namespace {

TEST(Schedules, EveryAnswerIsThePlainLoops) {
  constexpr uint64_t kSchedules = 300;
  for (uint64_t seed = 1; seed <= kSchedules && !HasFailure(); ++seed) Schedule(seed).run();
  // The schedules would prove nothing if nothing had happened.
  EXPECT_GT(Schedule::hits, 1000);
  EXPECT_GT(Schedule::preemptions, 20);
  EXPECT_GT(Schedule::evictions, 100);
}

}  // namespace
}  // namespace k3::test
