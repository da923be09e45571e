// The engine core: sharing of steps, choices, ends, faults, slots.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/engine/core_requests_test.h"
#include "k3/engine/tiny_model_test.h"
#include "k3/engine/scheduler.h"

namespace k3::test {
namespace {

void run_all(EngineCore& core) {
  for (int i = 0; core.has_work(); ++i) {
    ASSERT_LT(i, 10000);
    core.step();
  }
}

// Counts the rows that a step asks for.
class RowCounter final : public Executor {
 public:
  explicit RowCounter(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    Result<Tensor> logits = model_.step(items);
    if (logits.ok()) most = std::max(most, logits->dim(0));
    return logits;
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return 9; }

  int64_t most = 0;

 private:
  Executor& model_;
};

TEST(Scheduler, ShortPromptsDoNotWaitForLongOnesNorLongOnesForever) {
  EXPECT_EQ(share_prefill(std::vector<int64_t>{100000, 40}, 512), (std::vector<int64_t>{472, 40}));
  EXPECT_EQ(share_prefill(std::vector<int64_t>{100000, 1000, 1000}, 512), (std::vector<int64_t>{128, 384, 0}));
  EXPECT_EQ(share_prefill(std::vector<int64_t>{1000, 1000}, 512), (std::vector<int64_t>{512, 0}));
  EXPECT_EQ(share_prefill(std::vector<int64_t>{0, 0, 7}, 3), (std::vector<int64_t>{0, 0, 3}));
  EXPECT_EQ(share_prefill(std::vector<int64_t>{5, 5}, 0), (std::vector<int64_t>{0, 0}));
  EXPECT_TRUE(share_prefill({}, 10).empty());
}

TEST(Scheduler, OrderOfPrecedence) {
  const Candidate first{.order = 1}, second{.order = 2}, resumed{.order = 9, .resumed = true};
  const Candidate urgent{.order = 5, .due_seconds = 3}, later{.order = 4, .due_seconds = 8}, high{.order = 7, .priority = 1};
  EXPECT_TRUE(goes_before(SchedulePolicy::fcfs, first, second));
  EXPECT_TRUE(goes_before(SchedulePolicy::fcfs, resumed, first));
  EXPECT_TRUE(goes_before(SchedulePolicy::fcfs, first, high));
  EXPECT_TRUE(goes_before(SchedulePolicy::slo, high, urgent));
  EXPECT_TRUE(goes_before(SchedulePolicy::slo, urgent, later));
  EXPECT_TRUE(goes_before(SchedulePolicy::slo, later, first));
  EXPECT_EQ(choose_victim(SchedulePolicy::fcfs, std::vector<Candidate>{first, urgent, second}), 1u);
}

TEST(EngineCore, ABiasThatForbidsEveryTokenIsTheRequestsFault) {
  TinyEngine e(exact(), 60);
  Outcome out;
  Request r = request(ids(20), 3);
  r.choices = 2;
  for (int32_t id = 0; id < 96; ++id) r.sampling.logit_bias.emplace_back(id, -100.0F);
  listen(r, out);
  e.submit(std::move(r));
  run_all(*e.core);
  ASSERT_TRUE(out.summary && out.summary->error);
  EXPECT_EQ(out.summary->error->code, Code::invalid_argument);
  EXPECT_EQ(out.summary->error->message.substr(0, 12), "logit_bias: ");
}

TEST(EngineCore, AShortRequestIsServedWhileALongPromptIsRead) {
  TinyEngine e(exact(), 60, [](TinyEngine& t) { t.options.step_tokens = 32; });
  Outcome slow, fast;
  Request a = request(ids(380), 2), b = request(ids(20, 4), 3);
  listen(a, slow);
  listen(b, fast);
  e.submit(std::move(a));
  e.core->step();
  e.submit(std::move(b));
  int steps = 0;
  for (; fast.done == 0; ++steps) e.core->step();
  EXPECT_LE(steps, 4);
  EXPECT_EQ(slow.done, 0);
  run_all(*e.core);
  EXPECT_EQ(slow.done, 1);
}

TEST(EngineCore, ChoicesShareThePromptAndDrawFromTheirOwnStreams) {
  TinyEngine e(exact(), 40);
  Outcome out;
  Request r = request(ids(70), 12);
  r.choices = 4;
  r.sampling.temperature = 1;
  r.sampling.seed = 11;
  const Request plain = r;
  listen(r, out);
  e.submit(std::move(r));
  run_all(*e.core);
  EXPECT_EQ(out.summary->computed_tokens, 70);  // once for all
  for (int32_t c = 0; c < 4; ++c) EXPECT_EQ(out.ids[static_cast<size_t>(c)], plain_answer(plain, c, exact(), 400)) << c;
  EXPECT_NE(out.ids[0], out.ids[1]);
}

TEST(EngineCore, LogprobsAreThoseOfTheModelAndOfThePrompt) {
  TinyEngine e(exact(), 40);
  const std::vector<int32_t> prompt = ids(40);
  Request r = request(prompt, 3);
  r.logprobs = 2;
  r.prompt_logprobs = true;
  std::vector<float> of_prompt, of_answer;
  std::vector<int32_t> answer;
  r.callbacks.on_prompt_token = [&](int64_t position, float logprob, const std::vector<TokenLogprob>& top) {
    EXPECT_EQ(position, static_cast<int64_t>(of_prompt.size()) + 1);
    ASSERT_EQ(top.size(), 2u);
    EXPECT_GE(top[0].logprob, top[1].logprob);
    of_prompt.push_back(logprob);
  };
  r.callbacks.on_token = [&](const GeneratedToken& token) {
    EXPECT_EQ(token.top->at(0).id, token.id);  // greedy
    EXPECT_EQ(token.top->at(0).logprob, token.logprob);
    of_answer.push_back(token.logprob);
    answer.push_back(token.id);
    return true;
  };
  e.submit(std::move(r));
  run_all(*e.core);
  RunnerOptions options;
  static_cast<ComputeMode&>(options) = exact();
  Runner runner = Runner::create(*tiny().model, tiny().pool, options).value();
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const StepInput whole{0, all, StepInput::Logits::all};
  const Tensor logits = runner.step(std::span(&whole, 1)).value();
  ASSERT_EQ(of_prompt.size(), 39u);
  ASSERT_EQ(of_answer.size(), 3u);
  for (size_t t = 0; t + 1 < all.size(); ++t) {
    const ops::LogProbs probs({logits.row(static_cast<int64_t>(t)), static_cast<size_t>(logits.dim(1))});
    EXPECT_EQ(t < 39 ? of_prompt[t] : of_answer[t - 39], probs.of(all[t + 1])) << t;
  }
}

// Rows of logits are bounded by a memory plan: those of prompts leave one to everybody else.
TEST(EngineCore, LogprobsOfPromptsShareTheRowsOfAStep) {
  TinyEngine e(exact(), 60);
  RowCounter counter(*e.executor);
  EngineCore core(e.options, *e.cache, counter);
  std::vector<Outcome> outs(4);
  std::vector<int64_t> told(4, 0);
  for (size_t i = 0; i < outs.size(); ++i) {
    Request r = request(ids(40, i), 6);
    r.prompt_logprobs = i % 2 == 0;
    r.logprobs = 1;
    listen(r, outs[i]);
    r.callbacks.on_prompt_token = [&told, i](int64_t, float, const auto&) { ++told[i]; };
    core.submit(RequestId{i + 1}, std::move(r));
  }
  run_all(core);
  EXPECT_LE(counter.most, counter.most_rows());
  EXPECT_EQ(told, (std::vector<int64_t>{39, 0, 39, 0}));
  for (const Outcome& out : outs) EXPECT_FALSE(out.summary->error.has_value());
}

TEST(EngineCore, StopIdsMinTokensAndTheReader) {
  TinyEngine e(exact(), 40);
  Request probe = request(ids(30), 8);
  const std::vector<int32_t> greedy = plain_answer(probe, 0, exact(), 400);
  Outcome stop, later, reader;
  Request a = probe, b = probe, c = probe;
  a.stop_ids = b.stop_ids = {greedy[2]};
  b.min_tokens = 5;
  listen(a, stop);
  listen(b, later);
  listen(c, reader);
  c.callbacks.on_token = [&, next = c.callbacks.on_token](const GeneratedToken& token) { return next(token) && token.index < 3; };
  for (Request* r : {&a, &b, &c}) e.submit(std::move(*r));
  run_all(*e.core);
  EXPECT_EQ(stop.ends[0], EndReason::stop_token);
  EXPECT_EQ(stop.ids[0], std::vector<int32_t>(greedy.begin(), std::find(greedy.begin(), greedy.end(), greedy[2]) + 1));
  EXPECT_GE(later.ids[0].size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_NE(later.ids[0][i], greedy[2]);
  EXPECT_EQ(reader.ends[0], EndReason::stopped);
  EXPECT_EQ(reader.ids[0].size(), 4u);
}

// The pool holds less than a context: answers end where its pages do, with others beside them or alone.
TEST(EngineCore, AnAnswerThatOutgrowsThePoolEndsThere) {
  const auto answers = [](size_t count) {
    TinyEngine e(exact(), 0, [](TinyEngine& t) {
      const cache::CacheShape& shape = t.cache_options.shape;
      t.cache_options.pool_bytes = (2 + shape.groups()) * shape.page_bytes;
      t.options.ctx_tokens = 4 * shape.page_tokens;
    });
    const int64_t room = 2 * e.cache->shape().page_tokens;
    std::vector<Outcome> outs(count);
    for (size_t i = 0; i < count; ++i) {
      Request r = request(ids(static_cast<size_t>(room) - 6 - i), 0);
      r.choices = i == 0 ? 2 : 1;
      listen(r, outs[i]);
      e.submit(std::move(r));
    }
    run_all(*e.core);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_FALSE(outs[i].summary->error) << outs[i].summary->error->message;
      for (const std::vector<int32_t>& answer : outs[i].ids) EXPECT_EQ(answer.size(), 7 + i);  // the last one is not fed
      for (const auto& end : outs[i].ends) EXPECT_EQ(end, EndReason::context);
    }
    return outs;
  };
  const auto alone = answers(1), crowd = answers(4);
  EXPECT_EQ(alone[0].ids, crowd[0].ids);
}

TEST(EngineCore, ContextDeadlineAndCancelEndARequest) {
  TinyEngine e(exact(), 60, [](TinyEngine& t) { t.options.ctx_tokens = 50; });
  Outcome context, deadline, cancelled;
  Request a = request(ids(45), 0), b = request(ids(20), 0), c = request(ids(30), 0);
  b.deadline_seconds = 1e-9;
  listen(a, context);
  listen(b, deadline);
  listen(c, cancelled);
  e.submit(std::move(a));
  e.submit(std::move(b));
  const RequestId id = e.submit(std::move(c));
  e.core->step();
  e.core->cancel(id);
  run_all(*e.core);
  EXPECT_EQ(context.ends[0], EndReason::context);
  EXPECT_EQ(context.ids[0].size(), 5u);
  EXPECT_EQ(deadline.ends[0], EndReason::deadline);
  EXPECT_EQ(cancelled.ends[0], EndReason::cancelled);
  EXPECT_EQ(e.core->stats().requests_cancelled, 1);
  EXPECT_TRUE(check_request(e.options, request(ids(50), 1)).error().message.find("50") != std::string::npos);
}

// A model whose answers can be spoiled.
class Spoiled final : public Executor {
 public:
  explicit Spoiled(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    if (fail_next) return fail(Code::unavailable, "layer 3: read error at 4096");
    Result<Tensor> logits = model_.step(items);
    if (!logits.ok()) return logits;
    int64_t row = 0;
    for (const StepItem& item : items) {
      if (item.logits == WantLogits::none) continue;
      if (item.history + item.token_count == spoil_at) logits->row(row)[5] = value;
      ++row;
    }
    return logits;
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return rows; }

