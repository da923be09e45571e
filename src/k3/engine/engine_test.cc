// The engine's thread: submissions from everywhere, a full queue, draining, ends.
#include "k3/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "k3/engine/tiny_model_test.h"

namespace k3::test {
namespace {

EngineOptions small_options() {
  EngineOptions o;
  o.policy = ops::Policy::exact;
  o.deterministic = true;
  o.ctx_tokens = 300;
  o.step_tokens = 48;
  o.max_running = 4;
  o.block_tokens = 16;
  o.poison = true;
  return o;
}

Request request(uint64_t seed, int64_t max_tokens) {
  const Rng rng(seed, 7);
  Request r;
  for (size_t i = 0; i < 40; ++i) r.prompt.push_back(static_cast<int32_t>(rng.bits(i) % 96));
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

struct Waited {
  std::promise<RequestSummary> done;
  std::vector<int32_t> ids;
};

std::shared_ptr<Waited> follow(Request& r) {
  auto waited = std::make_shared<Waited>();
  r.callbacks.on_token = [waited](const GeneratedToken& token) {
    waited->ids.push_back(token.id);
    return true;
  };
  r.callbacks.on_done = [waited](const RequestSummary& summary) { waited->done.set_value(summary); };
  return waited;
}

TEST(Engine, AnswersManyThreadsAtOnce) {
  auto engine = Engine::create(*tiny().model, tiny().pool, small_options()).value();
  std::vector<std::shared_ptr<Waited>> all(24);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < all.size(); i += 4) {
        Request r = request(i % 5, 10);
        all[i] = follow(r);
        engine->submit(std::move(r)).value();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_FALSE(all[i]->done.get_future().get().error.has_value());
    EXPECT_EQ(all[i]->ids.size(), 10u);
    EXPECT_EQ(all[i]->ids, all[i % 5]->ids);
  }
  engine.reset();  // the model's pool is free again
  Request plain = request(2, 10);
  ComputeMode mode;
  mode.policy = ops::Policy::exact;
  mode.deterministic = true;
  EXPECT_EQ(all[2]->ids, plain_answer(plain, 0, mode, 300));
}

TEST(Engine, AFullQueueRefusesAndSaysWhenToComeBack) {
  EngineOptions o = small_options();
  o.max_queued = 3;
  o.max_running = 1;
  auto engine = Engine::create(*tiny().model, tiny().pool, o).value();
  std::vector<RequestId> taken;
  bool refused = false;
  for (int i = 0; i < 50 && !refused; ++i) {
    const Result<RequestId> id = engine->submit(request(1, 200));
    if (id.ok()) taken.push_back(*id);
    if (!id.ok()) {
      EXPECT_EQ(id.error().code, Code::exhausted);
      refused = true;
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_GE(engine->retry_after_seconds(), 1);
  for (const RequestId id : taken) engine->cancel(id);
  Request last = request(2, 2);
  const auto waited = follow(last);
  Result<RequestId> id = engine->submit(last);
  while (!id.ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    id = engine->submit(last);
  }
  EXPECT_FALSE(waited->done.get_future().get().error.has_value());
  EXPECT_GE(engine->stats().requests_rejected, 1);
}

TEST(Engine, DrainsAndStops) {
  auto engine = Engine::create(*tiny().model, tiny().pool, small_options()).value();
  Request r = request(1, 30), endless = request(2, 0);
  const auto waited = follow(r);
  engine->submit(std::move(r)).value();
  engine->drain();
  EXPECT_EQ(engine->submit(request(1, 1)).error().code, Code::unavailable);
  EXPECT_FALSE(waited->done.get_future().get().error.has_value());
  while (!engine->drained()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine = Engine::create(*tiny().model, tiny().pool, small_options()).value();
  std::promise<EndReason> end;
  endless.callbacks.on_choice_end = [&](const ChoiceEnd& e) { end.set_value(e.reason); };
  engine->submit(std::move(endless)).value();
  engine.reset();
  EXPECT_EQ(end.get_future().get(), EndReason::interrupted);
}

TEST(Engine, RefusesWhatCannotWork) {
  const auto error = [](const std::function<void(EngineOptions&)>& set) {
    EngineOptions o = small_options();
    set(o);
    const auto engine = Engine::create(*tiny().model, tiny().pool, o);
    return engine.ok() ? std::string() : engine.error().message;
  };
  EXPECT_NE(error([](EngineOptions& o) { o.pool_bytes = 1000; }).find("holds no sequence"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.pool_bytes = int64_t{1} << 60; }).find("--pool-bytes"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.host_bytes = INT64_MAX; }).find("--host-bytes"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.dtypes.latent = DType::bf16; }).find("FP32"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.block_tokens = 24; }).find("16"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.ctx_tokens = 1; }).find("at least"), std::string::npos);
  EXPECT_NE(error([](EngineOptions& o) { o.slot_save_path = "/no/such/folder"; }).find("no such folder"), std::string::npos);
  auto engine = Engine::create(*tiny().model, tiny().pool, small_options()).value();
  EXPECT_EQ(engine->save_slot(0, "x").error().code, Code::unsupported);
  EXPECT_EQ(engine->fork_slot(0).error().code, Code::not_found);
  for (const auto& [ctx, sequences] : engine->capacity()) EXPECT_GE(sequences, 1) << ctx;
  Request r = request(1, 2);
  r.prompt[3] = 96;
  EXPECT_NE(engine->submit(r).error().message.find("position 3"), std::string::npos);
}

}  // namespace
}  // namespace k3::test
