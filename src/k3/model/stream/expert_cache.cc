#include "k3/model/stream/expert_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "k3/model/params.h"

namespace k3 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kHalfLife = 128;  // steps
// Prompts compute in groups of at least this many experts where so many are on their way.
constexpr size_t kPromptGroup = 8;
constexpr int64_t kFewTokens = 8;
// A prediction that is right less often than this costs more than it brings; it is tried again now and then.
constexpr double kLeastUseful = 0.4;
constexpr int64_t kRetry = 64;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Result<ExpertCache> ExpertCache::create(const Checkpoint& checkpoint, const Config& config, ExpertTable table,
                                        DiskReader& reader, std::vector<int32_t> files, int64_t slots) {
  ExpertCache cache(checkpoint, config, std::move(table), reader, std::move(files));
  const auto keys = static_cast<size_t>(cache.table_.layers() * cache.table_.experts());
  K3_TRY_ASSIGN(cache.memory_, Storage::reserve(slots * cache.table_.slot_bytes()));
  if (slots > 0) {
    ::madvise(cache.memory_.data(), static_cast<size_t>(cache.memory_.size_bytes()), MADV_HUGEPAGE);
  }
  cache.slots_.resize(static_cast<size_t>(slots));
  cache.slot_of_.assign(keys, -1);
  cache.counts_.assign(keys, 0);
  cache.heat_.assign(keys, 0);
  cache.heat_time_.assign(keys, 0);
  cache.view_.resize(static_cast<size_t>(cache.table_.experts()));
  return cache;
}

// The slot to give up: empty, or of the lowest score. -1 when all are wanted, kept or being read.
int32_t ExpertCache::victim(Choice choice) {
  int32_t best = -1, reading = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    const auto at = static_cast<int32_t>(i);
    if (s.layer < 0) return at;
    if (s.wanted || s.pinned) continue;
    if (!s.ready && !s.ticket.done()) {
      reading = at;
    } else if (best < 0 || s.score < slots_[static_cast<size_t>(best)].score) {
      best = at;
    }
  }
  return best >= 0 || choice == Choice::idle ? best : reading;
}

void ExpertCache::drop(Slot& slot) {
  if (slot.layer >= 0) slot_of_[key(slot.layer, slot.expert)] = -1;
  slot = Slot();  // waits for a read that nobody wants any more
}

void ExpertCache::read_into(int32_t at, int64_t layer, int64_t expert, DiskPriority priority) {
  Slot& slot = slots_[static_cast<size_t>(at)];
  drop(slot);
  slot.layer = layer;
  slot.expert = expert;
  slot_of_[key(layer, expert)] = at;
  reads_.clear();
  slot.weights = table_.place(layer, expert, memory_of(at), files_, reads_);
  slot.ticket = reader_->start(reads_, priority);
  slot.score = time_ / kHalfLife - (priority == DiskPriority::ahead ? 1 : 0);
}

// Scores only grow: log2 of the decayed uses at the time of the last one, plus that time in half-lives, orders experts as
// their decayed uses would at any one time.
void ExpertCache::touch(int32_t at) {
  Slot& slot = slots_[static_cast<size_t>(at)];
  const size_t k = key(slot.layer, slot.expert);
  const double age = (time_ - heat_time_[k]) / kHalfLife;
  heat_[k] = static_cast<float>(heat_[k] * std::exp2(-age) + 1);
  heat_time_[k] = time_;
  slot.score = std::log2(static_cast<double>(heat_[k])) + time_ / kHalfLife;
}