  int64_t rows = 1000;
  bool fail_next = false;
  int64_t spoil_at = -1;
  float value = std::numeric_limits<float>::quiet_NaN();

 private:
  Executor& model_;
};

TEST(EngineCore, NumbersThatAreNotFiniteFailTheirRequestAlone) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    TinyEngine e(exact(), 40);
    Spoiled spoiled(*e.executor);
    spoiled.spoil_at = 53;
    spoiled.value = value;
    EngineCore core(e.options, *e.cache, spoiled);
    Outcome bad, good;
    Request a = request(ids(50), 10), b = request(ids(30, 8), 10);
    const Request plain = b;
    listen(a, bad);
    listen(b, good);
    core.submit(RequestId{1}, std::move(a));
    core.submit(RequestId{2}, std::move(b));
    run_all(core);
    ASSERT_TRUE(bad.summary->error.has_value());
    EXPECT_EQ(bad.summary->error->code, Code::internal);
    EXPECT_EQ(bad.ends[0], EndReason::failed);
    EXPECT_EQ(good.ids[0], plain_answer(plain, 0, exact(), 400));
    EXPECT_EQ(core.stats().nonfinite, 1);
    EXPECT_GT(e.cache->stats().quarantined_pages, 0);
    // Nothing of it is found again.
    Request again = request(ids(50), 2);
    Outcome retry;
    listen(again, retry);
    spoiled.spoil_at = -1;
    core.submit(RequestId{3}, std::move(again));
    run_all(core);
    EXPECT_EQ(retry.admitted->matched_tokens, 0);
    EXPECT_FALSE(retry.summary->error.has_value());
    core.stop_all(EndReason::interrupted);
    e.cache->clear_quarantine();
    EXPECT_TRUE(e.cache->check().ok());
  }
}

