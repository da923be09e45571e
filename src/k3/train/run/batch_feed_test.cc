// The thread gives what PackedBatches gives, from any step, over the borders of phases; it ends when asked to, and tells what failed.
#include "k3/train/run/batch_feed.h"

#include <gtest/gtest.h>

#include "k3/train/data/prepared_data_test.h"

namespace k3::train {
namespace {

class BatchFeedTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = test_folder();
    text_.emplace(open_source(folder, write_source(folder, "a", text_documents({40, 7, 90, 25, 61, 200}), SourceKind::text)));
    chat_.emplace(open_source(folder, write_source(folder, "c", chat_documents({9, 30, 12, 8, 25}), SourceKind::chat)));
    const auto phase = [&](int64_t steps, int64_t micro_batches) {
      Phase out;
      out.steps = steps;
      out.sequence_tokens = 16;
      out.tokens_per_step = 128;
      out.micro_batches = micro_batches;
      return out;
    };
    config_.phases = {phase(5, 2), phase(0, 1), phase(4, 1), phase(6, 4)};
  }

  Result<PackedBatches> open(size_t p) const {
    PackOptions pack;
    pack.mixture = {{.source = &*text_}};
    if (p != 2) pack.mixture.push_back({.source = &*chat_, .share = 0.4});
    pack.seq_tokens = config_.phases[p].sequence_tokens;
    pack.tokens_per_step = config_.phases[p].tokens_per_step;
    pack.micro_batches = config_.phases[p].micro_batches;
    pack.phase = p;
    pack.pad = kTestPad;
    return PackedBatches::create(std::move(pack));
  }

  void expect_step(int64_t step, const StepBatches& given) const {
    const TrainConfig::Place place = config_.place(step);
    const PackedBatches batches = *open(place.phase);
    ASSERT_EQ(static_cast<size_t>(config_.phases[place.phase].micro_batches), given.micros.size()) << step;
    int64_t loss_tokens = 0;
    for (size_t m = 0; m < given.micros.size(); ++m) {
      PackedBatch wanted;
      batches.fill(step - place.first_step, static_cast<int64_t>(m), wanted);
      const MicroBatch& view = given.micros[m].view;
      EXPECT_TRUE(std::equal(wanted.tokens.begin(), wanted.tokens.end(), view.tokens.begin(), view.tokens.end())) << step;
      EXPECT_TRUE(std::equal(wanted.targets.begin(), wanted.targets.end(), view.targets.begin(), view.targets.end())) << step;
      EXPECT_TRUE(std::equal(wanted.offsets.begin(), wanted.offsets.end(), view.offsets.begin(), view.offsets.end())) << step;
      for (size_t i = 0; i < wanted.tokens.size(); ++i) {
        ASSERT_EQ(wanted.tokens[i] != kTestPad || wanted.targets[i] >= 0, view.valid[i] != 0) << step << ", " << i;
      }
      loss_tokens += wanted.loss_tokens;
    }
    EXPECT_EQ(loss_tokens, given.loss_tokens);
    EXPECT_EQ(128, given.tokens);
  }

  TrainConfig config_;
  std::optional<TokenShards> text_, chat_;
};

TEST_F(BatchFeedTest, GivesTheBatchesOfEveryStep) {
  for (const int64_t first : {0, 3, 5, 8, 14}) {
    BatchFeed feed(config_, {}, kTestPad, [&](size_t p) { return open(p); }, first);
    for (int64_t step = first; step < config_.total_steps(); ++step) {
      const Result<StepBatches*> given = feed.next();
      ASSERT_TRUE(given.ok()) << given.error().message;
      expect_step(step, **given);
    }
  }
}

TEST_F(BatchFeedTest, EndsWhileItHasWork) {
  for (int taken = 0; taken < 6; ++taken) {
    BatchFeed feed(config_, {}, kTestPad, [&](size_t p) { return open(p); }, 0);
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(feed.next().ok());
  }
}

TEST_F(BatchFeedTest, TellsWhatFailedWhenItsTurnComes) {
  const auto fails = [&](size_t p) -> Result<PackedBatches> {
    if (p == 2) return fail(Code::not_found, "no such source");
    return open(p);
  };
  BatchFeed feed(config_, {}, kTestPad, fails, 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(feed.next().ok());
  const Result<StepBatches*> missing = feed.next();
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ("no such source", missing.error().message);
}

// Thrown in the feed's thread, it would end the program.
TEST_F(BatchFeedTest, SaysThatMemoryIsMissing) {
  const auto none = [](size_t) -> Result<PackedBatches> { throw std::bad_alloc(); };
  BatchFeed feed(config_, {}, kTestPad, none, 2);
  const Result<StepBatches*> missing = feed.next();
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(Code::exhausted, missing.error().code);
  EXPECT_NE(std::string::npos, missing.error().message.find("step 3")) << missing.error().message;
}

}  // namespace
}  // namespace k3::train
