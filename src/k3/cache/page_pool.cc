#include "k3/cache/page_pool.h"

namespace k3::cache {

namespace {

constexpr int kPoison = 0xFF;

}  // namespace

PagePool::PagePool(PageMemory memory, int64_t count, bool poison) : memory_(std::move(memory)), count_(count), poison_(poison) {
  free_.reserve(static_cast<size_t>(count));
  for (int64_t page = count - 1; page >= 0; --page) {
    if (poison_) memory_.fill(static_cast<int32_t>(page), kPoison);
    free_.push_back(static_cast<int32_t>(page));
  }
}

int32_t PagePool::take() {
  if (free_.empty()) return kNone;
  const int32_t page = free_.back();
  free_.pop_back();
  if (page == fresh_) {
    ++fresh_;
    // Half a page of latents, or the tail that a group's states leave, would be taken by whoever fills more of it much later:
    // a server that grows for hours. (Poisoned pages have been written as a whole.)
    if (!poison_ && memory_.on_host()) zero(page);
  }
  return page;
}

void PagePool::give(int32_t page) {
  if (poison_) memory_.fill(page, kPoison);
  free_.push_back(page);
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
