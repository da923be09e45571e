// Purpose:  what may be evicted, least valuable first: a binary heap with a place for every id.
// Shapes:   ids 0 .. capacity - 1.
// Units:    values as the caller means them; equal values leave in the order of insertion.
// Memory:   allocated once.
// Threads:  one thread.
// Errors:   CHECKs for an id inserted twice or taken from an empty heap.
// Source:   GreedyDual (Young 1994; Cao and Irani 1997): value = inflation + cost / size; the inflation is the value of what
//           was evicted last, so that what is not used again grows old without being touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace k3::cache {

class EvictHeap {
 public:
  explicit EvictHeap(int64_t capacity) : places_(static_cast<size_t>(capacity), kOut) {}

  bool empty() const { return heap_.empty(); }
  int64_t size() const { return static_cast<int64_t>(heap_.size()); }
  bool contains(int32_t id) const { return places_[static_cast<size_t>(id)] != kOut; }
  int32_t top() const { return heap_.front().id; }
  double top_value() const { return heap_.front().value; }
  void insert(int32_t id, double value);
  void erase(int32_t id);  // nothing when it is not there

 private:
  static constexpr int32_t kOut = -1;
  struct Entry {
    double value;
    uint64_t order;
    int32_t id;
    bool operator<(const Entry& other) const { return value != other.value ? value < other.value : order < other.order; }
  };
  void put(size_t place, const Entry& entry);
  void sift_up(size_t place);
  void sift_down(size_t place);

  std::vector<Entry> heap_;
  std::vector<int32_t> places_;
  uint64_t next_order_ = 0;
};

}  // namespace k3::cache
