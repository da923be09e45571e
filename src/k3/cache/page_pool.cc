#include "k3/cache/page_pool.h"

#include <cstring>

namespace k3::cache {

namespace {

constexpr int kPoison = 0xFF;

}  // namespace

Result<PagePool> PagePool::create(int64_t page_bytes, int64_t count, bool backed, bool poison) {
  PagePool pool;
  pool.page_bytes_ = page_bytes;
  pool.count_ = count;
  pool.poison_ = poison && backed;
  if (backed) {
    K3_TRY_ASSIGN(pool.storage_, Storage::reserve(page_bytes * count));
    if (pool.poison_) std::memset(pool.storage_.data(), kPoison, static_cast<size_t>(page_bytes * count));
  }
  pool.free_.reserve(static_cast<size_t>(count));
  for (int64_t page = count - 1; page >= 0; --page) pool.free_.push_back(static_cast<int32_t>(page));
  return pool;
}

int32_t PagePool::take() {
  if (free_.empty()) return kNone;
  const int32_t page = free_.back();
  free_.pop_back();
  if (page == fresh_) {
    ++fresh_;
    // Half a page of latents, or the tail that a group's states leave, would be taken by whoever fills more of it much later:
    // a server that grows for hours. (Poisoned pages have been written as a whole.)
    if (!poison_) zero(page);
  }
  return page;
}

void PagePool::give(int32_t page) {
  if (poison_) std::memset(data(page), kPoison, static_cast<size_t>(page_bytes_));
  free_.push_back(page);
}

void PagePool::zero(int32_t page) {
  if (backed()) std::memset(data(page), 0, static_cast<size_t>(page_bytes_));
}

void PagePool::quarantine(int32_t page) {
  zero(page);
  quarantine_.push_back(page);
}

void PagePool::clear_quarantine() {
  for (const int32_t page : quarantine_) give(page);
  quarantine_.clear();
}

}  // namespace k3::cache
