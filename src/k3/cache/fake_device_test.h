// Internal to tests. A device whose memory the host cannot touch: its addresses fault when they are dereferenced, and what is
// queued is done as late as it may be.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "k3/cache/device_queue.h"

namespace k3::cache::testing {

class FakeDevice final : public DeviceQueue {
 public:
  ~FakeDevice() override {
    for (const Region& r : regions_) {
      ::munmap(r.outside, r.bytes);
      ::munmap(r.inside, r.bytes);
    }
  }

  // Two views of the same memory: the one that is handed out cannot be touched.
  Result<std::byte*> allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    const int file = ::memfd_create("k3_fake_device", 0);
    K3_CHECK(file >= 0 && ::ftruncate(file, bytes) == 0);
    Region r;
    r.bytes = size;
    r.outside = static_cast<std::byte*>(::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0));
    r.inside = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    K3_CHECK(r.outside != MAP_FAILED && r.inside != MAP_FAILED);
    ::close(file);
    regions_.push_back(r);
    return r.outside;
  }
  Result<std::byte*> allocate_host(int64_t bytes) override {
    ++host_allocations;
    memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
    host_.push_back({memory_.back().get(), memory_.back().get(), static_cast<size_t>(bytes)});
    return memory_.back().get();
  }

  Status copy(void* to, const void* from, int64_t bytes) override {
    K3_CHECK(known(to, bytes) && known(from, bytes), "a copy outside of the device and its host memory");
    return queue([this, to, from, bytes] { std::memcpy(reach(to), reach(from), static_cast<size_t>(bytes)); });
  }
  Status fill(void* to, int value, int64_t bytes) override {
    return queue([this, to, value, bytes] { std::memset(reach(to), value, static_cast<size_t>(bytes)); });
  }
  Status mark() override {
    marked_ = todo_.size();
    return lost();
  }
  Status wait() override {
    for (; marked_ > 0; --marked_) {
      todo_.front()();
      todo_.pop_front();
    }
    return lost();
  }

  int64_t host_allocations = 0;
  int64_t copies_left = -1;  // then the device is lost; -1: never

 private:
  struct Region {
    std::byte *outside = nullptr, *inside = nullptr;
    size_t bytes = 0;
    bool holds(const void* address, size_t count) const {
      const auto* at = static_cast<const std::byte*>(address);
      return at >= outside && at + count <= outside + bytes;
    }
  };

  Status lost() const {
    if (copies_left == 0) return fail(Code::device_lost, "the fake device is gone");
    return {};
  }
  Status queue(std::function<void()> work) {
    K3_TRY(lost());
    if (copies_left > 0) --copies_left;
    todo_.push_back(std::move(work));
    return {};
  }
  bool known(const void* address, int64_t bytes) const {
    const auto holds = [&](const Region& r) { return r.holds(address, static_cast<size_t>(bytes)); };
    return std::any_of(regions_.begin(), regions_.end(), holds) || std::any_of(host_.begin(), host_.end(), holds);
  }
  std::byte* reach(const void* address) const {
    for (const Region& r : regions_) {
      if (r.holds(address, 0)) return r.inside + (static_cast<const std::byte*>(address) - r.outside);
    }
    return static_cast<std::byte*>(const_cast<void*>(address));
  }

  std::vector<Region> regions_, host_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::deque<std::function<void()>> todo_;
  size_t marked_ = 0;  // of todo_, from the front
};

}  // namespace k3::cache::testing
