// Purpose:  one random schedule of requests on a small engine: every answer must be the plain loop's, to the bit of every
//           token. Test code only.
// Shapes:   none.
// Units:    tokens.
// Memory:   by value.
// Threads:  single-threaded.
// Errors:   failures are test failures that print the seed.
// Source:   serving.md 11.1. Arrivals, shared prefixes, chunk sizes, evictions, preemptions, cancels, forks, idle sequences,
//           saved and restored slots and restarts on a disk tier are drawn from the seed. Freed pages are poisoned.
#pragma once

#include <random>

#include "k3/engine/tiny_model_test.h"

namespace k3::test {

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : seed_(seed), engine_(seed) {}

  void run() {
    SCOPED_TRACE(fmt::format("schedule seed {}", seed_));
    mode_.deterministic = true;
    mode_.policy = below(4) == 0 ? ops::Policy::bf16 : ops::Policy::exact;
    for (int i = 0; i < 3; ++i) prefixes_.push_back(random_ids(20 + below(120)));
    const bool disk = below(3) == 0;
    folder_ = testing::TempDir() + fmt::format("k3_schedule_{}_{}", ::getpid(), seed_);
    if (disk) std::filesystem::create_directories(folder_);
    const uint64_t lives = disk ? 2 : 1;
    for (uint64_t life = 0; life < lives && !testing::Test::HasFailure(); ++life) one_life(disk);
    std::filesystem::remove_all(folder_);
  }

 private:
  struct Entry {
    Request request;  // as submitted, without callbacks
    Outcome outcome;
    RequestId id{};
    bool cancelled = false;
    uint64_t arrives = 0;
  };

  uint64_t below(uint64_t n) { return engine_() % n; }

