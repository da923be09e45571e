#include "k3/cache/page_memory.h"

#include <cstring>

namespace k3::cache {

Result<PageMemory> PageMemory::on_host(int64_t page_bytes, int64_t count) {
  PageMemory memory;
  memory.page_bytes_ = page_bytes;
  K3_TRY_ASSIGN(memory.host_, Storage::reserve(page_bytes * count));
  memory.base_ = memory.host_.data();
  return memory;
}

Result<PageMemory> PageMemory::on_device(int64_t page_bytes, int64_t count, std::shared_ptr<DeviceQueue> queue) {
  PageMemory memory;
  memory.page_bytes_ = page_bytes;
  K3_TRY_ASSIGN(memory.base_, queue->allocate(page_bytes * count));
  memory.queue_ = std::move(queue);
  return memory;
}

void PageMemory::copy(int32_t from, int32_t to, int64_t offset, int64_t bytes) {
  if (!backed()) return;
  if (queue_ == nullptr) {
    std::memcpy(at(to) + offset, at(from) + offset, static_cast<size_t>(bytes));
  } else if (status_.ok()) {
    note(queue_->copy(at(to) + offset, at(from) + offset, bytes));
  }
}

void PageMemory::fill(int32_t page, int value) {
  if (!backed()) return;
  if (queue_ == nullptr) {
    std::memset(at(page), value, static_cast<size_t>(page_bytes_));
  } else if (status_.ok()) {
    note(queue_->fill(at(page), value, page_bytes_));
  }
}

// An image for each of these pages.
Status PageMemory::prepare(std::span<const int32_t> pages) {
  pages_.assign(pages.begin(), pages.end());
  images_.clear();
  if (queue_ == nullptr) {
    for (const int32_t page : pages) images_.push_back(backed() ? at(page) : nullptr);
    return {};
  }
  K3_TRY(status());
  while (own_images_.size() < pages.size()) {
    K3_TRY_ASSIGN(std::byte* const image, queue_->allocate_host(page_bytes_));
    own_images_.push_back(image);
  }
  images_.assign(own_images_.begin(), own_images_.begin() + static_cast<std::ptrdiff_t>(pages.size()));
  return {};
}

Result<std::span<const std::byte* const>> PageMemory::read(std::span<const int32_t> pages) {
  K3_TRY(prepare(pages));
  if (queue_ != nullptr) {
    for (size_t i = 0; i < pages.size(); ++i) note(queue_->copy(images_[i], at(pages[i]), page_bytes_));
    stored_ = false;  // what was stored before is in front of these copies
    note(queue_->mark());
    note(queue_->wait());
    K3_TRY(status());
  }
  return std::span<const std::byte* const>(images_.data(), images_.size());
}

Result<std::span<std::byte* const>> PageMemory::open(std::span<const int32_t> pages) {
  K3_TRY(prepare(pages));
  if (stored_) {  // the device may be reading the images
    note(queue_->wait());
    stored_ = false;
  }
  K3_TRY(status());
  return std::span<std::byte* const>(images_);
}

void PageMemory::store(size_t image, int64_t offset, int64_t bytes) {
  if (queue_ == nullptr || !status_.ok()) return;
  note(queue_->copy(at(pages_[image]) + offset, images_[image] + offset, bytes));
  note(queue_->mark());
  stored_ = true;
}

}  // namespace k3::cache
