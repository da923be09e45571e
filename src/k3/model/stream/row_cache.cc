#include "k3/model/stream/row_cache.h"

namespace k3 {

Result<RowCache> RowCache::create(DiskReader& reader, int32_t file, std::string name, const TensorInfo& info, int64_t rows) {
  RowCache cache(reader, file, std::move(name), info);
  K3_TRY_ASSIGN(cache.memory_, Storage::allocate(rows * cache.pitch()));
  cache.slot_of_.assign(static_cast<size_t>(info.dims[0]), -1);
  cache.token_of_.assign(static_cast<size_t>(rows), -1);
  cache.used_.assign(static_cast<size_t>(rows), -1);
  return cache;
}

Status RowCache::read(std::span<const int32_t> ids, const Tensor& out) {
  // Never more tokens at a time than there are rows, so that none of them is evicted for another.
  const size_t step = token_of_.size();
  for (size_t begin = 0; begin < ids.size(); begin += step) {
    const std::span<const int32_t> part = ids.subspan(begin, std::min(step, ids.size() - begin));
    K3_TRY(load(part));
    for (size_t i = 0; i < part.size(); ++i) {
      convert_to_float(row_of(slot_of_[static_cast<size_t>(part[i])]), info_.dtype, info_.dims[1],
                       out.row(static_cast<int64_t>(begin + i)));
    }
  }
  return {};
}

Status RowCache::load(std::span<const int32_t> ids) {
  ++time_;
  for (const int32_t id : ids) {
    if (const int32_t slot = slot_of_[static_cast<size_t>(id)]; slot >= 0) used_[static_cast<size_t>(slot)] = time_;
  }
  std::vector<DiskRequest> reads;
  std::vector<size_t> filled;
  for (const int32_t id : ids) {
    int32_t& slot = slot_of_[static_cast<size_t>(id)];
    if (slot >= 0) continue;
    // The first slot behind the last one taken that this call does not need: about the oldest.
    while (used_[hand_] == time_) hand_ = (hand_ + 1) % used_.size();
    if (token_of_[hand_] >= 0) slot_of_[static_cast<size_t>(token_of_[hand_])] = -1;
    slot = static_cast<int32_t>(hand_);
    token_of_[hand_] = id;
    used_[hand_] = time_;
    filled.push_back(hand_);
    reads.push_back({file_, info_.offset + id * row_bytes(), row_bytes(), row_of(slot)});
  }
  if (reads.empty()) return {};
  Status status = reader_->start(reads).wait();
  if (status.ok()) return {};
  for (const size_t slot : filled) {
    slot_of_[static_cast<size_t>(token_of_[slot])] = -1;
    token_of_[slot] = -1;
    used_[slot] = -1;
  }
  return std::move(status).with_context(fmt::format("tensor '{}'", name_));
}

}  // namespace k3
