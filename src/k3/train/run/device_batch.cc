#include "k3/train/run/device_batch.h"

#include <algorithm>
#include <cstring>

namespace k3::train {
namespace {

int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Status DeviceBatch::grow(int64_t bytes) {
  if (memory_.size_bytes() >= bytes) return {};
  K3_TRY(set_current_device(device_));
  for (Turn& turn : turns_) {
    if (turn.copied) K3_TRY(wait_for(turn.copied));
    K3_TRY_ASSIGN(turn.pinned, Storage::pinned(bytes));
    K3_TRY_ASSIGN(turn.copied, make_event());
  }
  // What is queued may still read the old area.
  K3_TRY(synchronize(nullptr));
  K3_TRY_ASSIGN(memory_, Storage::allocate_on(device_, bytes));
  return {};
}

int64_t DeviceBatch::sort_by_id(std::span<const int32_t> tokens, int64_t vocab, int32_t* order, int32_t* starts, int32_t* ids) {
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

Status DeviceBatch::stage(std::span<const int32_t> tokens, std::span<const int32_t> targets, std::span<const int64_t> offsets, const uint8_t* valid_,
                          int64_t vocab, Stream stream) {
  const auto count = static_cast<int64_t>(tokens.size()), sequences = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t row = padded((count + 1) * 4), bytes = 5 * row + padded(count) + padded((sequences + 1) * 4);
  K3_TRY(grow(bytes));
  Turn& turn = turns_[next_];
  next_ = (next_ + 1) % kTurns;
  K3_TRY(wait_for(turn.copied));
  std::byte* const host = turn.pinned.data();
  const auto at = [&](int64_t part) { return reinterpret_cast<int32_t*>(host + part * row); };
  std::copy(tokens.begin(), tokens.end(), at(0));
  if (targets.empty()) {
    std::fill_n(at(1), count, -1);
  } else {
    std::copy(targets.begin(), targets.end(), at(1));
  }
  for (const int32_t id : tokens) {
    if (id < 0 || id >= vocab) return fail(Code::invalid_argument, "token {} of a vocabulary of {}", id, vocab);
  }
  step.distinct = sort_by_id(tokens, vocab, at(2), at(3), at(4));
  const int64_t valid_at = 5 * row, offsets_at = valid_at + padded(count);
  if (valid_ != nullptr) std::memcpy(host + valid_at, valid_, tokens.size());
  std::transform(offsets.begin(), offsets.end(), reinterpret_cast<int32_t*>(host + offsets_at), [](int64_t o) { return static_cast<int32_t>(o); });
  K3_TRY(copy_async(memory_.data(), host, bytes, stream));
  K3_TRY(record(turn.copied, stream));
  const auto there = [&](int64_t byte) { return reinterpret_cast<const int32_t*>(memory_.data() + byte); };
  step.tokens = there(0);
  step.targets = there(row);
  step.by_id = there(2 * row);
  step.id_starts = there(3 * row);
  step.ids = there(4 * row);
  valid = valid_ != nullptr ? reinterpret_cast<const uint8_t*>(memory_.data() + valid_at) : nullptr;
  step.offsets = there(offsets_at);
  step.sequences = sequences;
  step.longest = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) step.longest = std::max(step.longest, offsets[s + 1] - offsets[s]);
  return {};
}

}  // namespace k3::train
