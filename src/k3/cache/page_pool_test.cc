#include "k3/cache/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace k3::cache {
namespace {

constexpr int64_t kPageBytes = 40'000;  // no multiple of the system's pages, as k3's need not be

PagePool host_pool(int64_t pages, bool poison = false) { return {*PageMemory::on_host(kPageBytes, pages), pages, poison}; }

std::byte* data(PagePool& pool, int32_t page) { return pool.memory().base() + page * kPageBytes; }

// Which of the system's pages under the first `pages` pages of a pool are in memory.
std::vector<bool> resident(PagePool& pool, int64_t pages) {
  const auto size = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> marks(static_cast<size_t>((pages * kPageBytes + size - 1) / size));
  EXPECT_EQ(::mincore(pool.memory().base(), static_cast<size_t>(pages * kPageBytes), marks.data()), 0);
  std::vector<bool> out;
  for (const unsigned char mark : marks) out.push_back((mark & 1) != 0);
  return out;
}

int64_t count(const std::vector<bool>& marks) { return std::ranges::count(marks, true); }

TEST(PagePool, APageTakesItsMemoryAsAWholeWhenItIsFirstTaken) {
  for (const int64_t pages : {1, 2, 7, 30}) {
    PagePool pool = host_pool(pages);
    EXPECT_EQ(count(resident(pool, pages)), 0) << pages;
    for (int64_t taken = 1; taken <= pages; ++taken) {
      const int32_t page = pool.take();
      EXPECT_EQ(page, taken - 1);
      const std::vector<bool> first = resident(pool, taken);
      EXPECT_EQ(count(first), std::ssize(first)) << pages << " pages, " << taken << " taken";
      EXPECT_EQ(count(resident(pool, pages)), std::ssize(first)) << "memory of pages that nobody has asked for";
    }
    // Only now: a look at memory counts as its use.
    EXPECT_TRUE(std::all_of(pool.memory().base(), pool.memory().base() + pages * kPageBytes, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(pool.take(), PagePool::kNone);
  }
}

TEST(PagePool, UsedPagesComeBeforeNewOnesAndKeepTheirBytes) {
  PagePool pool = host_pool(8);
  for (int i = 0; i < 4; ++i) pool.take();
  for (const int32_t page : {2, 0, 3}) {
    std::memset(data(pool, page), 7, kPageBytes);
    pool.give(page);
  }
  const int64_t before = count(resident(pool, 8));
  for (const int32_t page : {3, 0, 2}) {
    EXPECT_EQ(pool.take(), page);
    EXPECT_EQ(data(pool, page)[kPageBytes - 1], std::byte{7}) << "nobody promised zeros, and they would cost time";
  }
  EXPECT_EQ(count(resident(pool, 8)), before);
  EXPECT_EQ(pool.take(), 4);
  pool.quarantine(4);
  EXPECT_EQ(pool.take(), 5);
  pool.clear_quarantine();
  EXPECT_EQ(pool.take(), 4);
  EXPECT_EQ(pool.take(), 6);
}

TEST(PagePool, PoisonedPagesStayPoisonedAndAPoolWithoutBytesHasNone) {
  PagePool poisoned = host_pool(3, true);
  for (int i = 0; i < 3; ++i) {
    const int32_t page = poisoned.take();
    EXPECT_TRUE(std::all_of(data(poisoned, page), data(poisoned, page) + kPageBytes, [](std::byte b) { return b == std::byte{0xFF}; }));
  }
  PagePool bare(PageMemory(), 3, true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bare.take(), i);
  EXPECT_FALSE(bare.backed());
  EXPECT_EQ(bare.take(), PagePool::kNone);
}

}  // namespace
}  // namespace k3::cache
