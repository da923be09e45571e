#include "k3/cache/hybrid_cache.h"

#include <algorithm>

#include "k3/cache/fake_model_test.h"

namespace k3::cache {
namespace {

using namespace testing;

std::unique_ptr<HybridCache> make(const CacheOptions& options) {
  auto made = HybridCache::create(options);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return *std::move(made);
}

class HybridCacheOnBoth : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(Pools, HybridCacheOnBoth, ::testing::Values(Where::host, Where::device), where_name);

void expect_sound(const HybridCache& cache) {
  const Status status = cache.check();
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST_P(HybridCacheOnBoth, ConversationIsResumedAtTheEndOfTheAnswer) {
  const auto cache = make(tiny_options(64));
  Admission first = serve(*cache, text(100, 1), 30);
  EXPECT_EQ(first.cached_tokens, 0);
  EXPECT_EQ(first.limit, HitLimit::nothing_cached);
  // 130 tokens: the last endpoint of the answer is 128, that of the prompt 96.
  const auto history = joined(text(100, 1), text(30, 3));
  const Admission second = serve(*cache, joined(history, text(40, 2)), 5, {100, 130});
  EXPECT_EQ(second.cached_tokens, 128);
  EXPECT_EQ(second.matched_tokens, 128);
  EXPECT_EQ(second.limit, HitLimit::mla);
  // An edit of the answer resumes at the end of the prompt.
  const Admission edited = serve(*cache, joined(text(100, 1), text(60, 2)));
  EXPECT_EQ(edited.cached_tokens, 96);
}

TEST_P(HybridCacheOnBoth, AMatchLeavesATokenToCompute) {
  const auto cache = make(tiny_options(64));
  serve(*cache, text(96, 1));
  const Admission same = serve(*cache, text(96, 1));
  EXPECT_EQ(same.matched_tokens, 80);
  EXPECT_EQ(same.cached_tokens, 0);  // the only checkpoint is at 96
  EXPECT_EQ(same.limit, HitLimit::kda);
  // The second sighting left a checkpoint where the match ended.
  const Admission third = serve(*cache, text(96, 1));
  EXPECT_EQ(third.cached_tokens, 80);
  EXPECT_EQ(third.limit, HitLimit::prompt_length);
  EXPECT_EQ(serve(*cache, text(97, 1)).cached_tokens, 96);
  EXPECT_EQ(serve(*cache, text(97, 1)).limit, HitLimit::none);
  EXPECT_EQ(serve(*cache, text(16, 1)).limit, HitLimit::prompt_length);
}

TEST_P(HybridCacheOnBoth, PoliciesPlanTheirBoundaries) {
  const auto written = [](CheckpointPolicy policy, std::vector<int64_t> steps, std::vector<int64_t> turn_ends) {
    CacheOptions options = tiny_options(64);
    options.policy = policy;
    const auto cache = make(options);
    FakeModel model(*cache);
    auto run = model.admit(text(200, 1), nullptr, std::move(turn_ends));
    std::vector<std::vector<int64_t>> out;
    for (const int64_t end : steps) {
      EXPECT_TRUE(cache->grow(run->id, end).ok());
      out.push_back(model.step(*run, end));
    }
    return out;
  };
  using Plans = std::vector<std::vector<int64_t>>;
  const CheckpointPolicy none{false, false, 0, false, false};
  CheckpointPolicy policy = none;
  EXPECT_EQ(written(none, {100, 200, 208, 210}, {50}), (Plans{{}, {}, {}, {}}));
  policy.prompt_end = true;
  EXPECT_EQ(written(policy, {100, 200, 208, 225}, {50}), (Plans{{}, {192}, {}, {}}));
  policy.turn_ends = true;
  EXPECT_EQ(written(policy, {100, 200, 207, 208, 225}, {10, 50, 96, 103}), (Plans{{48, 96}, {192}, {}, {208}, {224}}));
  policy.every_tokens = 64;
  EXPECT_EQ(written(policy, {100, 200, 257}, {50}), (Plans{{48, 64}, {128, 192}, {256}}));
  policy = none;
  policy.chunk_ends = true;
  EXPECT_EQ(written(policy, {100, 120, 200}, {}), (Plans{{96}, {112}, {}}));
}

TEST_P(HybridCacheOnBoth, TheCheckpointThatFollowsASequenceIsRecycledUnlessItWasHit) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  auto run = model.admit(text(20, 1));
  model.step(*run, 20);
  EXPECT_EQ(cache->stats().checkpoints, 1);  // 16
  ASSERT_TRUE(cache->grow(run->id, 100).ok());
  for (int64_t end = 21; end <= 80; ++end) model.step(*run, end);
  EXPECT_EQ(cache->stats().checkpoints, 2);  // 16 and 80
  Admission admission;
  auto other = model.admit(joined(run->tokens, text(1, 9)), &admission);
  EXPECT_EQ(admission.cached_tokens, 80);
  for (int64_t end = 81; end <= 96; ++end) model.step(*run, end);
  EXPECT_EQ(cache->stats().checkpoints, 3);  // 80 stays
  cache->release(run->id);
  cache->release(other->id);
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, WhatTheStepComputesIsMatchedAfterCommit) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  auto first = model.admit(text(50, 1));
  cache->plan_checkpoints(first->id, 50);
  Admission admission;
  auto second = model.admit(text(50, 1), &admission);
  EXPECT_EQ(admission.matched_tokens, 0);
  cache->abandon(first->id);
  model.step(*first, 50);
  auto third = model.admit(text(50, 1), &admission);
  EXPECT_EQ(admission.cached_tokens, 48);
  model.step(*second, 50);
  for (const auto& run : {first, second, third}) cache->release(run->id);
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, PartOfAPageIsCopiedAndTheRestDiverges) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  auto first = model.admit(text(80, 1));
  model.step(*first, 80);
  Admission a, b;
  auto extends = model.admit(text(90, 1), &a);
  auto diverges = model.admit(joined(text(80, 1), text(30, 2)), &b);
  EXPECT_EQ(a.cached_tokens, 80);
  EXPECT_EQ(b.cached_tokens, 80);
  const CacheShape shape = cache->shape();
  EXPECT_EQ(a.copied_bytes, 2 * 32 * shape.latent_row_bytes() + 3 * shape.layer_stride);
  EXPECT_EQ(cache->block_table(first->id)[0], cache->block_table(extends->id)[0]);
  EXPECT_NE(cache->block_table(first->id)[1], cache->block_table(extends->id)[1]);
  model.step(*extends, 90);
  model.step(*diverges, 110);
  ASSERT_TRUE(cache->grow(first->id, 120).ok());
  for (int64_t end = 81; end <= 120; ++end) model.step(*first, end, 5);
  for (auto* run : {&*first, &*extends, &*diverges}) EXPECT_EQ(model.content(*run), "");
  for (const auto& run : {first, extends, diverges}) cache->release(run->id);
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, TailsThatLiveOnInOtherPagesAreFreed) {
  const auto cache = make(tiny_options(200));
  std::vector<int32_t> history = text(20, 1);
  for (int turn = 0; turn < 20; ++turn) {
    serve(*cache, history, 5);
    history = joined(joined(history, text(5, 3)), text(7, 4));
  }
  // Every page of the history once, although each turn copied the open page of the one before.
  EXPECT_LE(cache->stats().pages_cached_mla, cache->shape().pages_for(static_cast<int64_t>(history.size())));
}

