// Random schedules against the obvious oracle: a map from whole prefixes to flags.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "k3/cache/fake_model_test.h"

namespace k3::cache {
namespace {

using namespace testing;

struct Flags {
  bool checkpoint = false, hit = false;
  int maker = -1;  // the sequence whose newest (to be recycled) checkpoint this is
};

// What an unbounded cache holds, by the token prefixes themselves.
class NaiveIndex {
 public:
  explicit NaiveIndex(bool states) : states_(states) {}

  struct Hit {
    int64_t matched = 0, boundary = 0;
  };
  Hit find(const std::vector<int32_t>& prompt) const {
    Hit hit;
    for (int64_t end = kBlock; end < static_cast<int64_t>(prompt.size()); end += kBlock) {
      const auto at = blocks_.find(first(prompt, end));
      if (at == blocks_.end()) break;
      hit.matched = end;
      if (!states_ || at->second.checkpoint) hit.boundary = end;
    }
    return hit;
  }
  void mark_hit(const std::vector<int32_t>& prompt, int64_t boundary) { blocks_[first(prompt, boundary)].hit = true; }
  void add_blocks(const std::vector<int32_t>& tokens, int64_t length) {
    for (int64_t end = kBlock; end <= length; end += kBlock) blocks_[first(tokens, end)];
  }
  void add_checkpoint(const std::vector<int32_t>& tokens, int64_t position, bool rolling, int maker) {
    for (auto& [prefix, flags] : blocks_) {
      if (flags.checkpoint && flags.maker == maker) flags.checkpoint = flags.hit;
      if (flags.maker == maker) flags.maker = -1;
    }
    Flags& flags = blocks_[first(tokens, position)];
    if (flags.checkpoint) return;
    flags = {true, false, rolling ? maker : -1};
  }
  void end(int maker) {
    for (auto& [prefix, flags] : blocks_) {
      if (flags.maker == maker) flags.maker = -1;
    }
  }

 private:
  static std::vector<int32_t> first(const std::vector<int32_t>& tokens, int64_t count) {
    return {tokens.begin(), tokens.begin() + count};
  }
  bool states_;
  std::map<std::vector<int32_t>, Flags> blocks_;
};

// The longest boundary valid in all groups, by what the cache says it holds.
NaiveIndex::Hit longest(const HybridCache& cache, const std::vector<BlockKey>& keys, int64_t tokens) {
  NaiveIndex::Hit hit;
  const auto contents = cache.contents();
  for (size_t block = 0; block < keys.size() && static_cast<int64_t>(block + 1) * kBlock < tokens; ++block) {
    const auto at = std::ranges::find(contents, keys[block], &CachedBlock::key);
    if (at == contents.end()) break;
    hit.matched = static_cast<int64_t>(block + 1) * kBlock;
    if (at->checkpoint) hit.boundary = hit.matched;
  }
  return hit;
}

class Schedule {
 public:
  // naive: null when the pool is small and entries come and go.
  Schedule(HybridCache& cache_, const std::vector<uint32_t>& program_, NaiveIndex* naive_, int64_t every_tokens_, bool tiers_ = false, bool flush_ = false)
      : cache(cache_), program(program_), naive(naive_), every_tokens(every_tokens_), tiers(tiers_), flush(flush_) {}

  void run() {
    for (at_ = 0; at_ < program.size();) {
      command();
      const Status status = cache.check();
      if (!status.ok()) RC_FAIL(status.error().message);
    }
    while (!running_.empty()) release(0);
    RC_ASSERT(cache.check().ok());
    const CacheStats stats = cache.stats();
    RC_ASSERT(stats.pages_running_mla + stats.pages_running_kda + stats.pinned_pages == 0);
    RC_ASSERT(stats.pages_free + stats.pages_cached_mla + stats.pages_cached_kda + stats.quarantined_pages == stats.pages);
    cache.clear_quarantine();
    if (flush) {
      RC_ASSERT(cache.flush().ok());
      return;
    }
    cache.reset();
    RC_ASSERT(cache.stats().pages_free == stats.pages);
    RC_ASSERT(cache.contents().empty());
  }

 private:
  struct Live {
    FakeRun runner;
    int number;
  };

  uint32_t draw(uint32_t below) { return at_ < program.size() ? program[at_++] % below : 0; }

