// Replays sessions (shared system prompts, turns, forks) through a cache without memory and through the plain rule: blocks
// ever seen, boundaries ever stored, unbounded. Policies one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "k3/base/rng.h"
#include "k3/cache/hybrid_cache.h"

namespace k3::cache {
namespace {

constexpr int64_t kBlock = 128;

struct Request {
  int64_t tokens = 0;
  std::vector<uint64_t> blocks;  // an id stands for a whole prefix
};

// Four system prompts, 60 sessions of up to 12 turns, some of which begin in the middle of another one.
std::vector<Request> sessions(uint64_t seed) {
  const Rng rng(seed, 0);
  uint64_t counter = 0, next_id = 1;
  const auto draw = [&](uint64_t below) { return rng.bits(counter++) % below; };
  const auto extend = [&](Request request, int64_t tokens) {
    if (request.tokens % kBlock != 0) request.blocks.pop_back();  // the open block becomes another one
    request.tokens += tokens;
    while (static_cast<int64_t>(request.blocks.size()) * kBlock < request.tokens) request.blocks.push_back(next_id++);
    return request;
  };
  std::vector<Request> systems, open, out;
  for (int i = 0; i < 4; ++i) systems.push_back(extend({}, 3000 + static_cast<int64_t>(draw(3000))));
  for (int turn = 0; turn < 500; ++turn) {
    if (open.size() < 12 && draw(4) == 0) {
      open.push_back(draw(6) == 0 && !out.empty() ? out[draw(out.size())] : systems[draw(4)]);
    }
    if (open.empty()) continue;
    Request& session = open[draw(open.size())];
    session = extend(session, draw(5) == 0 ? kBlock * static_cast<int64_t>(draw(4) + 1) : static_cast<int64_t>(draw(900)) + 1);
    out.push_back(session);
    if (draw(12) == 0) std::erase_if(open, [&](const Request& one) { return &one == &session; });
  }
  return out;
}

struct Sums {
  int64_t matched = 0, hit = 0, checkpoints = 0, blocks = 0, clamped = 0, none = 0;
  bool operator==(const Sums&) const = default;
};

Sums by_rule(const std::vector<Request>& requests, const CheckpointPolicy& policy) {
  std::set<uint64_t> blocks, boundaries;
  Sums sums;
  for (const Request& request : requests) {
    const auto usable = static_cast<size_t>((request.tokens - 1) / kBlock), full = static_cast<size_t>(request.tokens / kBlock);
    size_t matched = 0, hit = 0;
    while (matched < usable && blocks.contains(request.blocks[matched])) ++matched;
    for (size_t end = 1; end <= matched; ++end) {
      if (boundaries.contains(request.blocks[end - 1])) hit = end;
    }
    sums.matched += static_cast<int64_t>(matched) * kBlock;
    sums.hit += static_cast<int64_t>(hit) * kBlock;
    sums.clamped += hit < matched ? 1 : 0;
    sums.none += matched == 0 ? 1 : 0;
    const auto store = [&](size_t end) {
      if (end > 0 && end <= full) boundaries.insert(request.blocks[end - 1]);
    };
    if (policy.prompt_end) store(full);
    if (policy.second_sighting && hit < matched) store(matched);
    for (int64_t end = policy.every_tokens; policy.every_tokens > 0 && end <= request.tokens; end += policy.every_tokens) {
      store(static_cast<size_t>(end / kBlock));
    }
    blocks.insert(request.blocks.begin(), request.blocks.begin() + static_cast<std::ptrdiff_t>(full));
  }
  sums.checkpoints = static_cast<int64_t>(boundaries.size());
  sums.blocks = static_cast<int64_t>(blocks.size());
  return sums;
}

Sums by_cache(const std::vector<Request>& requests, const CheckpointPolicy& policy) {
  CacheOptions options;
  options.shape = *make_shape({2, 6, 5000, 100, 8}, {}, kBlock);
  options.pool_bytes = 40000 * options.shape.page_bytes;
  options.backed = options.compare_tokens = false;
  options.policy = policy;
  const auto cache = *HybridCache::create(options);
  for (const Request& request : requests) {
    std::vector<BlockKey> keys;
    for (int64_t block = 0; block < request.tokens / kBlock; ++block) keys.push_back({request.blocks[static_cast<size_t>(block)], 0});
    const auto admission = cache->admit({keys, {}, request.tokens, {}});
    EXPECT_TRUE(admission.ok());
    cache->plan_checkpoints(admission->sequence, request.tokens);
    cache->commit(admission->sequence, keys, {}, request.tokens);
    cache->release(admission->sequence);
  }
  EXPECT_TRUE(cache->check().ok());
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.evicted_pages, 0);
  return {stats.matched_tokens, stats.hit_tokens, stats.checkpoints, static_cast<int64_t>(cache->contents().size()),
          stats.limited_by_kda, stats.no_match};
}

TEST(PrefixRule, HitsOfSessionsByPolicy) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto requests = sessions(seed);
    int64_t last = 0;
    for (const CheckpointPolicy& policy : {CheckpointPolicy{true, false, 0, false}, CheckpointPolicy{true, false, 0, true},
                                           CheckpointPolicy{true, false, 8 * kBlock, true}, CheckpointPolicy{true, false, kBlock, false}}) {
      const Sums expected = by_rule(requests, policy), got = by_cache(requests, policy);
      EXPECT_EQ(got, expected) << "seed " << seed << ": hit " << got.hit << ", by the rule " << expected.hit << "; checkpoints "
                               << got.checkpoints << ", " << expected.checkpoints << "; blocks " << got.blocks << ", " << expected.blocks;
      EXPECT_GE(got.hit, last);
      last = got.hit;
    }
    EXPECT_GT(last, 0);
  }
}

}  // namespace
}  // namespace k3::cache