TEST_P(HybridCacheOnBoth, PoolExhaustionChangesNothing) {
  const auto cache = make(tiny_options(12));
  FakeModel model(*cache);
  auto first = model.admit(text(200, 1));  // 5 pages and 2 states
  ASSERT_TRUE(first.ok());
  model.step(*first, 200);  // and 2 for a checkpoint
  auto other = model.admit(text(40, 3));  // 1 page and 2 states
  const auto before = cache->stats();
  const auto refused = model.admit(text(300, 2));
  EXPECT_EQ(refused.error().code, Code::exhausted);
  EXPECT_EQ(cache->grow(first->id, 480).error().code, Code::exhausted);
  const auto never = model.admit(text(1000, 2));
  EXPECT_EQ(never.error().code, Code::invalid_argument);
  EXPECT_NE(never.error().message.find("21 pages of 48 tokens and 2 for states; the pool has 12"), std::string::npos)
      << never.error().message;
  EXPECT_EQ(cache->grow(first->id, 481).error().code, Code::invalid_argument);
  EXPECT_EQ(cache->stats().pages_free, before.pages_free);
  EXPECT_EQ(cache->stats().checkpoints, before.checkpoints);
  expect_sound(*cache);
  // Running pages stay, cached ones go.
  cache->release(other->id);
  auto second = model.admit(text(100, 2));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(model.content(*first), "");
  cache->release(first->id);
  cache->release(second->id);
  expect_sound(*cache);
  // One sequence alone always fits, even when its own hit is in the way of its copy.
  EXPECT_EQ(serve(*cache, text(470, 1)).cached_tokens, 0);
  EXPECT_EQ(serve(*cache, text(470, 1)).cached_tokens, 0);
}

