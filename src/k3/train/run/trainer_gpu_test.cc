// Whole runs on a GPU: stopped and resumed, and ended by a NaN.
#include "k3/train/run/trainer_test.h"

namespace k3::train {
namespace {

class TrainerGpu : public TrainerTest {};

TEST_F(TrainerGpu, ResumedRunsHaveTheLossesOfWholeOnes) { expect_resumes(config(), {1, 14, 20}, Device{0}); }

TEST_F(TrainerGpu, NumbersThatAreNoneEndTheRun) { expect_end_at_nan(Device{0}); }

}  // namespace
}  // namespace k3::train