  void command() {
    const uint32_t kind = draw(100);
    if (kind < 30 || running_.empty()) return admit();
    const size_t which = draw(static_cast<uint32_t>(running_.size()));
    if (kind < 75) return step(which);
    if (kind < 88) return release(which);
    if (kind < 93) return fork(which);
    if (naive != nullptr) return;
    if (kind < 96) {
      cache.quarantine(running_[which].runner.id);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (kind < 98) {
      cache.clear_quarantine();
    } else {
      cache.reset();
    }
  }

  // A prefix of something seen, then something of few kinds: prefixes meet and part at any place.
  void admit() {
    std::vector<int32_t> prompt;
    if (!texts_.empty() && draw(5) > 0) {
      const auto& old = texts_[draw(static_cast<uint32_t>(texts_.size()))];
      const auto keep = draw(3) == 0 ? draw(static_cast<uint32_t>(old.size() + 1)) : static_cast<uint32_t>(old.size());
      prompt.assign(old.begin(), old.begin() + keep);
    }
    std::vector<int64_t> turns{static_cast<int64_t>(prompt.size())};
    prompt = joined(prompt, text(draw(3) == 0 ? 16 * draw(5) : draw(70), static_cast<int32_t>(draw(3))));
    if (prompt.empty()) prompt = {1};
    FakeModel model(cache);
    const NaiveIndex::Hit held = longest(cache, model.keys(prompt), static_cast<int64_t>(prompt.size()));
    Admission got;
    auto runner = model.admit(prompt, &got, turns);
    if (!runner.ok()) {
      RC_ASSERT(runner.error().code == Code::exhausted || runner.error().code == Code::invalid_argument);
      RC_ASSERT(naive == nullptr);
      return;
    }
    RC_ASSERT(model.content(*runner).empty());
    RC_ASSERT(cache.length(runner->id) == got.cached_tokens);
    RC_ASSERT((tiers ? model.peeked().cached_tokens >= held.boundary : model.peeked().cached_tokens == held.boundary));
    RC_ASSERT((tiers ? model.peeked().matched_tokens >= held.matched : model.peeked().matched_tokens == held.matched));
    if (!tiers && got.cached_tokens != held.boundary) {  // no room for source and copy, and nobody to wait for
      RC_ASSERT(got.cached_tokens == 0 && running_.empty() && naive == nullptr);
    }
    if (naive != nullptr) {
      const NaiveIndex::Hit expected = naive->find(prompt);
      RC_ASSERT(expected.matched == held.matched);
      RC_ASSERT(expected.boundary == held.boundary);
      if (held.boundary > 0) naive->mark_hit(prompt, held.boundary);
    }
    texts_.push_back(prompt);
    running_.push_back({*std::move(runner), next_number_++});
  }

  void step(size_t which) {
    FakeRun& runner = running_[which].runner;
    const int64_t length = cache.length(runner.id);
    int64_t end = length + 1 + draw(draw(2) == 0 ? 3 : 70);
    if (length < runner.prompt_tokens) end = std::min(end, runner.prompt_tokens);
    const Status grown = cache.grow(runner.id, end);
    if (!grown.ok()) {
      RC_ASSERT(naive == nullptr);
      return;
    }
    FakeModel model(cache);
    const auto next = static_cast<int32_t>(draw(3));
    const bool lands = draw(10) > 0;
    const auto written = model.step(runner, end, next, lands);
    RC_ASSERT(model.content(runner).empty());
    if (naive != nullptr && lands) {
      naive->add_blocks(runner.tokens, end);
      for (const int64_t position : written) {
        const bool every = every_tokens != 0 && position % every_tokens == 0;
        naive->add_checkpoint(runner.tokens, position, position > runner.prompt_tokens && !every, running_[which].number);
      }
    }
    if (!lands) runner.tokens.resize(static_cast<size_t>(std::max(length, runner.prompt_tokens)));
  }

  void release(size_t which) {
    const Live& live = running_[which];
    const auto length = std::max(cache.length(live.runner.id), live.runner.prompt_tokens);
    texts_.emplace_back(live.runner.tokens.begin(), live.runner.tokens.begin() + length);
    cache.release(live.runner.id);
    if (naive != nullptr) naive->end(live.number);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void fork(size_t which) {
    const auto id = cache.fork(running_[which].runner.id);
    if (!id.ok()) {
      RC_ASSERT(naive == nullptr);
      return;
    }
    Live copy{running_[which].runner, next_number_++};
    copy.runner.id = *id;
    RC_ASSERT(FakeModel(cache).content(copy.runner).empty());
    running_.push_back(std::move(copy));
  }

  HybridCache& cache;
  const std::vector<uint32_t>& program;
  NaiveIndex* naive;
  int64_t every_tokens;
  bool tiers, flush;
  size_t at_ = 0;
  std::vector<Live> running_;
  std::vector<std::vector<int32_t>> texts_;
  int next_number_ = 0;
};

std::vector<uint32_t> draw_program(size_t length) {
  return *rc::gen::container<std::vector<uint32_t>>(length, rc::gen::arbitrary<uint32_t>().as("program"));
}

CheckpointPolicy draw_policy() {
  return {*rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(), *rc::gen::element<int64_t>(0, 32, 64), *rc::gen::arbitrary<bool>(),
          false};
}

// One in three pools lies on a device.
void draw_place(CacheOptions& options) {
  if (*rc::gen::weightedElement<bool>({{2, false}, {1, true}})) options.queue = std::make_shared<FakeDevice>();
}

LayerCounts draw_layers() {
  return *rc::gen::element(LayerCounts{2, 3, 150, 9, 4}, LayerCounts{1, 3, 100, 0, 4}, LayerCounts{2, 0, 0, 0, 4},
                           LayerCounts{2, 2, 20, 5, 5}, LayerCounts{0, 2, 20, 5, 0});
}

RC_GTEST_PROP(HybridCacheProperty, UnboundedPoolFindsWhatTheNaiveIndexFinds, ()) {
  CacheOptions options = tiny_options(0);
  const LayerCounts layers = draw_layers();
  options.shape = *make_shape(layers, {}, kBlock);
  options.pool_bytes = 1000 * options.shape.page_bytes;
  options.policy = draw_policy();
  options.backed = *rc::gen::arbitrary<bool>();
  draw_place(options);
  const auto cache = *HybridCache::create(options);
  NaiveIndex naive(layers.kda_layers > 0);
  const auto program = draw_program(300);
  Schedule(*cache, program, &naive, options.policy.every_tokens).run();
}

RC_GTEST_PROP(HybridCacheProperty, SmallPoolHandsOutOnlyWhatIsTrue, ()) {
  CacheOptions options = tiny_options(0);
  options.shape = *make_shape(draw_layers(), {}, kBlock);
  options.pool_bytes = *rc::gen::inRange<int64_t>(8, 40) * options.shape.page_bytes;
  options.policy = draw_policy();
  options.policy.chunk_ends = *rc::gen::arbitrary<bool>();
  options.backed = *rc::gen::weightedElement<bool>({{4, true}, {1, false}});
  draw_place(options);
  const auto cache = *HybridCache::create(options);
  const auto program = draw_program(1000);
  Schedule(*cache, program, nullptr, 0).run();
}

RC_GTEST_PROP(HybridCacheProperty, TiersHandOutOnlyWhatIsTrue, ()) {
  CacheOptions options = tiny_options(0);
  options.shape = *make_shape(draw_layers(), {}, kBlock);
  options.pool_bytes = *rc::gen::inRange<int64_t>(8, 30) * options.shape.page_bytes;
  options.host_bytes = *rc::gen::inRange<int64_t>(0, 60) * options.shape.page_bytes;
  options.policy = draw_policy();
  options.compare_tokens = *rc::gen::arbitrary<bool>();
  options.backed = *rc::gen::weightedElement<bool>({{4, true}, {1, false}});
  std::string folder = ::testing::TempDir() + "k3_cache_XXXXXX";
  const bool disk = options.backed && *rc::gen::weightedElement<bool>({{1, true}, {3, false}});
  if (disk) {
    options.disk_folder = ::mkdtemp(folder.data());
    options.disk_bytes = *rc::gen::inRange<int64_t>(4, 100) * 4096 * (options.shape.page_bytes / 4096 + 5);
  }
  draw_place(options);
  // With a disk the second process goes on from the folder of the first.
  for (int process = 0; process < (disk ? 2 : 1); ++process) {
    auto cache = *HybridCache::create(options);
    const auto program = draw_program(disk ? 400 : 1000);
    Schedule(*cache, program, nullptr, 0, true, disk).run();
    RC_ASSERT(cache->stats().tier_errors == 0);
  }
  if (disk) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace k3::cache