TEST_P(HybridCacheOnBoth, EvictionTakesCheckpointsBeforePagesAndTailsBeforeHeads) {
  const auto cache = make(tiny_options(16));
  serve(*cache, text(250, 1));  // 6 pages, checkpoint at 240
  serve(*cache, text(250, 2));  // not all of it fits beside
  const auto stats = cache->stats();
  EXPECT_GT(stats.evicted_checkpoints, 0);
  FakeModel model(*cache);
  const auto keys = model.keys(text(250, 1));
  bool gone = false;
  for (const BlockKey& key : keys) {
    const auto contents = cache->contents();
    const bool there = std::ranges::any_of(contents, [&](const CachedBlock& block) { return block.key == key; });
    EXPECT_FALSE(gone && there) << "a block is cached behind one that is not";
    gone = gone || !there;
  }
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, TheUsefulCheckpointOutlivesTheOnesNobodyReturnsTo) {
  const auto cache = make(tiny_options(40));
  const auto system = text(160, 1);
  for (int32_t user = 10; user < 60; ++user) {
    const Admission got = serve(*cache, joined(system, text(60, user)), 0, {160});
    EXPECT_EQ(got.cached_tokens, user == 10 ? 0 : 160) << user;
  }
  EXPECT_GT(cache->stats().evicted_checkpoints, 10);
}

TEST_P(HybridCacheOnBoth, ForkGoesOnAlone) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  for (const int64_t length : {5, 48, 70, 96}) {
    auto run = model.admit(text(length, static_cast<int32_t>(length)));
    model.step(*run, length);
    auto id = cache->fork(run->id);
    ASSERT_TRUE(id.ok());
    FakeRun copy = *run;
    copy.id = *id;
    EXPECT_EQ(cache->length(copy.id), length);
    for (int64_t end = length + 1; end < length + 60; ++end) {
      ASSERT_TRUE(cache->grow(run->id, end).ok() && cache->grow(copy.id, end).ok());
      model.step(*run, end, 7);
      model.step(copy, end, 8);
    }
    EXPECT_EQ(model.content(*run) + model.content(copy), "");
    expect_sound(*cache);
    cache->release(run->id);
    expect_sound(*cache);
    EXPECT_EQ(model.content(copy), "");
    cache->release(copy.id);
    expect_sound(*cache);
  }
}

TEST_P(HybridCacheOnBoth, QuarantineTakesTheSequenceAndWhatStandsOnIt) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  serve(*cache, text(100, 1));
  auto bad = model.admit(text(150, 1));
  model.step(*bad, 150);
  serve(*cache, text(200, 1));  // built on what the bad one wrote
  const auto table = cache->block_table(bad->id);
  const std::vector<int32_t> pages(table.begin(), table.end());
  cache->quarantine(bad->id);
  expect_sound(*cache);
  const auto stats = cache->stats();
  EXPECT_EQ(stats.quarantined_pages, 2 + 2);  // 4 pages, the first 2 shared; 2 states
  for (size_t slot = 2; slot < pages.size(); ++slot) {
    EXPECT_TRUE(filled(cache->memory().read(std::span(pages).subspan(slot, 1))->front(), cache->shape().page_bytes, 0));
  }
  EXPECT_EQ(serve(*cache, text(120, 1)).cached_tokens, 96);
  EXPECT_EQ(cache->stats().quarantined_pages, 4);
  cache->clear_quarantine();
  EXPECT_EQ(cache->stats().quarantined_pages, 0);
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, QuarantineLeavesTheContentOfOthersButFindsItNoMore) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  auto bad = model.admit(text(100, 1));
  model.step(*bad, 100);
  auto other = model.admit(text(160, 1));  // shares two pages of the bad one
  model.step(*other, 160);
  cache->quarantine(bad->id);
  expect_sound(*cache);
  EXPECT_EQ(cache->contents().size(), 0u);
  ASSERT_TRUE(cache->grow(other->id, 200).ok());
  model.step(*other, 200);
  EXPECT_EQ(model.content(*other), "");
  EXPECT_EQ(cache->contents().size(), 0u);
  cache->release(other->id);
  expect_sound(*cache);
  cache->clear_quarantine();
  EXPECT_EQ(cache->stats().pages_free, 64);
}