void ExpertCache::begin(int64_t layer, const Tensor& ids) {
  end_visit();
  layer_ = layer;
  tokens_ = ids.dim(0);
  std::vector<int32_t> wanted;
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const int32_t* row = static_cast<const int32_t*>(ids.data) + t * ids.stride(0);
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      wanted.push_back(row[j]);
      ++counts_[key(layer, row[j])];
    }
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  // Those that are here are protected before anything is evicted.
  for (const int32_t e : wanted) {
    const int32_t at = slot_of_[key(layer, e)];
    if (at < 0) {
      missing_.push_back(e);
      continue;
    }
    Slot& slot = slots_[static_cast<size_t>(at)];
    slot.wanted = true;
    ++stats_.expert_hits;
    pending_.push_back(at);
  }
  std::stable_partition(pending_.begin(), pending_.end(), [&](int32_t at) { return slots_[static_cast<size_t>(at)].ready; });
  stats_.expert_misses += static_cast<int64_t>(missing_.size());
  if (predicted_layer_ == layer) judge_prediction();
  start_misses();
}

void ExpertCache::start_misses() {
  while (next_missing_ < missing_.size()) {
    const int32_t at = victim(Choice::any);
    if (at < 0) return;
    read_into(at, layer_, missing_[next_missing_++], DiskPriority::urgent);
    slots_[static_cast<size_t>(at)].wanted = true;
    pending_.push_back(at);
  }
}

// The expert's bytes are there and right.
Status ExpertCache::take(int32_t at, ThreadPool& pool) {
  Slot& slot = slots_[static_cast<size_t>(at)];
  if (slot.ready) return {};
  const auto start = Clock::now();
  Status status = slot.ticket.wait();
  if (!status.ok() && slot.prefetched) {
    // It was read on a guess: now that it is wanted, its own read decides.
    reads_.clear();
    slot.weights = table_.place(slot.layer, slot.expert, memory_of(at), files_, reads_);
    status = reader_->start(reads_).wait();
  }
  stats_.expert_wait_seconds += seconds_since(start);
  if (status.ok()) status = table_.finish(*checkpoint_, *config_, slot.layer, slot.expert, slot.weights, pool);
  if (!status.ok()) {
    const std::string name = param_name(*config_, ParamId::expert_w1, slot.layer, slot.expert);
    return std::move(status).with_context(fmt::format("expert {} of layer {} (tensor '{}' and its siblings)", slot.expert,
                                                      slot.layer, name));
  }
  slot.ready = true;
  return {};
}

Status ExpertCache::visit(ThreadPool& pool, const Body& body) {
  Status status;
  std::vector<int32_t> group, rest;
  std::vector<int32_t> ids;
  while (!pending_.empty() && status.ok()) {
    // Everything that has arrived; at least one, and for prompts enough to be worth a pass over the tokens.
    const size_t least = tokens_ <= kFewTokens ? 1 : std::min(kPromptGroup, (pending_.size() + 1) / 2);
    group.clear();
    rest.clear();
    for (const int32_t at : pending_) {
      const Slot& slot = slots_[static_cast<size_t>(at)];
      (group.size() < least || slot.ready || slot.ticket.done() ? group : rest).push_back(at);
    }
    ids.clear();
    for (const int32_t at : group) {
      status = take(at, pool);
      if (!status.ok()) break;
      const Slot& slot = slots_[static_cast<size_t>(at)];
      view_[static_cast<size_t>(slot.expert)] = slot.weights;
      ids.push_back(static_cast<int32_t>(slot.expert));
    }
    if (!status.ok()) break;
    body(ids, view_);
    for (const int32_t at : group) {
      slots_[static_cast<size_t>(at)].wanted = false;
      slots_[static_cast<size_t>(at)].prefetched = false;
      touch(at);
    }
    pending_.swap(rest);
    start_misses();
  }
  end_visit();
  time_ += 1 / static_cast<double>(table_.layers());
  ++visits_;
  return status;
}

// Also after a failure: what was wanted and is not ready is forgotten, so that the next step reads it again.
void ExpertCache::end_visit() {
  for (const int32_t at : pending_) {
    Slot& slot = slots_[static_cast<size_t>(at)];
    slot.wanted = false;
    if (!slot.ready) drop(slot);
  }
  pending_.clear();
  missing_.clear();
  next_missing_ = 0;
}

