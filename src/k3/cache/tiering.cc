// Between the pool and its tiers: write-back of what is evicted, and fetching what makes a longer boundary usable.
#include <algorithm>

#include "k3/cache/state.h"
#include "k3/cache/tier/disk_tier.h"
#include "k3/cache/tier/host_tier.h"

namespace k3::cache {

namespace {

constexpr int kMostAttempts = 16;

}  // namespace

Status HybridCache::Impl::open_tiers() {
  std::unique_ptr<DiskTier> disk;
  if (!options.disk_folder.empty()) {
    if (!pool.backed()) return fail(Code::invalid_argument, "cache: a disk tier needs a pool with memory");
    K3_TRY_ASSIGN(disk, DiskTier::create(shape, options.disk_folder, options.disk_bytes, options.identity));
    seed = disk->key_seed();
  }
  if (options.host_bytes > 0) {
    K3_TRY_ASSIGN(auto host, HostTier::create(shape, options.host_bytes, pool.backed(), disk.get()));
    tiers.push_back(std::move(host));
  }
  if (disk != nullptr) tiers.push_back(std::move(disk));
  tiers.insert(tiers.end(), options.further_tiers.begin(), options.further_tiers.end());
  return {};
}

// The tier has it already, or takes it; what cannot be read from a device that has failed is left out.
void HybridCache::Impl::put(bool checkpoint, std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                            std::span<const int32_t> entry_pages) {
  if (tiers.front()->touch(checkpoint, keys)) return;
  const auto parts = pool.memory().read(entry_pages);
  if (parts.ok()) tiers.front()->put({checkpoint, keys, tokens, *parts});
}

void HybridCache::Impl::write_back_page(int32_t page) {
  if (tiers.empty()) return;
  std::vector<BlockKey> keys;
  for (int64_t block = 0; block < at(page).blocks; ++block) keys.push_back(index.key(record_of(page, block)));
  const auto tokens = token_store.data() == nullptr ? std::span<const int32_t>{}
                                                    : std::span<const int32_t>(tokens_of(page)).first(keys.size() * static_cast<size_t>(block_tokens));
  put(false, keys, tokens, std::span(&page, 1));
}

void HybridCache::Impl::write_back_checkpoint(int32_t checkpoint) {
  if (tiers.empty()) return;
  const BlockKey key = index.key(checkpoint_at(checkpoint).record);
  put(true, std::span(&key, 1), {}, pages_of(checkpoint));
}

// Pages from heads to tails, then checkpoints: a tier that is too small keeps what was put last.
void HybridCache::Impl::write_back_all() {
  if (tiers.empty()) return;
  std::vector<int32_t> registered;
  for (int32_t page = 0; page < pool.count(); ++page) {
    if (at(page).blocks > 0) registered.push_back(page);
  }
  std::ranges::stable_sort(registered, {}, [&](int32_t page) { return at(page).slot; });
  for (const int32_t page : registered) write_back_page(page);
  for (size_t id = 0; id < checkpoints.size(); ++id) {
    if (checkpoints[id].record >= 0) write_back_checkpoint(static_cast<int32_t>(id));
  }
}

Reach HybridCache::Impl::reach(const CachePrompt& prompt) const {
  Reach out;
  const int64_t usable = std::min((prompt.token_count - 1) / block_tokens, static_cast<int64_t>(prompt.keys.size()));
  int64_t held = 0;
  while (held < usable && index.find(prompt.keys[static_cast<size_t>(held)]) != BlockIndex::kNone) ++held;
  out.local_blocks = held;
  while (held < usable) {
    const int64_t first = held / page_blocks * page_blocks;
    const auto keys = prompt.keys.subspan(static_cast<size_t>(first), static_cast<size_t>(std::min(page_blocks, usable - first)));
    int64_t most = held - first;
    for (const auto& tier : tiers) most = std::max(most, tier->blocks_held(keys));
    if (first + most == held) break;
    held = first + most;
    if (held % page_blocks != 0) break;
  }
  for (int64_t blocks = held; blocks > 0; --blocks) {
    const BlockKey& key = prompt.keys[static_cast<size_t>(blocks - 1)];
    const int32_t record = index.find(key);
    const bool local = record != BlockIndex::kNone && (groups == 0 || index.checkpoint(record) >= 0);
    const bool there = groups == 0 || local || std::ranges::any_of(tiers, [&](const auto& tier) { return tier->holds_checkpoint(key); });
    if (there && out.boundary == 0) out.boundary = blocks;
    if (local && blocks <= out.local_blocks) {
      out.local_boundary = blocks;
      break;
    }
  }
  return out;
}

// Entries become cached pages of the pool, chained behind those that are there; admission then finds them like any other.
void HybridCache::Impl::fetch(const CachePrompt& prompt, int64_t reserve_tokens, Admission* admission) {
  // An entry that turns out to be damaged is gone, and so may be one that had to make way: look again, but not forever.
  bool again = true;
  for (int attempt = 0; again && attempt < kMostAttempts; ++attempt) {
    const Reach found = reach(prompt);
    if (found.boundary <= found.local_boundary) return;
    again = fetch_to(prompt, found, reserve_tokens, admission);
  }
}

// False when nothing more is to be tried: done, or no room.
bool HybridCache::Impl::fetch_to(const CachePrompt& prompt, const Reach& found, int64_t reserve_tokens, Admission* admission) {
  const int64_t slots = (found.boundary + page_blocks - 1) / page_blocks;
  // The pages of the pool that serve as they are: those of whole slots, or all when they reach the boundary.
  const int64_t local = std::min(found.local_blocks, found.boundary);
  std::vector<int32_t> held;
  if (local > 0) {
    const int32_t page = page_of(index.find(prompt.keys[static_cast<size_t>(local - 1)]));
    if (!verify(prompt, {.boundary = local * block_tokens, .page = page})) return false;
    chain_of(page, &held);
    if (local < found.boundary) held.resize(static_cast<size_t>(local / page_blocks));
  }
  const BlockKey& boundary_key = prompt.keys[static_cast<size_t>(found.boundary - 1)];
  const int32_t last_record = index.find(boundary_key);
  const bool states_local = groups == 0 || (last_record != BlockIndex::kNone && index.checkpoint(last_record) >= 0);
  for (const int32_t page : held) reference(page);
  const int64_t own = shape.pages_for(prompt.token_count + reserve_tokens) - found.boundary / page_blocks + groups;
  const int64_t fetched = slots - static_cast<int64_t>(held.size()) + (states_local ? 0 : groups);
  bool again = false;
  if (own + fetched <= available_pages()) {
    bool sound = true;
    while (sound && static_cast<int64_t>(held.size()) < slots) {
      const auto slot = static_cast<int64_t>(held.size());
      const int32_t page = fetch_page(prompt, slot, std::min(page_blocks, found.boundary - slot * page_blocks), held.empty() ? -1 : held.back());
      sound = page >= 0;
      if (sound) held.push_back(page);
      if (sound) admission->fetched_bytes += shape.page_bytes;
    }
    if (sound && !states_local) {
      sound = fetch_checkpoint(boundary_key, held.back(), found);
      if (sound) admission->fetched_bytes += groups * shape.page_bytes;
    }
    again = !sound;
  }
  while (!held.empty()) {
    unreference(held.back());
    held.pop_back();
  }
  return again;
}

// From the first tier that can; the pages then hold what it gave.
bool HybridCache::Impl::get(std::span<const int32_t> entry_pages,
                            const std::function<bool(CacheTier&, std::span<std::byte* const>)>& from) {
  PageMemory& memory = pool.memory();
  const auto parts = memory.open(entry_pages);
  if (!parts.ok() || !std::ranges::any_of(tiers, [&](const auto& tier) { return from(*tier, *parts); })) return false;
  for (size_t part = 0; part < entry_pages.size(); ++part) memory.store(part, 0, shape.page_bytes);
  return memory.status().ok();
}

int32_t HybridCache::Impl::fetch_page(const CachePrompt& prompt, int64_t slot, int64_t blocks, int32_t parent) {
  const auto keys = prompt.keys.subspan(static_cast<size_t>(slot * page_blocks), static_cast<size_t>(blocks));
  const bool compare = token_store.data() != nullptr;
  const auto tokens = compare ? prompt.tokens.subspan(static_cast<size_t>(slot * page_tokens), static_cast<size_t>(blocks * block_tokens))
                              : std::span<const int32_t>{};
  const int32_t page = take(PageUse::mla);
  if (!get(std::span(&page, 1), [&](CacheTier& tier, auto parts) { return tier.get_page(keys, tokens, parts.front()); })) {
    unreference(page);
    return -1;
  }
  enroll(page, parent, slot);
  for (int64_t block = 0; block < blocks; ++block) {
    const size_t first = static_cast<size_t>(block * block_tokens);
    register_in(page, block, keys[static_cast<size_t>(block)],
                compare ? tokens.subspan(first, static_cast<size_t>(block_tokens)) : std::span<const int32_t>{});
  }
  return page;
}

bool HybridCache::Impl::fetch_checkpoint(const BlockKey& key, int32_t page, const Reach& found) {
  std::vector<int32_t> group_pages;
  for (int64_t g = 0; g < groups; ++g) group_pages.push_back(take(PageUse::state));
  if (!get(group_pages, [&](CacheTier& tier, auto parts) { return tier.get_checkpoint(key, parts); })) {
    std::ranges::for_each(group_pages, [&](int32_t one) { give(one); });
    return false;
  }
  const int32_t record = record_of(page, (found.boundary - 1) % page_blocks);
  attach_checkpoint(record, found.boundary * block_tokens, (found.boundary - found.local_boundary) * block_tokens, group_pages);
  return true;
}

}  // namespace k3::cache