  std::vector<int32_t> random_ids(uint64_t count) {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(below(96)));
    return ids;
  }

  Request random_request() {
    Request r;
    const std::vector<int32_t>& prefix = prefixes_[below(prefixes_.size())];
    r.prompt.assign(prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(1 + below(prefix.size())));
    const std::vector<int32_t> rest = random_ids(below(40));
    r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
    // Now and then a conversation goes on from an answer.
    if (!finished_.empty() && below(3) == 0) {
      r.prompt = finished_[below(finished_.size())];
      const std::vector<int32_t> more = random_ids(1 + below(20));
      if (r.prompt.size() < 250) r.prompt.insert(r.prompt.end(), more.begin(), more.end());
    }
    if (r.prompt.size() > 60) r.turn_ends = {static_cast<int64_t>(r.prompt.size() / 2)};
    r.max_tokens = static_cast<int64_t>(1 + below(30));
    r.choices = below(5) == 0 ? 3 : 1;
    r.sampling.temperature = below(2) == 0 ? 0.0F : 1.0F;
    r.sampling.seed = below(1000);
    if (below(3) == 0) r.sampling.presence_penalty = 0.5F;
    if (below(4) == 0) r.stop_ids = {static_cast<int32_t>(below(96)), 1};
    r.cache_salt = below(6) == 0 ? "other" : "";
    r.use_cache = below(8) != 0;
    return r;
  }

  void one_life(bool disk) {
    const auto pages = static_cast<int64_t>(14 + below(40));
    TinyEngine tiny_engine(mode_, pages, [&](TinyEngine& e) {
      e.options.step_tokens = static_cast<int64_t>(1 + below(80));
      e.options.max_running = static_cast<int64_t>(3 + below(3));
      e.options.keep_idle = below(2) == 0;
      e.options.schedule = below(2) == 0 ? SchedulePolicy::fcfs : SchedulePolicy::slo;
      e.cache_options.policy.every_tokens = below(3) == 0 ? 32 : 0;
      e.cache_options.policy.second_sighting = below(2) == 0;
      e.cache_options.policy.turn_ends = below(3) != 0;
      if (below(2) == 0) e.cache_options.host_bytes = static_cast<int64_t>(1 + below(30)) * e.cache_options.shape.page_bytes;
      if (disk) {
        e.cache_options.disk_folder = folder_;
        e.cache_options.disk_bytes = static_cast<int64_t>(10 + below(100)) * e.cache_options.shape.page_bytes;
      }
    });
    EngineCore& core = *tiny_engine.core;
    std::list<Entry> entries;
    const uint64_t count = 4 + below(9);
    for (uint64_t i = 0; i < count; ++i) {
      Entry& e = entries.emplace_back();
      e.arrives = below(60);
    }
    uint64_t waiting = count;
    for (uint64_t step = 0; waiting > 0 || core.has_work(); ++step) {
      ASSERT_LT(step, 20000u) << "the engine does not come to an end";
      for (Entry& e : entries) {
        if (e.id == RequestId{} && (e.arrives <= step || !core.has_work())) {
          e.request = random_request();
          Request submitted = e.request;
          listen(submitted, e.outcome);
          e.id = tiny_engine.submit(std::move(submitted));
          --waiting;
          break;
        }
      }
      if (below(40) == 0) cancel_one(core, entries);
      if (below(25) == 0) move_slots(core);
      core.step();
      if (below(10) == 0) {
        const Status status = tiny_engine.cache->check();
        ASSERT_TRUE(status.ok()) << status.error().message;
      }
      note_finished(entries);
    }
    for (const Entry& e : entries) expect_answer(e, tiny_engine.options.ctx_tokens);
    core.stop_all(EndReason::interrupted);
    const Status status = tiny_engine.cache->check();
    ASSERT_TRUE(status.ok()) << status.error().message;
    const cache::CacheStats stats = tiny_engine.cache->stats();
    EXPECT_EQ(stats.pages_running_mla + stats.pages_running_kda + stats.pinned_pages + stats.quarantined_pages, 0);
    hits += stats.hit_tokens;
    preemptions += core.stats().preemptions;
    evictions += stats.evicted_pages;
    disk_hits += stats.disk_hits;
    EXPECT_TRUE(tiny_engine.cache->flush().ok());
  }

  void cancel_one(EngineCore& core, std::list<Entry>& entries) {
    for (Entry& e : entries) {
      if (e.id == RequestId{} || e.outcome.done > 0 || below(2) == 0) continue;
      core.cancel(e.id);
      e.cancelled = true;
      EXPECT_EQ(e.outcome.done, 1);
      return;
    }
  }

  void move_slots(EngineCore& core) {
    const auto slot = static_cast<int32_t>(below(3));
    const std::string file = testing::TempDir() + fmt::format("k3_slot_{}_{}", ::getpid(), seed_);
    switch (below(4)) {
      case 0: (void)core.fork_slot(slot).ok(); break;
      case 1: (void)core.erase_slot(slot).ok(); break;
      default:
        if (core.save_slot(slot, file).ok()) (void)core.restore_slot(static_cast<int32_t>(below(3)), file).ok();
        std::filesystem::remove(file);
    }
  }

  void note_finished(const std::list<Entry>& entries) {
    for (const Entry& e : entries) {
      if (e.outcome.done == 0 || e.cancelled || e.outcome.ids[0].empty() || finished_.size() > 6 || below(4) != 0) continue;
      std::vector<int32_t> all = e.request.prompt;
      all.insert(all.end(), e.outcome.ids[0].begin(), e.outcome.ids[0].end());
      finished_.push_back(std::move(all));
    }
  }

  void expect_answer(const Entry& e, int64_t ctx_tokens) {
    ASSERT_EQ(e.outcome.done, 1);
    ASSERT_FALSE(e.outcome.summary->error.has_value()) << e.outcome.summary->error->message;
    for (int32_t c = 0; c < e.request.choices; ++c) {
      const std::vector<int32_t>& got = e.outcome.ids[static_cast<size_t>(c)];
      std::vector<int32_t> want = plain_answer(e.request, c, mode_, ctx_tokens);
      if (e.cancelled) want.resize(std::min(want.size(), got.size()));
      EXPECT_EQ(got, want) << "choice " << c << " of a prompt of " << e.request.prompt.size() << ", " << e.outcome.admitted->cached_tokens
                           << " cached";
      if (testing::Test::HasFailure()) return;
    }
  }

 public:
  static inline int64_t hits = 0, preemptions = 0, evictions = 0, disk_hits = 0;

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
  ComputeMode mode_;
  std::string folder_;
  std::vector<std::vector<int32_t>> prefixes_, finished_;
};

}  // namespace k3::test
