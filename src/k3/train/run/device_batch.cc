#include "k3/train/run/device_batch.h"

#include <algorithm>
#include <cstring>

namespace k3::train {
namespace {

int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int64_t PinnedBatch::sort_by_id(std::span<const int32_t> tokens, int64_t vocab, int32_t* order, int32_t* starts, int32_t* ids) {
  counts_.assign(static_cast<size_t>(vocab), 0);
  for (const int32_t id : tokens) ++counts_[static_cast<size_t>(id)];
  int64_t distinct = 0;
  int32_t sum = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    int32_t& count = counts_[static_cast<size_t>(id)];
    if (count == 0) continue;
    ids[distinct] = static_cast<int32_t>(id);
    starts[distinct++] = sum;
    sum += count;
    count = sum - count;  // where its next token goes
  }
  starts[distinct] = sum;
  for (size_t t = 0; t < tokens.size(); ++t) order[counts_[static_cast<size_t>(tokens[t])]++] = static_cast<int32_t>(t);
  return distinct;
}

Status PinnedBatch::fill(const MicroBatch& batch, int64_t vocab) {
  const auto count = static_cast<int64_t>(batch.tokens.size());
  for (const int32_t id : batch.tokens) {
    if (id < 0 || id >= vocab) return fail(Code::invalid_argument, "token {} of a vocabulary of {}", id, vocab);
  }
  sequences_ = static_cast<int64_t>(batch.offsets.size()) - 1;
  row_bytes_ = padded((count + 1) * 4);
  valid_at_ = 5 * row_bytes_;
  offsets_at_ = valid_at_ + padded(count);
  bytes_ = offsets_at_ + padded((sequences_ + 1) * 4);
  if (copied_) K3_TRY(wait_for(copied_));
  if (memory_.size_bytes() < bytes_) {
    K3_TRY_ASSIGN(memory_, Storage::pinned(bytes_));
  }
  if (!copied_) {
    K3_TRY_ASSIGN(copied_, make_event());
  }

  std::byte* const host = memory_.data();
  const auto at = [&](int64_t part) { return reinterpret_cast<int32_t*>(host + part * row_bytes_); };
  std::copy(batch.tokens.begin(), batch.tokens.end(), at(0));
  if (batch.targets.empty()) {
    std::fill_n(at(1), count, -1);
  } else {
    std::copy(batch.targets.begin(), batch.targets.end(), at(1));
  }
  distinct_ = sort_by_id(batch.tokens, vocab, at(2), at(3), at(4));
  has_valid_ = batch.valid != nullptr;
  if (has_valid_) std::memcpy(host + valid_at_, batch.valid, batch.tokens.size());
  std::transform(batch.offsets.begin(), batch.offsets.end(), reinterpret_cast<int32_t*>(host + offsets_at_), [](int64_t o) { return static_cast<int32_t>(o); });
  longest_ = 0;
  for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) longest_ = std::max(longest_, batch.offsets[s + 1] - batch.offsets[s]);
  return {};
}

Status DeviceBatch::upload(PinnedBatch& from, Stream stream) {
  if (memory_.size_bytes() < from.bytes_) {
    K3_TRY(set_current_device(device_));
    // What is queued may still read the old area.
    K3_TRY(synchronize(stream));
    K3_TRY_ASSIGN(memory_, Storage::allocate_on(device_, from.bytes_));
  }
  K3_TRY(copy_async(memory_.data(), from.memory_.data(), from.bytes_, stream));
  K3_TRY(record(from.copied_, stream));
  const auto there = [&](int64_t byte) { return reinterpret_cast<const int32_t*>(memory_.data() + byte); };
  step.tokens = there(0);
  step.targets = there(from.row_bytes_);
  step.by_id = there(2 * from.row_bytes_);
  step.id_starts = there(3 * from.row_bytes_);
  step.ids = there(4 * from.row_bytes_);
  step.distinct = from.distinct_;
  valid = from.has_valid_ ? reinterpret_cast<const uint8_t*>(memory_.data() + from.valid_at_) : nullptr;
  step.offsets = there(from.offsets_at_);
  step.sequences = from.sequences_;
  step.longest = from.longest_;
  return {};
}

Status DeviceBatch::stage(const MicroBatch& batch, int64_t vocab, Stream stream) {
  if (batch.pinned != nullptr) return upload(*batch.pinned, stream);
  PinnedBatch& turn = turns_[next_];
  next_ = (next_ + 1) % kTurns;
  K3_TRY(turn.fill(batch, vocab));
  return upload(turn, stream);
}

}  // namespace k3::train
