// What the core does for a GPU: steps of one phase, and an end when the device is lost.
#include <gtest/gtest.h>

#include "k3/engine/core_requests_test.h"
#include "k3/engine/tiny_model_test.h"

namespace k3::test {
namespace {

class Failing final : public Executor {
 public:
  explicit Failing(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    if (lost) return fail(Code::device_lost, "waiting for the GPU: an illegal address");
    return model_.step(items);
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }

  bool lost = false;

 private:
  Executor& model_;
};

TEST(EngineCore, ALostDeviceEndsEveryRequestWithItsError) {
  TinyEngine e(exact(), 40, [](TinyEngine& t) { t.options.max_running = 1; });
  Failing failing(*e.executor);
  EngineCore core(e.options, *e.cache, failing);
  std::vector<Outcome> outs(3);
  for (size_t i = 0; i < 2; ++i) {  // one runs, one waits
    Request r = request(ids(50, i), 10);
    listen(r, outs[i]);
    core.submit(RequestId{i + 1}, std::move(r));
  }
  core.step();
  EXPECT_TRUE(core.device_status().ok());
  failing.lost = true;
  core.step();
  EXPECT_EQ(core.device_status().error().code, Code::device_lost);
  Request late = request(ids(50, 2), 10);
  listen(late, outs[2]);
  core.submit(RequestId{3}, std::move(late));
  core.step();
  for (const Outcome& out : outs) {
    ASSERT_EQ(out.done, 1);
    EXPECT_EQ(out.summary->error->code, Code::device_lost);
    EXPECT_NE(out.summary->error->message.find("illegal address"), std::string::npos);
  }
  EXPECT_FALSE(core.has_work());
  e.cache->clear_quarantine();
  EXPECT_TRUE(e.cache->check().ok());
}

// What a GPU wants of a step: prompts or single tokens, and prompts that reach back only so far together.
class PhaseWatch final : public Executor {
 public:
  explicit PhaseWatch(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    int64_t decodes = 0, prefills = 0, keys = 0;
    for (const StepItem& item : items) {
      const bool decode = item.history >= prompt_size(item);
      ++(decode ? decodes : prefills);
      if (!decode) keys += item.history + item.token_count;
    }
    mixed += decodes > 0 && prefills > 0 ? 1 : 0;
    if (prefills > 1) most_keys = std::max(most_keys, keys);
    shared += prefills > 1 ? 1 : 0;
    return model_.step(items);
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }

  std::vector<std::vector<int32_t>> prompts;
  int64_t mixed = 0, shared = 0, most_keys = 0;

 private:
  // Of the request that an item belongs to: its tokens lie behind those before it.
  int64_t prompt_size(const StepItem& item) const {
    for (const auto& prompt : prompts) {
      const size_t known = std::min(prompt.size(), static_cast<size_t>(item.history + item.token_count));
      if (std::equal(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(known), item.tokens.data() - item.history)) {
        return static_cast<int64_t>(prompt.size());
      }
    }
    return 0;
  }
  Executor& model_;
};

TEST(EngineCore, PhasesTakeTurnsWhereAStepHasOneOfThem) {
  for (const int64_t keys : {0, 120}) {
    TinyEngine e(exact(), 90, [&](TinyEngine& t) {
      t.options.separate_phases = true;
      t.options.prefill_keys = keys;
      t.options.step_tokens = 32;
    });
    PhaseWatch watch(*e.executor);
    EngineCore core(e.options, *e.cache, watch);
    std::vector<Outcome> outs(6);
    std::vector<Request> plain;
    for (size_t i = 0; i < outs.size(); ++i) {
      plain.push_back(request(ids(i % 2 == 0 ? 200 : 40, i), 12));
      watch.prompts.push_back(plain.back().prompt);
    }
    for (size_t i = 0, step = 0; i < outs.size() || core.has_work(); ++step) {
      ASSERT_LT(step, 1000u);
      if (i < outs.size() && step % 3 == 0) {
        Request r = plain[i];
        listen(r, outs[i]);
        core.submit(RequestId{i + 1}, std::move(r));
        ++i;
      }
      core.step();
    }
    EXPECT_EQ(watch.mixed, 0);
    EXPECT_GT(watch.shared, 0);
    if (keys > 0) {
      EXPECT_LE(watch.most_keys, keys);
    }
    for (size_t i = 0; i < outs.size(); ++i) EXPECT_EQ(outs[i].ids[0], plain_answer(plain[i], 0, exact(), 400)) << i;
  }
}

}  // namespace
}  // namespace k3::test
