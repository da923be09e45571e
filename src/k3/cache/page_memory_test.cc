// Bytes of pages on the host and on a device that does things late.
#include "k3/cache/page_memory.h"

#include <gtest/gtest.h>

#include "k3/cache/fake_model_test.h"

namespace k3::cache {
namespace {

using namespace testing;

constexpr int64_t kPage = 256;

PageMemory make(std::shared_ptr<DeviceQueue> queue = make_queue()) {
  return queue == nullptr ? PageMemory::on_host(kPage, 8).value() : PageMemory::on_device(kPage, 8, std::move(queue)).value();
}

void put(PageMemory& memory, int32_t page, int64_t offset, int64_t bytes, uint64_t seed) {
  fill(memory.open(std::span(&page, 1)).value().front() + offset, bytes, seed);
  memory.store(0, offset, bytes);
}

const std::byte* get(PageMemory& memory, int32_t page) { return memory.read(std::span(&page, 1)).value().front(); }

class PageMemoryOnBoth : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(Pools, PageMemoryOnBoth, ::testing::Values(Where::host, Where::device), where_name);

TEST_P(PageMemoryOnBoth, CopiesFillsAndPartsOfPagesAreInOrder) {
  PageMemory memory = make();
  EXPECT_TRUE(memory.backed());
  EXPECT_TRUE(filled(get(memory, 7), kPage, 0));
  put(memory, 1, 0, kPage, 11);
  memory.copy(1, 2, 64, 100);
  put(memory, 1, 0, kPage, 22);  // after the copy was queued
  memory.copy(1, 3, 0, kPage);
  memory.fill(1, 0xFF);
  const std::byte* two = get(memory, 2);
  EXPECT_TRUE(filled(two, 64, 0) && filled(two + 164, kPage - 164, 0));
  EXPECT_FALSE(filled(two + 64, 100, 0));
  EXPECT_TRUE(filled(get(memory, 3), kPage, 22));
  for (int64_t i = 0; i < kPage; ++i) EXPECT_EQ(get(memory, 1)[i], std::byte{0xFF});
  put(memory, 3, 16, 32, 5);
  const std::byte* three = get(memory, 3);
  EXPECT_TRUE(filled(three + 16, 32, 5));
  EXPECT_EQ(three[48], static_cast<std::byte>(22ULL >> (8 * (48 % 7))));
}

TEST_P(PageMemoryOnBoth, SeveralPagesAtOnce) {
  PageMemory memory = make();
  const std::vector<int32_t> pages = {5, 0, 3};
  const auto images = memory.open(pages).value();
  for (size_t i = 0; i < pages.size(); ++i) fill(images[i], kPage, 100 + i);
  for (size_t i = 0; i < pages.size(); ++i) memory.store(i, 0, kPage);
  // The images are used again while the first copies may still be under way.
  const auto again = memory.open(std::vector<int32_t>{1, 2}).value();
  for (size_t i = 0; i < 2; ++i) fill(again[i], kPage, 200 + i);
  for (size_t i = 0; i < 2; ++i) memory.store(i, 0, kPage);
  const std::vector<int32_t> all = {5, 0, 3, 1, 2};
  const auto got = memory.read(all).value();
  const std::vector<uint64_t> seeds = {100, 101, 102, 200, 201};
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(filled(got[i], kPage, seeds[i])) << i;
}

TEST(PageMemory, WithoutMemoryNothingHappens) {
  PageMemory memory;
  EXPECT_FALSE(memory.backed());
  memory.fill(3, 1);
  memory.copy(3, 4, 0, 100);
  const int32_t page = 3;
  EXPECT_EQ(memory.read(std::span(&page, 1)).value().front(), nullptr);
  EXPECT_EQ(memory.open(std::span(&page, 1)).value().front(), nullptr);
  memory.store(0, 0, 100);
}

TEST(PageMemory, ADeviceThatIsLostStaysLost) {
  auto device = std::make_shared<FakeDevice>();
  PageMemory memory = make(device);
  put(memory, 1, 0, kPage, 9);
  device->copies_left = 1;
  memory.fill(2, 0);
  EXPECT_TRUE(memory.status().ok());
  memory.fill(2, 0);
  memory.copy(1, 2, 0, kPage);
  EXPECT_EQ(memory.status().error().code, Code::device_lost);
  device->copies_left = -1;
  const int32_t page = 1;
  EXPECT_EQ(memory.read(std::span(&page, 1)).error().code, Code::device_lost);
  EXPECT_EQ(memory.open(std::span(&page, 1)).error().code, Code::device_lost);
}

TEST(PageMemory, ImagesAreMadeOnceAndOnlyWhenWanted) {
  auto device = std::make_shared<FakeDevice>();
  PageMemory memory = make(device);
  memory.copy(0, 1, 0, kPage);
  EXPECT_EQ(device->host_allocations, 0);
  for (int round = 0; round < 3; ++round) put(memory, 1, 0, kPage, 9);
  EXPECT_EQ(device->host_allocations, 1);
  (void)memory.read(std::vector<int32_t>{1, 2, 3}).value();
  EXPECT_EQ(device->host_allocations, 3);
}

// What a cache does once its device has failed: no more admissions, nothing touched, all counts kept.
TEST(PageMemory, ACacheOnALostDeviceRefusesAndStaysSound) {
  for (const int64_t copies : {1, 5, 20, 60}) {
    auto device = std::make_shared<FakeDevice>();
    CacheOptions options = tiny_options(20);
    options.queue = device;
    options.host_bytes = 100 * options.shape.page_bytes;
    const auto cache = HybridCache::create(options).value();
    KeyChain chain(kBlock, cache->key_seed(), "tiny");
    chain.append(text(130, 1));
    device->copies_left = copies;
    bool refused = false;
    for (int i = 0; i < 40 && !refused; ++i) {
      const std::vector<int32_t> tokens = text(130, 1);
      const auto admission = cache->admit({chain.keys(), tokens, 130, {}});
      refused = !admission.ok();
      if (refused) {
        EXPECT_EQ(admission.error().code, Code::device_lost);
        break;
      }
      cache->plan_checkpoints(admission->sequence, 130);
      if (i % 2 == 0) cache->abandon(admission->sequence);
      if (i % 2 == 1) cache->commit(admission->sequence, chain.keys(), tokens, 130);
      if (i % 3 == 0) {
        cache->quarantine(admission->sequence);
      } else {
        cache->release(admission->sequence);
      }
      cache->clear_quarantine();
    }
    EXPECT_TRUE(refused) << copies;
    EXPECT_TRUE(cache->check().ok());
    cache->reset();
    EXPECT_EQ(cache->stats().pages_free, cache->stats().pages);
  }
}

}  // namespace
}  // namespace k3::cache