// The siblings of a choice that fails stand in the same step.
TEST(EngineCore, AFaultOfOneChoiceEndsItsSiblingsOnce) {
  for (const bool whole_step : {false, true}) {
    TinyEngine e(exact(), 60);
    Spoiled spoiled(*e.executor);
    EngineCore core(e.options, *e.cache, spoiled);
    Outcome bad, good;
    Request a = request(ids(50), 10), b = request(ids(30, 8), 10);
    a.choices = 3;
    const Request plain = b;
    listen(a, bad);
    listen(b, good);
    core.submit(RequestId{1}, std::move(a));
    if (!whole_step) core.submit(RequestId{2}, std::move(b));
    while (bad.ids[2].empty()) core.step();
    spoiled.spoil_at = whole_step ? -1 : 53;
    spoiled.fail_next = whole_step;
    while (bad.done == 0) core.step();
    spoiled.fail_next = false;
    if (whole_step) core.submit(RequestId{2}, std::move(b));
    run_all(core);
    EXPECT_EQ(bad.done, 1);
    for (const auto& end : bad.ends) EXPECT_EQ(end, EndReason::failed);
    EXPECT_EQ(good.ids[0], plain_answer(plain, 0, exact(), 400));
    core.stop_all(EndReason::interrupted);
    e.cache->clear_quarantine();
    EXPECT_TRUE(e.cache->check().ok());
  }
}

