// The cache on a real GPU: what the fake device promises, and entries of tiers back to the byte.
#include "k3/cache/cuda_queue.h"

#include <stdlib.h>

#include <filesystem>

#include "k3/cache/fake_model_test.h"

namespace k3::cache {
namespace {

using namespace testing;

class CacheOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
    queue_ = CudaQueue::create(Device{0}).value();
  }
  CacheOptions options(int64_t pages) {
    CacheOptions o = tiny_options(pages);
    o.queue = queue_;
    return o;
  }
  std::shared_ptr<CudaQueue> queue_;
};

TEST_F(CacheOnGpu, HitsForksAndQuarantineHoldWhatTheyMust) {
  const auto cache = HybridCache::create(options(64)).value();
  const StreamHandle steps = make_stream().value();
  FakeModel model(*cache);
  EXPECT_EQ(serve(*cache, text(100, 1), 30).cached_tokens, 0);
  ASSERT_TRUE(queue_->follow(steps.get()).ok());
  EXPECT_EQ(serve(*cache, joined(joined(text(100, 1), text(30, 3)), text(40, 2)), 5, {100, 130}).cached_tokens, 128);
  auto run = model.admit(text(70, 9)).value();
  model.step(run, 70);
  FakeRun copy = run;
  copy.id = cache->fork(run.id).value();
  for (int64_t end = 71; end < 120; ++end) {
    ASSERT_TRUE(cache->grow(run.id, end).ok() && cache->grow(copy.id, end).ok());
    model.step(run, end, 7);
    model.step(copy, end, 8);
  }
  EXPECT_EQ(model.content(run) + model.content(copy), "");
  const auto states = cache->state_pages(run.id);
  const std::vector<int32_t> pages(states.begin(), states.end());
  cache->quarantine(run.id);
  const auto zeroed = cache->memory().read(pages).value();
  for (const std::byte* page : zeroed) EXPECT_TRUE(filled(page, cache->shape().page_bytes, 0));
  cache->release(copy.id);
  EXPECT_TRUE(cache->check().ok());
}

TEST_F(CacheOnGpu, TiersGiveBackEveryByte) {
  std::string folder = ::testing::TempDir() + "k3_gpu_tier_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const bool disk : {false, true}) {
    CacheOptions o = options(16);
    o.host_bytes = (disk ? 12 : 200) * o.shape.page_bytes;
    if (disk) {
      o.disk_folder = folder;
      o.disk_bytes = 200 * 4096;
    }
    const auto cache = HybridCache::create(o).value();
    const auto talk = [](int32_t number) { return joined(text(60, number), text(70, number + 1000)); };
    for (int32_t i = 0; i < 20; ++i) serve(*cache, talk(i));
    for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(serve(*cache, joined(talk(i), text(5, 7))).cached_tokens, 128) << i;  // content is checked
    EXPECT_GT(disk ? cache->stats().disk_hits : cache->stats().host_hits, 10);
    EXPECT_EQ(cache->stats().tier_errors, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(CacheOnGpu, SavedSequencesComeBackToTheByte) {
  const auto cache = HybridCache::create(options(64)).value();
  FakeModel model(*cache);
  for (const int64_t length : {1, 47, 48, 130}) {
    auto run = model.admit(text(length, 4)).value();
    model.step(run, length);
    std::vector<std::byte> saved;
    ASSERT_TRUE(cache->save(run.id, [&](std::span<const std::byte> bytes) -> Status {
      saved.insert(saved.end(), bytes.begin(), bytes.end());
      return {};
    }).ok());
    cache->release(run.id);
    cache->reset();
    size_t at = 0;
    FakeRun copy = run;
    copy.id = cache->restore(length, [&](std::span<std::byte> out) -> Status {
      std::memcpy(out.data(), saved.data() + at, out.size());
      at += out.size();
      return {};
    }).value();
    EXPECT_EQ(model.content(copy), "");
    cache->release(copy.id);
  }
}

}  // namespace
}  // namespace k3::cache
