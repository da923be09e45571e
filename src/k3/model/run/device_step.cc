#include "k3/model/run/device_step.h"

#include <algorithm>
#include <limits>

namespace k3 {
namespace {

constexpr int64_t kAlignInts = 64;  // 256 bytes

int64_t rounded(int64_t ints) { return (ints + kAlignInts - 1) / kAlignInts * kAlignInts; }

int64_t most_ints(const DeviceStepLimits& l) {
  return 2 * rounded(l.tokens) + 4 * rounded(l.sequences + 1) + l.slot_groups * (rounded(l.sequences) + 4 * rounded(3 * l.exports)) +
         l.tables * rounded(l.sequences * l.table_pages);
}

}  // namespace

Result<DeviceStepBuffers> DeviceStepBuffers::create(Device device, const DeviceStepLimits& limits) {
  DeviceStepBuffers b;
  b.limits_ = limits;
  const int64_t bytes = 4 * most_ints(limits);
  K3_TRY_ASSIGN(b.host_, Storage::pinned(bytes));
  K3_TRY_ASSIGN(b.device_, Storage::allocate_on(device, bytes));
  K3_TRY_ASSIGN(b.copied_, make_event());
  return b;
}

Result<DeviceStepBuffers::Slice> DeviceStepBuffers::take(int64_t count) {
  const int64_t at = used_;
  used_ += rounded(count);
  if (4 * used_ > host_.size_bytes()) {
    return fail(Code::exhausted, "the step is larger than {} tokens of {} sequences with {} pages each and {} checkpoints", limits_.tokens,
                limits_.sequences, limits_.table_pages, limits_.exports);
  }
  return Slice{reinterpret_cast<int32_t*>(host_.data()) + at, reinterpret_cast<const int32_t*>(device_.data()) + at};
}

Result<const int32_t*> DeviceStepBuffers::ints(std::span<const int64_t> values) {
  K3_TRY_ASSIGN(const Slice slice, take(static_cast<int64_t>(values.size())));
  std::transform(values.begin(), values.end(), slice.host, [](int64_t v) { return static_cast<int32_t>(v); });
  return slice.device;
}

Status DeviceStepBuffers::stage_sequences(const Batch& batch) {
  K3_TRY_ASSIGN(const Slice tokens, take(batch.token_count()));
  std::copy(batch.tokens.begin(), batch.tokens.end(), tokens.host);
  step_.tokens = tokens.device;
  K3_TRY_ASSIGN(step_.offsets, ints(batch.offsets));
  K3_TRY_ASSIGN(step_.history, ints(batch.history));
  K3_TRY_ASSIGN(step_.logit_rows, ints(batch.logit_rows));
  step_.sequences = batch.sequence_count();
  K3_TRY_ASSIGN(const Slice lengths, take(step_.sequences));
  K3_TRY_ASSIGN(const Slice sums, take(step_.sequences + 1));
  step_.lengths = lengths.device;
  step_.key_offsets = sums.device;
  step_.longest = step_.keys = 0;
  sums.host[0] = 0;
  lengths_.clear();
  for (int64_t s = 0; s < step_.sequences; ++s) {
    const auto i = static_cast<size_t>(s);
    const int64_t count = batch.offsets[i + 1] - batch.offsets[i];
    lengths.host[s] = static_cast<int32_t>(batch.history[i] + count);
    lengths_.push_back(batch.history[i] + count);
    step_.longest = std::max(step_.longest, count);
    step_.keys += lengths.host[s];
    sums.host[s + 1] = static_cast<int32_t>(step_.keys);
  }
  return {};
}

Status DeviceStepBuffers::stage_state(const LayerCache& from, int64_t sequences, LayerCache& to) {
  const void* key = from.state.slots;
  const auto known = std::find_if(slots_.begin(), slots_.end(), [&](const Staged& s) { return s.from == key; });
  if (known == slots_.end()) {
    K3_TRY_ASSIGN(const Slice slots, take(sequences));
    std::copy_n(from.state.slots, sequences, slots.host);
    slots_.push_back({key, slots.device});
    to.state.slots = slots.device;
  } else {
    to.state.slots = known->to;
  }
  if (from.exports.empty()) return {};
  const auto staged =
      std::find_if(exports_.begin(), exports_.end(), [&](const StagedExports& e) { return e.from == from.exports.data(); });
  if (staged != exports_.end()) {
    to.device_exports = staged->to;
    return {};
  }
  const auto count = static_cast<int64_t>(from.exports.size());
  K3_TRY_ASSIGN(const Slice records, take(3 * count));
  K3_TRY_ASSIGN(const Slice columns, take(3 * count));
  for (int64_t i = 0; i < count; ++i) {
    const ops::StateExport& e = from.exports[static_cast<size_t>(i)];
    const int32_t values[3] = {static_cast<int32_t>(e.sequence), static_cast<int32_t>(e.tokens), e.slot};
    for (int64_t c = 0; c < 3; ++c) records.host[3 * i + c] = columns.host[c * count + i] = values[c];
  }
  to.device_exports = {reinterpret_cast<const ops::DeviceExport*>(records.device), columns.device, columns.device + count,
                       columns.device + 2 * count};
  exports_.push_back({from.exports.data(), to.device_exports});
  return {};
}

Status DeviceStepBuffers::stage_pages(const LayerCache& from, LayerCache& to) {
  if (from.pages.empty()) return {};
  const ops::PagedKv& first = from.pages.front();
  to.table.base = first.base;
  to.table.dtype = first.dtype;
  to.table.width = first.width;
  to.table.page_tokens = first.page_tokens;
  to.table.page_stride = first.page_stride;
  to.table.row_stride = first.row_stride;
  to.table.pages = std::numeric_limits<int32_t>::max();  // entries are the cache's invariant
  to.table.table_stride = limits_.table_pages;
  const auto known = std::find_if(tables_.begin(), tables_.end(), [&](const Staged& t) { return t.from == first.block_table; });
  if (known != tables_.end()) {
    to.table.tables = known->to;
    return {};
  }
  K3_TRY_ASSIGN(const Slice table, take(step_.sequences * limits_.table_pages));
  for (size_t s = 0; s < from.pages.size(); ++s) {
    const ops::PagedKv& pages = from.pages[s];
    K3_CHECK(pages.base == first.base && pages.page_tokens == first.page_tokens, "caches of one layer in several pools");
    const int64_t count = (lengths_[s] + pages.page_tokens - 1) / pages.page_tokens;
    if (count > limits_.table_pages) {
      return fail(Code::exhausted, "a sequence of {} tokens needs {} pages; the step has room for {}", lengths_[s], count,
                  limits_.table_pages);
    }
    std::copy_n(pages.block_table, count, table.host + static_cast<int64_t>(s) * limits_.table_pages);
  }
  tables_.push_back({first.block_table, table.device});
  to.table.tables = table.device;
  return {};
}

Status DeviceStepBuffers::stage(const Batch& batch, Stream stream) {
  if (in_flight_) K3_TRY(wait_for(copied_));  // kernels may still be reading the device's copy, but the host's is free after it
  used_ = 0;
  slots_.clear();
  tables_.clear();
  exports_.clear();
  K3_TRY(stage_sequences(batch));
  caches_.assign(batch.caches.begin(), batch.caches.end());
  for (size_t l = 0; l < caches_.size(); ++l) {
    const LayerCache& from = batch.caches[l];
    if (from.state.recurrent != nullptr) K3_TRY(stage_state(from, step_.sequences, caches_[l]));
    K3_TRY(stage_pages(from, caches_[l]));
  }
  K3_TRY(copy_async(device_.data(), host_.data(), 4 * used_, stream));
  in_flight_ = true;
  return record(copied_, stream);
}

}  // namespace k3