TEST(EngineCore, AFailedStepFailsItsRequestsAndTheEngineGoesOn) {
  TinyEngine e(exact(), 40);
  Spoiled spoiled(*e.executor);
  EngineCore core(e.options, *e.cache, spoiled);
  Outcome lost, next;
  Request a = request(ids(50), 10), b = request(ids(50), 10);
  listen(a, lost);
  listen(b, next);
  core.submit(RequestId{1}, std::move(a));
  core.step();
  spoiled.fail_next = true;
  core.step();
  EXPECT_EQ(lost.done, 1);
  EXPECT_NE(lost.summary->error->message.find("read error at 4096"), std::string::npos);
  spoiled.fail_next = false;
  core.submit(RequestId{2}, std::move(b));
  run_all(core);
  EXPECT_EQ(next.ids[0], plain_answer(request(ids(50), 10), 0, exact(), 400));
}

TEST(EngineCore, PreemptedSequencesComeBackWithTheSameAnswer) {
  // Nine pages hold one of these to its end, or two at the beginning.
  TinyEngine e(exact(), 11, [](TinyEngine& t) { t.options.max_running = 3; });
  std::vector<Outcome> outs(3);
  std::vector<Request> plain;
  for (size_t i = 0; i < outs.size(); ++i) {
    Request r = request(ids(20, i), 120);
    plain.push_back(r);
    listen(r, outs[i]);
    e.submit(std::move(r));
  }
  run_all(*e.core);
  EXPECT_GT(e.core->stats().preemptions, 0);
  for (size_t i = 0; i < outs.size(); ++i) EXPECT_EQ(outs[i].ids[0], plain_answer(plain[i], 0, exact(), 400)) << i;
}

