// Purpose:  the pages of one size that MLA latents and KDA states share: which are free, where their bytes lie.
// Shapes:   pages 0 .. count - 1 of page_bytes each, one behind the other.
// Units:    bytes, pages.
// Memory:   one reservation (4 KiB-aligned); none when not backed. A page's memory is taken from the system whole when the
//           page is taken a first time, and kept: a pool whose pages have all been in use has its final size, whatever parts
//           of them were written. New pages are taken only when no used one is free.
// Threads:  one thread.
// Errors:   create: exhausted when the address space cannot be had. take returns kNone when no page is free.
// Source:   serving.md 2, 3.4: freed pages can be poisoned (all bytes 0xFF: NaN in every floating dtype), so that a read of
//           what nobody wrote shows. Quarantined pages are zeroed and stay out of use until they are cleared.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/base/result.h"
#include "k3/tensor/tensor.h"

namespace k3::cache {

class PagePool {
 public:
  static constexpr int32_t kNone = -1;

  static Result<PagePool> create(int64_t page_bytes, int64_t count, bool backed, bool poison);

  int64_t count() const { return count_; }
  int64_t free_count() const { return static_cast<int64_t>(free_.size()); }
  int64_t quarantined_count() const { return static_cast<int64_t>(quarantine_.size()); }
  bool backed() const { return storage_.data() != nullptr; }
  std::byte* base() const { return storage_.data(); }
  std::byte* data(int32_t page) const { return backed() ? storage_.data() + page * page_bytes_ : nullptr; }

  int32_t take();
  void give(int32_t page);
  void zero(int32_t page);
  void quarantine(int32_t page);
  void clear_quarantine();
  const std::vector<int32_t>& free_pages() const { return free_; }
  const std::vector<int32_t>& quarantined_pages() const { return quarantine_; }

 private:
  int64_t page_bytes_ = 0, count_ = 0;
  int32_t fresh_ = 0;  // the first page that was never taken; nor was any behind it
  bool poison_ = false;
  Storage storage_;
  std::vector<int32_t> free_, quarantine_;  // last in, first out: memory that was touched is used again
};

}  // namespace k3::cache
