// Requests of lengths and block keys alone: what the engine does with them, and what it refuses.
#include <gmock/gmock.h>

#include "k3/engine/core.h"

namespace k3 {
namespace {

using testing::HasSubstr;

constexpr int64_t kBlock = 64;

// A second a step; remembers the steps.
class CountingExecutor final : public Executor {
 public:
  Result<Tensor> step(std::span<const StepItem> items) override {
    now_ += 1;
    last.assign(items.begin(), items.end());
    ++steps;
    return Tensor();
  }
  double now_seconds() const override { return now_; }
  int64_t most_tokens() const override { return int64_t{1} << 20; }
  int64_t most_rows() const override { return int64_t{1} << 20; }
  int64_t repeat(std::span<const StepItem>, int64_t most) override {
    const int64_t done = std::min(most, most_repeats);
    now_ += static_cast<double>(done);
    repeated += done;
    return done;
  }
  int64_t decode_tokens(RequestId, int64_t, int64_t) override { return tokens_of_a_step; }

  int64_t steps = 0, repeated = 0, most_repeats = 0, tokens_of_a_step = 1;
  std::vector<StepItem> last;

 private:
  double now_ = 0;
};

struct Lab {
  CoreOptions options;
  CountingExecutor executor;
  std::unique_ptr<cache::HybridCache> cache;
  std::unique_ptr<EngineCore> core;
  std::vector<RequestSummary> done = std::vector<RequestSummary>(16);

  explicit Lab(int64_t pages = 200) {
    options.block_tokens = kBlock;
    options.ctx_tokens = 4096;
    options.step_tokens = 4096;
    cache::CacheOptions c;
    c.shape = cache::make_shape({2, 6, 500, 100, 8}, {}, kBlock).value();
    c.pool_bytes = pages * c.shape.page_bytes;
    c.backed = c.compare_tokens = false;
    cache = cache::HybridCache::create(c).value();
    core = std::make_unique<EngineCore>(options, *cache, executor);
  }

