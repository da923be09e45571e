#include "k3/ops/moe/expert_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

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
  int64_t owner, score, list, uses, counts, total;
};
Tables tables_of(const ExpertStoreShape& s) {
  Tables t{};
  t.owner = align(s.layers * s.experts * 4);
  t.score = t.owner + align(s.slots * 4);
  t.list = t.score + align(s.layers * s.experts * 4);
  t.uses = t.list + align((1 + 2 * s.experts) * 4);
  t.counts = t.uses + align(s.layers * s.experts * 8);
  t.total = t.counts + align((s.layers + 1) * static_cast<int64_t>(sizeof(cuda::MoeFetchCounts)));
  return t;
}

// Those that shall have a layer's slots at first, ascending.
std::vector<int64_t> first_owners(const float* scores, int64_t experts, int64_t slots) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<size_t>(slots));
  std::sort(order.begin(), order.end());
  return order;
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

Status ExpertStore::finish(Stream stream, std::span<const float> scores) {
  K3_CHECK(static_cast<int64_t>(host_.size()) == shape_.layers, "{} of {} layers", host_.size(), shape_.layers);
  const Tables t = tables_of(shape_);
  K3_CHECK(scores.empty() || static_cast<int64_t>(scores.size()) == shape_.layers * shape_.experts, "{} scores", scores.size());
  owner_at_ = t.owner, score_at_ = t.score, list_at_ = t.list, uses_at_ = t.uses, counts_at_ = t.counts;
  K3_TRY_ASSIGN(slots_, Storage::allocate_on(device_, (shape_.slots + 2 * shape_.staged) * shape_.expert_bytes));
  K3_TRY_ASSIGN(tables_, Storage::allocate_on(device_, t.total));
  K3_TRY_ASSIGN(mirror_, Storage::pinned(t.total));
  // Without scores the first experts of every layer: as good as any others.
  std::memset(mirror_.data(), 0, static_cast<size_t>(t.total));
  auto* slot = reinterpret_cast<int32_t*>(mirror_.data());
  auto* owner = reinterpret_cast<int32_t*>(mirror_.data() + owner_at_);
  auto* score = reinterpret_cast<float*>(mirror_.data() + score_at_);
  std::copy(scores.begin(), scores.end(), score);
  for (int64_t l = 0; l < shape_.layers; ++l) {
    const int64_t first = shape_.first_slot(l), count = shape_.slots_of(l);
    const std::byte* const host = host_[static_cast<size_t>(l)].data();
    std::fill_n(slot + l * shape_.experts, shape_.experts, -1);
    const std::vector<int64_t> owners = first_owners(score + l * shape_.experts, shape_.experts, count);
    for (int64_t i = 0; i < count;) {
      const int64_t e = owners[static_cast<size_t>(i)];
      int64_t run = 0;  // experts side by side are one copy
      for (; i + run < count && owners[static_cast<size_t>(i + run)] == e + run; ++run) {
        slot[l * shape_.experts + e + run] = static_cast<int32_t>(first + i + run);
        owner[first + i + run] = static_cast<int32_t>(e + run);
      }
      K3_TRY(copy_async(slot_at(first + i), host + e * shape_.expert_bytes, run * shape_.expert_bytes, stream));
      i += run;
    }
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
          .uses = reinterpret_cast<uint64_t*>(tables_.data() + uses_at_) + l * shape_.experts,
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

Status ExpertStore::fetch_tables(int64_t from, int64_t to) {
  K3_TRY(set_current_device(device_));
  K3_TRY(wait(copies_.get(), last_step_));
  K3_TRY(copy_async(mirror_.data() + from, tables_.data() + from, to - from, copies_.get()));
  return synchronize(copies_.get());
}

Result<std::vector<uint64_t>> ExpertStore::uses() {
  const std::lock_guard lock(mutex_);
  K3_TRY(fetch_tables(uses_at_, counts_at_));
  const auto* first = reinterpret_cast<const uint64_t*>(mirror_.data() + uses_at_);
  return std::vector<uint64_t>(first, first + shape_.layers * shape_.experts);
}

Result<ExpertStoreStats> ExpertStore::stats() {
  const std::lock_guard lock(mutex_);
  K3_TRY(fetch_tables(counts_at_, tables_.size_bytes()));
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
