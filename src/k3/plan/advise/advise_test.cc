// Answers against the closed loop of the cost model, what the specification says fits, and what advice has to keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "k3/plan/advise/advice.h"
#include "k3/plan/advise/answer.h"
#include "k3/plan/cost/service.h"
#include "k3/plan/hardware/shared_files.h"

namespace k3::plan {
namespace {

using testing::HasSubstr;

Scenario scenario(const std::string& model, const std::string& hw, int64_t gpus) {
  const Asset* const file = find_asset("/models/" + model + ".json");
  EXPECT_NE(file, nullptr);
  Scenario s;
  s.model = model;
  s.counts = table_counts(parse_config(file->bytes, model).value()).value();
  s.machine = load_machine(hw).value();
  s.gpus = gpus;
  s.draft.acceptance = published_acceptance().front();
  return s;
}

Layout tp(int64_t ranks) {
  Layout layout;
  layout.tp = ranks;
  return layout;
}

TEST(Points, MediansAreTheClosedLoop) {
  const Scenario s = scenario("k3", "b300", 8);
  for (const int64_t users : {1, 2, 16, 64, 101}) {
    const UserPoint p = point_of(s, tp(8), users);
    ClosedLoad load;
    load.concurrency = users;
    const ClosedLoop loop = closed_loop(deployment_of(s, tp(8)), load);
    EXPECT_NEAR(p.tpot_p50 / loop.tpot_seconds, 1, users % 2 == 0 || users == 1 ? 1e-12 : 0.01) << users;
    EXPECT_NEAR(p.ttft_p50 / loop.ttft_seconds, 1, users % 2 == 0 || users == 1 ? 1e-12 : 0.02) << users;
    EXPECT_DOUBLE_EQ(p.total_seconds, loop.total_seconds);
    EXPECT_NEAR(p.tokens_per_second_gpu, loop.tokens_per_second_per_gpu, 1e-9 * loop.tokens_per_second_per_gpu);
    EXPECT_NEAR(p.output_per_second, loop.output_tokens_per_second, 1e-9 * loop.output_tokens_per_second);
  }
}

TEST(Points, PercentilesAreOverUsers) {
  Scenario s = scenario("k3", "b300", 8);
  const UserPoint alone = point_of(s, tp(8), 1);
  EXPECT_EQ(alone.ttft_p50, alone.ttft_p95);
  EXPECT_EQ(alone.tpot_p50, alone.tpot_p95);
  const UserPoint many = point_of(s, tp(8), 64);
  EXPECT_GT(many.ttft_p95,
            1.5 * many.ttft_p50);  // of n batches the 95th percentile waits nearly twice as long as the median
  EXPECT_GT(many.tpot_p95, many.tpot_p50);
  // Nobody is served before the first batch, and nobody waits longer than for all.
  EXPECT_LE(many.ttft_p95, many.total_seconds);
  EXPECT_GT(many.tpot_p50, many.step_seconds);
}

// Whatever the layout: with more users nobody is served earlier, and no step is shorter.
TEST(Points, MoreUsersWaitNoLess) {
  for (const int64_t output : {1, 1024}) {
    Scenario s = scenario("k3", "h200", 16);
    s.load.output_tokens = output;
    const Answer all = answer(s).value();
    for (const LayoutAnswer& layout : all.layouts) {
      for (size_t i = 1; i < layout.ladder.size(); ++i) {
        const UserPoint &few = layout.ladder[i - 1], &many = layout.ladder[i];
        EXPECT_GE(many.ttft_p95, few.ttft_p95 * (1 - 1e-9)) << layout_text(layout.layout) << " " << many.users;
        EXPECT_GE(many.step_seconds, few.step_seconds * (1 - 1e-9)) << layout_text(layout.layout) << " " << many.users;
        EXPECT_GE(many.total_seconds, few.total_seconds * (1 - 1e-9)) << layout_text(layout.layout) << " " << many.users;
      }
    }
  }
}

TEST(Points, AReusedPrefixShortensPrefillAndPaysForItsRestore) {
  Scenario s = scenario("k3", "b300", 8);
  const UserPoint cold = point_of(s, tp(8), 16);
  s.load.hit = 0.75;
  const UserPoint gpu = point_of(s, tp(8), 16);
  s.load.tier = Tier::network;
  const UserPoint network = point_of(s, tp(8), 16);
  EXPECT_LT(gpu.ttft_p50, 0.5 * cold.ttft_p50);
  EXPECT_GT(network.ttft_p50, gpu.ttft_p50);
  EXPECT_LT(network.ttft_p50, cold.ttft_p50);
  EXPECT_EQ(gpu.step_seconds, cold.step_seconds);
}

TEST(Points, PriceIsOfGpuTime) {
  Scenario s = scenario("k3", "b300", 8);
  s.gpu_hour = 3.6;
  const UserPoint p = point_of(s, tp(8), 16);
  EXPECT_NEAR(p.cost_per_million * p.tokens_per_second_gpu, 1000, 1e-6);  // 0.001 a second, a million tokens
  EXPECT_NEAR(p.cost_per_million_output / p.cost_per_million, 9, 1e-9);   // 8,192 + 1,024 over 1,024
}

TEST(Answers, WhatFitsIsWhatThePublicKnows) {
  EXPECT_FALSE(answer(scenario("k3", "h200", 8))->best);
  EXPECT_TRUE(answer(scenario("k3", "h200", 16))->best);
  EXPECT_FALSE(answer(scenario("k3", "gb200", 8))->best);
  EXPECT_TRUE(answer(scenario("k3", "gb200", 16))->best);
  EXPECT_TRUE(answer(scenario("k3", "b300", 8))->best);
  EXPECT_EQ(fewest_gpus(scenario("k3", "h200", 0), 64), 16);
  EXPECT_EQ(fewest_gpus(scenario("k3", "gb300", 0), 64), 8);
  EXPECT_EQ(fewest_gpus(scenario("kimi-linear-48b", "h200", 0), 64), 1);
  EXPECT_EQ(fewest_gpus(scenario("k3", "h100", 0), 8), 0);
}

TEST(Answers, TheBestHasTheMostUsersWithinTheObjective) {
  Scenario s = scenario("k3", "b300", 8);
  s.objective.tpot_seconds = 0.03;
  const Answer all = answer(s).value();
  ASSERT_TRUE(all.best);
  const LayoutAnswer& best = all.layouts[*all.best];
  ASSERT_TRUE(best.point && best.point->meets);
  EXPECT_LE(best.point->tpot_p95, 0.03);
  ASSERT_LT(best.point->users, best.capacity.requests);
  EXPECT_GT(point_of(s, best.layout, best.point->users + 1).tpot_p95, 0.03);
  for (const LayoutAnswer& layout : all.layouts) {
    if (!layout.point || !layout.point->meets) continue;
    EXPECT_LE(layout.point->tokens_per_second_gpu, best.point->tokens_per_second_gpu);
  }
}

TEST(Answers, UsersAskedForAreKept) {
  Scenario s = scenario("k3", "b300", 8);
  s.load.users = 32;
  const Answer all = answer(s).value();
  EXPECT_EQ(all.layouts[*all.best].point->users, 32);
  s.load.users = 1'000'000;
  const Answer many = answer(s).value();
  ASSERT_TRUE(many.best);
  EXPECT_FALSE(many.layouts[*many.best].point);
}

TEST(Answers, AWishedLayoutIsTheOnlyOne) {
  Scenario s = scenario("k3", "gb300", 16);
  s.wish.tp = 4, s.wish.dp = 4, s.wish.moe = MoeSharding::ep, s.wish.dcp = 1, s.wish.kcp = 1;
  const std::vector<Layout> layouts = layouts_of(s).value();
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layout_text(layouts[0]), "TP4 DP4 EP16");
  s.wish = {};
  std::set<std::string> names;
  const std::vector<Layout> free = layouts_of(s).value();
  for (const Layout& layout : free) {
    EXPECT_EQ(layout.gpus(), 16);
    EXPECT_TRUE(names.insert(layout_text(layout)).second) << layout_text(layout);
  }
  EXPECT_TRUE(names.count("TP8 PP2") && names.count("TP16") && names.count("TP4 DP4 EP16 KCP2") &&
              names.count("TP8 DP2 EP16 DCP8"));
}

TEST(Answers, ImpossibleWishesAreNamed) {
  Scenario s = scenario("k3", "gb300", 16);
  const auto says = [&](LayoutWish wish) {
    s.wish = std::move(wish);
    const auto layouts = layouts_of(s);
    return layouts.ok() ? std::string("accepted") : layouts.error().message;
  };
  LayoutWish wish;
  wish.tp = 5;
  EXPECT_THAT(says(wish), HasSubstr("tp x dp x pp = 5 does not divide 16 GPUs"));
  wish = {};
  wish.tp = 16, wish.dcp = 3;
  EXPECT_THAT(says(wish), HasSubstr("dcp 3 does not divide"));
  wish = {};
  wish.tp = 4, wish.dp = 4, wish.moe = MoeSharding::tp;
  EXPECT_THAT(says(wish), HasSubstr("use expert parallelism"));
  s.gpus = 7;
  wish = {};
  wish.tp = 7;
  EXPECT_THAT(says(wish), HasSubstr("does not divide 96 KDA heads"));
}

TEST(Frontier, NothingOnItIsBeaten) {
  const Answer all = answer(scenario("k3", "h200", 16)).value();
  const std::vector<FrontierPoint> best = frontier(all);
  ASSERT_GE(best.size(), 3u);
  for (size_t i = 1; i < best.size(); ++i) {
    EXPECT_LT(best[i].point.user_tokens_per_second(), best[i - 1].point.user_tokens_per_second());
    EXPECT_GT(best[i].point.tokens_per_second_gpu, best[i - 1].point.tokens_per_second_gpu);
  }
  for (const LayoutAnswer& layout : all.layouts) {
    for (const UserPoint& p : layout.ladder) {
      const bool reached = std::any_of(best.begin(), best.end(), [&](const FrontierPoint& f) {
        return f.point.user_tokens_per_second() >= p.user_tokens_per_second() &&
               f.point.tokens_per_second_gpu >= p.tokens_per_second_gpu;
      });
      EXPECT_TRUE(reached) << layout_text(layout.layout) << " " << p.users;
    }
  }
}

TEST(Advice, SaysWhatIsMissingAndWhatFits) {
  const Scenario s = scenario("k3", "h200", 8);
  const Missing m = missing_of(s, answer(s).value());
  // The case of the specification misses 77.7 GB for its weights; a request comes on top, better layouts save some.
  EXPECT_GT(m.bytes, 60e9);
  EXPECT_LT(m.bytes, 80e9);
  std::string list;
  for (const Nearest& near : m.nearest) {
    list += near.what + "\n";
    EXPECT_GE(near.answer.capacity.requests, 1);
  }
  EXPECT_THAT(list, HasSubstr("16 GPUs of H200-SXM"));
  EXPECT_THAT(list, HasSubstr("8 GPUs of gb300"));
}

TEST(Advice, ChangesGainAndComeCheapestFirst) {
  Scenario s = scenario("k3", "h200", 16);
  s.objective.tpot_seconds = 0.05;
  s.wish.tp = 16;
  const Answer all = answer(s).value();
  const LayoutAnswer& chosen = all.layouts[*all.best];
  const std::vector<Change> changes = next_changes(s, chosen);
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes.front().effort, Effort::layout);  // TP16 over two nodes is not the best
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_TRUE(changes[i].gain >= 1.03 || (changes[i].meets && !chosen.point->meets)) << changes[i].what;
    EXPECT_TRUE(i == 0 || changes[i - 1].effort < changes[i].effort);
  }
}

TEST(Advice, BindingsAreTheLargestParts) {
  const Scenario s = scenario("k3", "b300", 8);
  LayoutAnswer chosen = answer_layout(s, tp(8));
  chosen.point = point_of(s, tp(8), 16);
  const Bindings b = bindings_of(s, chosen);
  EXPECT_EQ(b.decode.what, "routed experts");  // 7.3 of 16.4 ms
  EXPECT_NEAR(b.decode.share, 0.445, 0.02);
  EXPECT_TRUE(b.decode.memory_bound);
  EXPECT_FALSE(b.prefill.memory_bound);
  EXPECT_FALSE(b.memory_stops_users);
}

}  // namespace
}  // namespace k3::plan