  // Keys of equal ids are equal; the answer's too.
  Request request(uint64_t id, int64_t prompt, int64_t output, int64_t arrived = 0, int64_t continues = 0) {
    auto modelled = std::make_shared<ModelledTokens>();
    modelled->prompt_tokens = prompt;
    modelled->arrived_tokens = arrived;
    for (int64_t i = 0; i < (prompt + output) / kBlock; ++i) modelled->keys.push_back({id, static_cast<uint64_t>(i) + 1});
    if (continues > 0) modelled->session = 7, modelled->continues_tokens = continues;
    Request r;
    r.modelled = modelled;
    r.max_tokens = output;
    return r;
  }
  void submit(uint64_t number, Request r) {
    r.callbacks.on_done = [this, number](const RequestSummary& s) { done[number] = s; };
    core->submit(RequestId{number}, std::move(r));
  }
  void run() {
    while (core->has_work()) ASSERT_TRUE(core->step());
  }
};

TEST(ModelledRequests, ComputeTheirPromptAndAStepForEachFurtherToken) {
  Lab lab;
  lab.submit(1, lab.request(1, 300, 10));
  lab.run();
  EXPECT_EQ(lab.executor.steps, 10);
  EXPECT_EQ(lab.done[1].generated_tokens, 10);
  EXPECT_EQ(lab.done[1].computed_tokens, 300);
  EXPECT_TRUE(lab.cache->check().ok());
}

TEST(ModelledRequests, HitByTheirKeys) {
  Lab lab;
  lab.submit(1, lab.request(1, 300, 2));
  lab.run();
  lab.submit(2, lab.request(1, 320, 2));
  lab.submit(3, lab.request(9, 320, 2));
  lab.run();
  EXPECT_EQ(lab.done[2].admitted.cached_tokens, 256);
  EXPECT_EQ(lab.done[3].admitted.cached_tokens, 0);
}

TEST(ModelledRequests, AnIdleSequenceGoesOnToTheToken) {
  Lab lab;
  lab.submit(1, lab.request(1, 300, 11, 0, 1));
  lab.run();
  lab.submit(2, lab.request(1, 400, 2, 0, 311));
  lab.run();
  EXPECT_TRUE(lab.done[2].admitted.resumed_idle);
  EXPECT_EQ(lab.done[2].admitted.cached_tokens, 310);  // the last token of an answer is not in the cache
  EXPECT_EQ(lab.done[2].computed_tokens, 90);
}

TEST(ModelledRequests, WhatHasArrivedIsNotComputed) {
  Lab lab;
  lab.submit(1, lab.request(1, 301, 5, 300));
  ASSERT_TRUE(lab.core->step());
  ASSERT_EQ(lab.executor.last.size(), 1u);
  EXPECT_TRUE(lab.executor.last[0].decode);
  EXPECT_EQ(lab.executor.last[0].history, 300);
  lab.run();
  EXPECT_EQ(lab.executor.steps, 5);
  EXPECT_EQ(lab.done[1].computed_tokens, 0);
  // Later requests find it.
  lab.submit(2, lab.request(1, 400, 1));
  lab.run();
  EXPECT_EQ(lab.done[2].admitted.cached_tokens, 256);
}

// An idle sequence of 310 tokens goes on with a prompt of which 700 have come: it needs the pages for them first.
TEST(ModelledRequests, WhatHasArrivedGetsItsPages) {
  Lab lab;
  lab.submit(1, lab.request(1, 300, 11, 0, 1));
  lab.run();
  lab.submit(2, lab.request(1, 701, 3, 700, 311));
  lab.run();
  EXPECT_TRUE(lab.done[2].admitted.resumed_idle);
  EXPECT_EQ(lab.done[2].computed_tokens, 0);
  EXPECT_TRUE(lab.cache->check().ok());
}

TEST(ModelledRequests, StepsAreRepeatedWhereNothingElseHappens) {
  Lab lab;
  lab.executor.most_repeats = 1000;
  lab.submit(1, lab.request(1, 100, 200));
  lab.submit(2, lab.request(2, 120, 150));
  lab.run();
  EXPECT_EQ(lab.done[1].generated_tokens, 200);
  EXPECT_EQ(lab.done[2].generated_tokens, 150);
  EXPECT_EQ(lab.executor.steps + lab.executor.repeated, 200);
  EXPECT_EQ(lab.executor.now_seconds(), 200);
  EXPECT_LT(lab.executor.steps, 40);  // a block's end of either, and the two ends
}

TEST(ModelledRequests, AStepMayBringSeveralTokens) {
  Lab lab;
  lab.executor.tokens_of_a_step = 4;
  lab.submit(1, lab.request(1, 100, 11));
  lab.run();
  EXPECT_EQ(lab.executor.steps, 1 + 3);  // 1, then 4, 4, 2
  EXPECT_EQ(lab.done[1].generated_tokens, 11);
}

TEST(ModelledRequests, WhatIsNoRequestIsNamed) {
  Lab lab;
  const auto message = [&](const Request& r) {
    const Status status = check_request(lab.options, r);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(message(lab.request(1, 100, 1)), "");
  EXPECT_THAT(message(lab.request(1, 0, 1)), HasSubstr("prompt is empty"));
  EXPECT_THAT(message(lab.request(1, 4096, 1)), HasSubstr("context is 4096"));
  EXPECT_THAT(message(lab.request(1, 100, 1, 100)), HasSubstr("100 of them there"));
  EXPECT_THAT(message(lab.request(1, 100, 0)), HasSubstr("0 to generate"));
  Request short_of_keys = lab.request(1, 100, 100);
  short_of_keys.max_tokens = 400;
  EXPECT_THAT(message(short_of_keys), HasSubstr("with 3 keys"));
}

}  // namespace
}  // namespace k3