TEST_P(HybridCacheOnBoth, SaveAndRestoreToTheBit) {
  const auto cache = make(tiny_options(64));
  FakeModel model(*cache);
  for (const int64_t length : {0, 1, 47, 48, 130}) {
    auto run = model.admit(text(std::max<int64_t>(1, length), 4));
    if (length > 0) model.step(*run, length);
    std::vector<std::byte> saved;
    ASSERT_TRUE(cache->save(run->id, [&](std::span<const std::byte> bytes) -> Status {
      saved.insert(saved.end(), bytes.begin(), bytes.end());
      return {};
    }).ok());
    cache->release(run->id);
    cache->reset();
    size_t at = 0;
    const auto read_from = [&](const std::vector<std::byte>& bytes) {
      at = 0;
      return [&](std::span<std::byte> out) -> Status {
        if (at + out.size() > bytes.size()) return fail(Code::corrupt, "ends early");
        std::memcpy(out.data(), bytes.data() + at, out.size());
        at += out.size();
        return {};
      };
    };
    const auto restored = cache->restore(length, read_from(saved));
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    FakeRun copy = *run;
    copy.id = *restored;
    EXPECT_EQ(model.content(copy), "");
    ASSERT_TRUE(cache->grow(copy.id, length + 20).ok());
    for (int64_t end = length + 1; end <= length + 20; ++end) model.step(copy, end, 5);
    cache->release(copy.id);
    expect_sound(*cache);
    const auto free = cache->stats().pages_free;
    EXPECT_EQ(cache->restore(length + 1, read_from(saved)).error().code, Code::corrupt);
    for (size_t damaged = 0; damaged < saved.size(); damaged += saved.size() / 50 + 1) {
      auto bytes = saved;
      bytes[damaged] ^= std::byte{4};
      EXPECT_FALSE(cache->restore(length, read_from(bytes)).ok()) << damaged;
      bytes.resize(damaged);
      EXPECT_FALSE(cache->restore(length, read_from(bytes)).ok()) << damaged;
    }
    EXPECT_EQ(cache->stats().pages_free, free);
    expect_sound(*cache);
  }
}

TEST_P(HybridCacheOnBoth, OffKeepsNothing) {
  CacheOptions options = tiny_options(10);
  options.enabled = false;
  const auto cache = make(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(serve(*cache, text(200, 1), 20).cached_tokens, 0);
  EXPECT_EQ(cache->stats().pages_free, 10);
}

TEST_P(HybridCacheOnBoth, ACollisionIsAMiss) {
  const auto cache = make(tiny_options(64));
  serve(*cache, text(100, 1));
  FakeModel model(*cache);
  const auto keys = model.keys(text(100, 1));
  auto tokens = text(100, 1);
  tokens[20] = 2;  // other tokens under the same keys
  const auto admission = cache->admit({keys, tokens, 100, {}});
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->cached_tokens, 0);
  EXPECT_EQ(cache->stats().key_collisions, 1);
  cache->commit(admission->sequence, keys, tokens, 100);
  cache->release(admission->sequence);
  expect_sound(*cache);
}

TEST_P(HybridCacheOnBoth, OneKindOfLayersOnly) {
  for (const LayerCounts counts : {LayerCounts{2, 0, 0, 0, 4}, LayerCounts{0, 2, 50, 7, 0}}) {
    CacheOptions options = tiny_options(0);
    options.shape = *make_shape(counts, {}, 16);
    options.pool_bytes = 100 * options.shape.page_bytes;
    const auto cache = make(options);
    serve(*cache, text(100, 1), 20);
    const Admission got = serve(*cache, joined(joined(text(100, 1), text(20, 3)), text(10, 2)));
    EXPECT_EQ(got.cached_tokens, 112);
    // Without states any block can be resumed at.
    EXPECT_EQ(serve(*cache, joined(text(50, 1), text(40, 2))).cached_tokens, counts.kda_layers == 0 ? 48 : 0);
  }
}

TEST_P(HybridCacheOnBoth, RefusesOptionsThatCannotWork) {
  EXPECT_EQ(HybridCache::create(tiny_options(2)).error().code, Code::invalid_argument);
  CacheOptions options = tiny_options(10);
  options.policy.every_tokens = 20;
  EXPECT_EQ(HybridCache::create(options).error().code, Code::invalid_argument);
  options = tiny_options(10);
  options.shape = {};
  EXPECT_EQ(HybridCache::create(options).error().code, Code::invalid_argument);
  const auto cache = make(tiny_options(10));
  EXPECT_EQ(cache->admit({}).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace k3::cache
