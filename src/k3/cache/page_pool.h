// Purpose:  the pages of one size that MLA latents and KDA states share: which are free, and the memory of their bytes.
// Shapes:   pages 0 .. count - 1 of page_bytes each.
// Units:    bytes, pages.
// Memory:   page_memory.h. On the host a page's memory is taken from the system whole when the page is taken a first time, and
//           kept: a pool whose pages have all been in use has its final size, whatever parts of them were written. New pages are
//           taken only when no used one is free.
// Threads:  one thread.
// Errors:   take returns kNone when no page is free.
// Source:   serving.md 2, 3.4: freed pages can be poisoned (all bytes 0xFF: NaN in every floating dtype), so that a read of
//           what nobody wrote shows. Quarantined pages are zeroed and stay out of use until they are cleared.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/cache/page_memory.h"

namespace k3::cache {

class PagePool {
 public:
  static constexpr int32_t kNone = -1;

  PagePool(PageMemory memory, int64_t count, bool poison);

  int64_t count() const { return count_; }
  int64_t free_count() const { return static_cast<int64_t>(free_.size()); }
  int64_t quarantined_count() const { return static_cast<int64_t>(quarantine_.size()); }
  bool backed() const { return memory_.backed(); }
  PageMemory& memory() { return memory_; }

  int32_t take();
  void give(int32_t page);
  void zero(int32_t page) { memory_.fill(page, 0); }
  void quarantine(int32_t page);
  void clear_quarantine();
  const std::vector<int32_t>& free_pages() const { return free_; }
  const std::vector<int32_t>& quarantined_pages() const { return quarantine_; }

 private:
  PageMemory memory_;
  int64_t count_;
  int32_t fresh_ = 0;  // the first page that was never taken; nor was any behind it
  bool poison_;
  std::vector<int32_t> free_, quarantine_;  // last in, first out: memory that was touched is used again
};

}  // namespace k3::cache
