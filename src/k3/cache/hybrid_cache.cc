#include "k3/cache/hybrid_cache.h"

#include <algorithm>

#include "k3/base/rng.h"
#include "k3/cache/state.h"

namespace k3::cache {

namespace {

constexpr int64_t kMostPages = int64_t{1} << 30;

Status check_options(const CacheOptions& options) {
  const CacheShape& shape = options.shape;
  if (shape.page_bytes <= 0 || shape.page_tokens <= 0 || shape.block_tokens <= 0) {
    return fail(Code::invalid_argument, "cache: a shape that make_shape did not make");
  }
  const int64_t pages = options.pool_bytes / shape.page_bytes, least = shape.groups() + 1;
  if (pages < least) {
    return fail(Code::invalid_argument, "cache: a pool of {} bytes has {} pages of {} bytes; one sequence needs {}",
                options.pool_bytes, pages, shape.page_bytes, least);
  }
  if (pages > kMostPages || pages * shape.blocks_per_page() >= int64_t{1} << 31) {
    return fail(Code::invalid_argument, "cache: {} pages of {} blocks are too many", pages, shape.blocks_per_page());
  }
  if (options.policy.every_tokens < 0 || options.policy.every_tokens % shape.block_tokens != 0) {
    return fail(Code::invalid_argument, "cache: checkpoints every {} tokens; a multiple of {} is needed",
                options.policy.every_tokens, shape.block_tokens);
  }
  if (options.host_bytes < 0 || options.disk_bytes < 0) return fail(Code::invalid_argument, "cache: a tier of negative size");
  return {};
}

}  // namespace

std::string_view hit_limit_name(HitLimit limit) {
  switch (limit) {
    case HitLimit::none: return "none";
    case HitLimit::nothing_cached: return "nothing_cached";
    case HitLimit::mla: return "mla";
    case HitLimit::kda: return "kda";
    case HitLimit::prompt_length: return "prompt_length";
  }
  return "?";
}

HybridCache::Impl::Impl(const CacheOptions& options_, PagePool pool_)
    : options(options_),
      shape(options_.shape),
      block_tokens(shape.block_tokens),
      page_tokens(shape.page_tokens),
      page_blocks(shape.blocks_per_page()),
      groups(shape.groups()),
      pool(std::move(pool_)),
      pages(static_cast<size_t>(pool.count())),
      index(pool.count(), page_blocks),
      heap(pool.count() + (groups == 0 ? 0 : pool.count() / groups)) {}

Result<std::unique_ptr<HybridCache>> HybridCache::create(const CacheOptions& options) {
  K3_TRY(check_options(options));
  const int64_t count = options.pool_bytes / options.shape.page_bytes;
  PageMemory memory;
  if (options.backed && options.queue != nullptr) {
    K3_TRY_ASSIGN(memory, PageMemory::on_device(options.shape.page_bytes, count, options.queue));
  } else if (options.backed) {
    K3_TRY_ASSIGN(memory, PageMemory::on_host(options.shape.page_bytes, count));
  }
  auto impl = std::make_unique<Impl>(options, PagePool(std::move(memory), count, options.poison));
  if (options.enabled && options.compare_tokens) {
    K3_TRY_ASSIGN(impl->token_store, Storage::reserve(count * options.shape.page_tokens * static_cast<int64_t>(sizeof(int32_t))));
  }
  impl->seed = random_seed();
  if (options.enabled) K3_TRY(impl->open_tiers());
  return std::unique_ptr<HybridCache>(new HybridCache(std::move(impl)));
}

HybridCache::HybridCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HybridCache::~HybridCache() = default;

const CacheShape& HybridCache::shape() const { return impl_->shape; }
std::byte* HybridCache::pool() { return impl_->pool.memory().base(); }
PageMemory& HybridCache::memory() { return impl_->pool.memory(); }
int64_t HybridCache::page_count() const { return impl_->pool.count(); }
uint64_t HybridCache::key_seed() const { return impl_->seed; }

Result<Admission> HybridCache::admit(const CachePrompt& prompt, int64_t reserve_tokens) {
  return impl_->admit(prompt, reserve_tokens);
}

Admission HybridCache::peek(const CachePrompt& prompt) const {
  Admission admission;
  if (prompt.token_count < 1 || !impl_->options.enabled || !prompt.use_cache) return admission;
  const Match match = impl_->find(prompt);
  admission.cached_tokens = match.boundary;
  admission.matched_tokens = match.matched;
  admission.limit = match.limit;
  // What the tiers hold is fetched where there is room for it, and when it turns out to be whole.
  if (!impl_->tiers.empty()) {
    const int64_t further = impl_->reach(prompt).boundary * impl_->block_tokens;
    if (further > admission.cached_tokens) {
      admission.cached_tokens = further;
      admission.matched_tokens = std::max(admission.matched_tokens, further);
      admission.limit = HitLimit::none;
    }
  }
  return admission;
}

void HybridCache::extend(SequenceId sequence, const CachePrompt& prompt) {
  Sequence& running = impl_->live(sequence);
  running.kept.clear();
  Match held;
  held.boundary = running.length;
  impl_->plan_prompt(prompt, held, &running);
}

Status HybridCache::grow(SequenceId sequence, int64_t tokens) { return impl_->grow(impl_->live(sequence), tokens); }
std::span<const int32_t> HybridCache::block_table(SequenceId sequence) const { return impl_->live(sequence).table; }
std::span<const int32_t> HybridCache::state_pages(SequenceId sequence) const { return impl_->live(sequence).states; }
int64_t HybridCache::length(SequenceId sequence) const { return impl_->live(sequence).length; }

std::span<const CheckpointWrite> HybridCache::plan_checkpoints(SequenceId sequence, int64_t end) {
  return impl_->plan(impl_->live(sequence), end);
}

void HybridCache::commit(SequenceId sequence, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                         int64_t token_count) {
  impl_->commit(impl_->live(sequence), keys, tokens, token_count);
}

void HybridCache::abandon(SequenceId sequence) { impl_->close_plan(impl_->live(sequence), 0, {}); }
void HybridCache::release(SequenceId sequence) { impl_->release(sequence); }
void HybridCache::quarantine(SequenceId sequence) { impl_->quarantine(sequence); }

void HybridCache::clear_quarantine() {
  for (const int32_t page : impl_->pool.quarantined_pages()) impl_->at(page).use = PageUse::free;
  impl_->pool.clear_quarantine();
}

void HybridCache::copy_states(std::span<const int32_t> from, std::span<const int32_t> to) { impl_->copy_states(from, to); }

Result<SequenceId> HybridCache::fork(SequenceId sequence) { return impl_->fork(sequence); }

Status HybridCache::save(SequenceId sequence, const std::function<Status(std::span<const std::byte>)>& write) const {
  return impl_->save(impl_->live(sequence), write);
}

Result<SequenceId> HybridCache::restore(int64_t tokens, const std::function<Status(std::span<std::byte>)>& read) {
  return impl_->restore(tokens, read);
}

void HybridCache::reset() {
  while (!impl_->heap.empty()) impl_->evict_one(false);
  for (const auto& tier : impl_->tiers) tier->clear();
}

Status HybridCache::flush() {
  impl_->write_back_all();
  for (const auto& tier : impl_->tiers) K3_TRY(tier->flush());
  return {};
}

CacheStats HybridCache::stats() const {
  CacheStats out = impl_->counts;
  out.pages = impl_->pool.count();
  out.pages_free = impl_->pool.free_count();
  out.quarantined_pages = impl_->pool.quarantined_count();
  for (const auto& tier : impl_->tiers) {
    const TierStats one = tier->stats();
    const bool host = tier == impl_->tiers.front() && impl_->options.host_bytes > 0;
    (host ? out.host_entries : out.disk_entries) = one.entries;
    (host ? out.host_bytes : out.disk_bytes) = one.bytes;
    (host ? out.host_hits : out.disk_hits) = one.hits;
    out.tier_errors += one.errors;
    out.tier_dropped += one.dropped;
  }
  return out;
}

Status HybridCache::check() const { return impl_->check(); }

std::vector<CachedBlock> HybridCache::contents() const {
  std::vector<CachedBlock> out;
  const BlockIndex& index = impl_->index;
  for (int32_t page = 0; page < impl_->pool.count(); ++page) {
    for (int64_t block = 0; block < impl_->at(page).blocks; ++block) {
      const int32_t record = impl_->record_of(page, block);
      if (index.find(index.key(record)) != record) continue;  // once for each key, at the head of its list
      CachedBlock& one = out.emplace_back(CachedBlock{index.key(record), 0, impl_->groups == 0 || index.checkpoint(record) >= 0});
      for (int32_t copy = record; copy != BlockIndex::kNone; copy = index.next(copy)) ++one.copies;
    }
  }
  return out;
}

}  // namespace k3::cache