TEST(EngineCore, AnIdleSequenceGoesOnToTheToken) {
  TinyEngine e(exact(), 60);
  Outcome first, second;
  Request a = request(ids(37), 6);
  listen(a, first);
  e.submit(std::move(a));
  run_all(*e.core);
  std::vector<int32_t> prompt = ids(37);
  prompt.insert(prompt.end(), first.ids[0].begin(), first.ids[0].end());
  prompt.push_back(9);
  Request b = request(prompt, 6);
  const Request plain = b;
  listen(b, second);
  e.submit(std::move(b));
  run_all(*e.core);
  EXPECT_TRUE(second.admitted->resumed_idle);
  EXPECT_EQ(second.admitted->cached_tokens, 37 + 5);  // the last token was never fed
  EXPECT_EQ(second.ids[0], plain_answer(plain, 0, exact(), 400));
  const EngineStats stats = e.core->stats();
  EXPECT_EQ(stats.resumed_tokens, 37 + 5);
  EXPECT_EQ(stats.cache.prompt_tokens + stats.resumed_prompt_tokens, stats.prompt_tokens);
}

TEST(EngineCore, AForkTakesTheRoomOfOtherIdleSequences) {
  TinyEngine e(exact(), 0, [](TinyEngine& t) {
    const cache::CacheShape& shape = t.cache_options.shape;
    t.cache_options.pool_bytes = 2 * (1 + shape.groups()) * shape.page_bytes;  // two sequences of a page, and nothing else
  });
  for (uint64_t seed : {1, 2}) {
    e.submit(request(ids(20, seed), 2));
    run_all(*e.core);
  }
  ASSERT_EQ(e.core->stats().slots[1].state, SlotState::idle);
  const auto copy = e.core->fork_slot(0);
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  EXPECT_EQ(copy->tokens, 21);
  EXPECT_EQ(e.core->stats().slots[0].tokens, 21);  // the original stays
  EXPECT_EQ(e.core->stats().slots[1].state, SlotState::empty);
  e.cache->check().value();
}

TEST(EngineCore, SavedSlotsComeBackToTheBitInAnotherEngine) {
  const std::string file = testing::TempDir() + fmt::format("k3_saved_{}", ::getpid());
  std::vector<int32_t> prompt = ids(61);
  {
    TinyEngine e(exact(), 60);
    Outcome out;
    Request a = request(prompt, 9);
    listen(a, out);
    e.submit(std::move(a));
    run_all(*e.core);
    prompt.insert(prompt.end(), out.ids[0].begin(), out.ids[0].end());
    const SlotResult saved = e.core->save_slot(0, file).value();
    EXPECT_EQ(saved.tokens, 61 + 8);
    EXPECT_EQ(saved.bytes, static_cast<int64_t>(std::filesystem::file_size(file)));
    EXPECT_EQ(e.core->save_slot(1, file).error().code, Code::not_found);
    EXPECT_EQ(e.core->save_slot(99, file).error().code, Code::not_found);
  }
  TinyEngine e(exact(), 60);
  EXPECT_EQ(e.core->restore_slot(2, file).value().tokens, 61 + 8);
  const SlotResult fork = e.core->fork_slot(2).value();
  EXPECT_NE(fork.slot, 2);
  for (int i = 0; i < 2; ++i) {  // the restored one and its copy
    Outcome out;
    Request b = request(prompt, 9);
    const Request plain = b;
    listen(b, out);
    e.submit(std::move(b));
    run_all(*e.core);
    EXPECT_EQ(out.admitted->cached_tokens, 61 + 8);
    EXPECT_EQ(out.ids[0], plain_answer(plain, 0, exact(), 400));
  }
  // Damage anywhere is found, and another model's file is refused.
  const std::string whole = read_file(file).value();
  for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 97) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_file(file, bad).value();
    EXPECT_FALSE(e.core->restore_slot(3, file).ok()) << at;
    write_file(file, whole.substr(0, at)).value();
    EXPECT_FALSE(e.core->restore_slot(3, file).ok()) << at;
  }
  write_file(file, whole).value();
  TinyEngine other(exact(), 60, [](TinyEngine& t) { t.options.identity = "another"; });
  EXPECT_EQ(other.core->restore_slot(0, file).error().code, Code::invalid_argument);
  for (TinyEngine* t : {&e, &other}) {
    t->core->stop_all(EndReason::interrupted);
    EXPECT_TRUE(t->cache->check().ok());
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace k3::test