void ExpertCache::judge_prediction() {
  predicted_layer_ = -1;
  if (predicted_.empty()) return;
  int64_t right = 0, issued = 0, used = 0, late = 0;
  for (const int32_t e : predicted_) {
    const int32_t at = slot_of_[key(layer_, e)];
    const bool wanted = (at >= 0 && slots_[static_cast<size_t>(at)].wanted) ||
                        std::binary_search(missing_.begin(), missing_.end(), e);
    right += wanted ? 1 : 0;
    if (at < 0 || !slots_[static_cast<size_t>(at)].prefetched) continue;
    ++issued;
    if (wanted) ++used;
    if (!slots_[static_cast<size_t>(at)].ticket.done()) ++late;
    if (!wanted) slots_[static_cast<size_t>(at)].prefetched = false;
  }
  stats_.predicted += static_cast<int64_t>(predicted_.size());
  stats_.predicted_right += right;
  stats_.prefetch_hits += used;
  usefulness_ = 0.95 * usefulness_ + 0.05 * static_cast<double>(right) / static_cast<double>(predicted_.size());
  if (issued == 0) return;
  // As many as the disk can bring between two layers.
  prefetch_limit_ = late > 0 ? std::max<int64_t>(1, prefetch_limit_ - 1)
                             : std::min(prefetch_limit_ + 1, static_cast<int64_t>(predicted_.size()));
}

bool ExpertCache::wants_predictions() const { return usefulness_ >= kLeastUseful || visits_ % kRetry == 0; }

void ExpertCache::predict(int64_t layer, std::span<const int32_t> ids) {
  predicted_layer_ = layer;
  predicted_.assign(ids.begin(), ids.end());
  int64_t left = prefetch_limit_;
  for (const int32_t e : ids) {
    if (left == 0) return;
    if (slot_of_[key(layer, e)] >= 0) continue;
    const int32_t at = victim(Choice::idle);
    if (at < 0) return;
    read_into(at, layer, e, DiskPriority::ahead);
    slots_[static_cast<size_t>(at)].prefetched = true;
    ++stats_.prefetched;
    --left;
  }
}

Status ExpertCache::warm(const std::vector<uint64_t>& counts, ThreadPool& pool) {
  K3_CHECK(counts.size() == counts_.size(), "counts of {} experts for {}", counts.size(), counts_.size());
  counts_ = counts;
  std::vector<size_t> order;
  for (size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] > 0) order.push_back(k);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  order.resize(std::min(order.size(), slots_.size()));
  // An expert that is wanted by a share p of the tokens has p * half-life / ln 2 decayed uses in the long run.
  std::vector<uint64_t> of_layer(static_cast<size_t>(table_.layers()), 0);
  for (size_t k = 0; k < counts.size(); ++k) of_layer[k / static_cast<size_t>(table_.experts())] += counts[k];
  const size_t pinned = slots_.size() / 2;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto layer = static_cast<int64_t>(order[i]) / table_.experts(), expert = static_cast<int64_t>(order[i]) % table_.experts();
    const double tokens = static_cast<double>(of_layer[static_cast<size_t>(layer)]) /
                          static_cast<double>(config_->num_experts_per_token);
    heat_[order[i]] = static_cast<float>(static_cast<double>(counts[order[i]]) / std::max(tokens, 1.0) * kHalfLife / std::log(2.0));
    read_into(static_cast<int32_t>(i), layer, expert, DiskPriority::urgent);
    Slot& slot = slots_[i];
    slot.pinned = i < pinned;
    slot.score = std::log2(std::max(static_cast<double>(heat_[order[i]]), 1e-3));
  }
  for (size_t i = 0; i < order.size(); ++i) K3_TRY(take(static_cast<int32_t>(i), pool));
  stats_.expert_wait_seconds = 0;
  return {};
}

void ExpertCache::add_to(StreamStats& stats) const {
  stats.expert_hits += stats_.expert_hits;
  stats.expert_misses += stats_.expert_misses;
  stats.prefetched += stats_.prefetched;
  stats.prefetch_hits += stats_.prefetch_hits;
  stats.predicted += stats_.predicted;
  stats.predicted_right += stats_.predicted_right;
  stats.expert_wait_seconds += stats_.expert_wait_seconds;
}

}  // namespace k3
