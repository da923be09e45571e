#include "k3/cache/evict_heap.h"

#include "k3/base/check.h"

namespace k3::cache {

void EvictHeap::put(size_t place, const Entry& entry) {
  heap_[place] = entry;
  places_[static_cast<size_t>(entry.id)] = static_cast<int32_t>(place);
}

void EvictHeap::sift_up(size_t place) {
  const Entry entry = heap_[place];
  while (place > 0 && entry < heap_[(place - 1) / 2]) {
    put(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  put(place, entry);
}

void EvictHeap::sift_down(size_t place) {
  const Entry entry = heap_[place];
  for (;;) {
    size_t child = 2 * place + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < entry)) break;
    put(place, heap_[child]);
    place = child;
  }
  put(place, entry);
}

void EvictHeap::insert(int32_t id, double value) {
  K3_CHECK(!contains(id), "{} is in the heap", id);
  heap_.push_back({value, next_order_++, id});
  sift_up(heap_.size() - 1);
}

void EvictHeap::erase(int32_t id) {
  if (!contains(id)) return;
  const size_t place = static_cast<size_t>(places_[static_cast<size_t>(id)]);
  places_[static_cast<size_t>(id)] = kOut;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  put(place, last);
  sift_up(place);
  sift_down(static_cast<size_t>(places_[static_cast<size_t>(last.id)]));
}

}  // namespace k3::cache
