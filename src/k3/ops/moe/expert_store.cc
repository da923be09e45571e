#include "k3/ops/moe/expert_store.h"

#include <algorithm>
#include <cstring>

#include "k3/base/check.h"
#include "k3/base/units.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"
#include "k3/ops/moe/moe.h"

namespace k3::ops {

int64_t packed_expert_bytes(const ExpertBank& bank) {
  if (bank.scheme != Scheme::bf16 && bank.scheme != Scheme::mxfp4) return 0;
  const auto kind = bank.scheme == Scheme::mxfp4 ? cuda::MoeWeights::mxfp4 : cuda::MoeWeights::bf16;
  return cuda::moe_packed_bytes(kind, 2 * bank.hidden, bank.width) + cuda::moe_packed_bytes(kind, bank.width, bank.hidden);
}

namespace {

constexpr int64_t kAlign = 256;

int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Tables {
  int64_t owner, score, list, counts, total;
};
Tables tables_of(const ExpertStoreShape& s) {
  Tables t{};
  t.owner = align(s.layers * s.experts * 4);
  t.score = t.owner + align(s.slots * 4);
  t.list = t.score + align(s.layers * s.experts * 4);
  t.counts = t.list + align((1 + 2 * s.experts) * 4);
  t.total = t.counts + align((s.layers + 1) * static_cast<int64_t>(sizeof(cuda::MoeFetchCounts)));
  return t;
}

}  // namespace

int64_t ExpertStoreShape::device_bytes() const { return (slots + 2 * staged) * expert_bytes + tables_of(*this).total; }

Result<std::unique_ptr<ExpertStore>> ExpertStore::create(Device device, const ExpertStoreShape& shape) {
  K3_CHECK(shape.layers >= 1 && shape.experts >= 1 && shape.expert_bytes > 0 && shape.slots >= 0 &&
               shape.slots < shape.layers * shape.experts && shape.staged >= 1,
           "{} layers of {} experts, {} slots, {} staged", shape.layers, shape.experts, shape.slots, shape.staged);
  K3_TRY(set_current_device(device));
  std::unique_ptr<ExpertStore> store(new ExpertStore(device, shape));
  K3_TRY_ASSIGN(store->copies_, make_stream());
  K3_TRY_ASSIGN(store->last_step_, make_event());
  for (Area& area : store->areas_) {
    K3_TRY_ASSIGN(area.full, make_event());
    K3_TRY_ASSIGN(area.free, make_event());
  }
  return store;
}

Result<std::byte*> ExpertStore::add_layer() {
  const int64_t bytes = shape_.experts * shape_.expert_bytes, l = static_cast<int64_t>(host_.size());
  K3_CHECK(l < shape_.layers, "a layer more than {}", shape_.layers);
  Result<Storage> part = Storage::pinned(bytes);
  if (!part.ok()) {
    return fail(Code::exhausted, "{} ({} of {} layers of experts are in pinned memory: {}); a smaller --ram or a larger --vram keeps fewer there",
                part.error().message, l, shape_.layers, format_bytes(l * bytes));
  }
  host_.push_back(*std::move(part));
  return host_.back().data();
}

Status ExpertStore::finish(Stream stream) {
  K3_CHECK(static_cast<int64_t>(host_.size()) == shape_.layers, "{} of {} layers", host_.size(), shape_.layers);
  const Tables t = tables_of(shape_);
  owner_at_ = t.owner, score_at_ = t.score, list_at_ = t.list, counts_at_ = t.counts;
  K3_TRY_ASSIGN(slots_, Storage::allocate_on(device_, (shape_.slots + 2 * shape_.staged) * shape_.expert_bytes));
  K3_TRY_ASSIGN(tables_, Storage::allocate_on(device_, t.total));
  K3_TRY_ASSIGN(mirror_, Storage::pinned(t.total));
  // At first the first experts of every layer: as good as any others.
  std::memset(mirror_.data(), 0, static_cast<size_t>(t.total));
  auto* slot = reinterpret_cast<int32_t*>(mirror_.data());
  auto* owner = reinterpret_cast<int32_t*>(mirror_.data() + owner_at_);
  for (int64_t l = 0; l < shape_.layers; ++l) {
    const int64_t first = shape_.first_slot(l), count = shape_.slots_of(l);
    for (int64_t e = 0; e < shape_.experts; ++e) {
      slot[l * shape_.experts + e] = e < count ? static_cast<int32_t>(first + e) : -1;
      if (e < count) owner[first + e] = static_cast<int32_t>(e);
    }
    K3_TRY(copy_async(slot_at(first), host_[static_cast<size_t>(l)].data(), count * shape_.expert_bytes, stream));
  }
  K3_TRY(copy_async(tables_.data(), mirror_.data(), t.total, stream));
  return synchronize(stream);
}

ExpertStore::Layer ExpertStore::layer(int64_t l) const {
  const auto ints = [&](int64_t at) { return reinterpret_cast<int32_t*>(tables_.data() + at); };
  auto* counts = reinterpret_cast<cuda::MoeFetchCounts*>(tables_.data() + counts_at_);
  const int64_t first = shape_.first_slot(l);
  return {.host = host_[static_cast<size_t>(l)].data(),
          .slots = slots_.data(),
          .slot = ints(0) + l * shape_.experts,
          .owner = ints(owner_at_) + first,
          .list = ints(list_at_),
          .score = reinterpret_cast<float*>(tables_.data() + score_at_) + l * shape_.experts,
          .counts = counts + l,
          .staged_counts = counts + shape_.layers,
          .first_slot = first,
          .slot_count = shape_.slots_of(l)};
}

Status ExpertStore::begin_step(bool staged, Stream stream) {
  K3_TRY(wait(stream, last_step_));
  if (!staged) return {};
  K3_TRY(copy_async(mirror_.data(), tables_.data(), owner_at_, stream));
  return synchronize(stream);
}

Status ExpertStore::end_step(Stream stream) { return record(last_step_, stream); }

Result<ExpertStore::Part> ExpertStore::stage(int64_t l, int64_t begin, Stream stream) {
  const int32_t* slot = reinterpret_cast<const int32_t*>(mirror_.data()) + l * shape_.experts;
  const Area& area = areas_[next_area_];
  Part part{begin, begin, shape_.slots + next_area_ * shape_.staged};
  K3_TRY(wait(copies_.get(), area.free));
  int64_t staged = 0;
  while (part.end < shape_.experts) {
    if (slot[part.end] >= 0) {
      ++part.end;
      continue;
    }
    if (staged == shape_.staged) break;
    // Experts side by side are one copy.
    int64_t run = 1;
    while (staged + run < shape_.staged && part.end + run < shape_.experts && slot[part.end + run] < 0) ++run;
    const std::byte* from = host_[static_cast<size_t>(l)].data() + part.end * shape_.expert_bytes;
    K3_TRY(copy_async(slot_at(part.first_slot + staged), from, run * shape_.expert_bytes, copies_.get()));
    staged += run;
    part.end += run;
  }
  staged_bytes_ += staged * shape_.expert_bytes;
  K3_TRY(record(area.full, copies_.get()));
  K3_TRY(wait(stream, area.full));
  return part;
}

Status ExpertStore::staged_done(Stream stream) {
  K3_TRY(record(areas_[next_area_].free, stream));
  next_area_ ^= 1;
  return {};
}

Result<ExpertStoreStats> ExpertStore::stats() {
  const std::lock_guard lock(mutex_);
  K3_TRY(set_current_device(device_));
  K3_TRY(wait(copies_.get(), last_step_));
  const int64_t bytes = tables_.size_bytes() - counts_at_;
  K3_TRY(copy_async(mirror_.data() + counts_at_, tables_.data() + counts_at_, bytes, copies_.get()));
  K3_TRY(synchronize(copies_.get()));
  const auto* counts = reinterpret_cast<const cuda::MoeFetchCounts*>(mirror_.data() + counts_at_);
  ExpertStoreStats s;
  for (int64_t l = 0; l < shape_.layers; ++l) {
    s.wanted += static_cast<int64_t>(counts[l].wanted);
    s.missing += static_cast<int64_t>(counts[l].missing);
    s.admitted += static_cast<int64_t>(counts[l].admitted);
  }
  s.staged_wanted = static_cast<int64_t>(counts[shape_.layers].wanted);
  s.staged_bytes = staged_bytes_;
  s.expert_bytes = shape_.expert_bytes;
  s.slots = shape_.slots;
  s.experts = shape_.layers * shape_.experts;
  return s;
}

}  // namespace k3::ops
