// References, registration and eviction of pages.
#include <algorithm>

#include "k3/cache/state.h"

namespace k3::cache {

namespace {

constexpr int kMostCopiesSeen = 8;

}  // namespace

int64_t HybridCache::Impl::available_pages() const {
  return pool.free_count() + counts.pages_cached_mla + counts.pages_cached_kda - pinned_checkpoints * groups;
}

int32_t HybridCache::Impl::take(PageUse use) {
  while (pool.free_count() == 0) evict_one(true);
  const int32_t page = pool.take();
  at(page) = Page{};
  at(page).use = use;
  if (use == PageUse::mla) {
    at(page).references = 1;
    ++counts.pages_running_mla;
  } else {
    ++counts.pages_running_kda;  // a planned checkpoint counts as running until it is attached
  }
  return page;
}

void HybridCache::Impl::give(int32_t page) {
  Page& gone = at(page);
  K3_CHECK(gone.blocks == 0 && gone.checkpoints == 0 && gone.children == 0, "page {} is still registered", page);
  switch (gone.use) {
    case PageUse::mla: --counts.pages_running_mla; break;
    case PageUse::state: --counts.pages_running_kda; break;
    case PageUse::checkpoint: --counts.pages_cached_kda; break;
    default: K3_CHECK(false, "page {} is freed twice", page);
  }
  gone.use = PageUse::free;
  pool.give(page);
}

void HybridCache::Impl::reference(int32_t page) {
  Page& held = at(page);
  K3_DCHECK(held.use == PageUse::mla);
  held.touched = inflation;
  if (held.references++ > 0) return;
  heap.erase(page);
  --counts.pages_cached_mla;
  ++counts.pages_running_mla;
  ++counts.pinned_pages;
}

void HybridCache::Impl::unreference(int32_t page) {
  Page& held = at(page);
  K3_CHECK(held.references > 0, "page {} has no references", page);
  if (--held.references > 0) return;
  if (held.blocks == 0) {
    give(page);
    return;
  }
  held.touched = inflation;
  --counts.pages_running_mla;
  ++counts.pages_cached_mla;
  --counts.pinned_pages;
  if (!absorb_if_redundant(page)) update_leaf(page);
}

// With KDA layers a tail page without a checkpoint cannot be resumed from: what it saves is nothing until a sequence that
// recomputes its tokens leaves a checkpoint, so it is worth its recency alone. Cost is counted in tokens.
void HybridCache::Impl::update_leaf(int32_t page) {
  const Page& leaf = at(page);
  if (leaf.use != PageUse::mla || leaf.blocks == 0 || leaf.references > 0 || leaf.children > 0 || leaf.checkpoints > 0) return;
  if (heap.contains(page)) return;
  heap.insert(page, leaf.touched + (groups > 0 ? 0.0 : static_cast<double>(leaf.blocks * block_tokens)));
}

void HybridCache::Impl::enroll(int32_t page, int32_t parent, int64_t slot) {
  Page& added = at(page);
  added.parent = parent;
  added.slot = static_cast<int32_t>(slot);
  ++counts.pinned_pages;  // referenced, and registered from now on
  if (parent < 0) return;
  heap.erase(parent);
  ++at(parent).children;
}

void HybridCache::Impl::register_block(Sequence& sequence, int64_t block, const BlockKey& key, std::span<const int32_t> tokens) {
  const int64_t slot = block / page_blocks, in_page = block % page_blocks;
  const int32_t page = sequence.table[static_cast<size_t>(slot)];
  if (at(page).blocks > in_page) return;  // a restored sequence and its forks share pages: one of them was first
  if (in_page == 0) {
    enroll(page, slot == 0 ? -1 : sequence.table[static_cast<size_t>(slot - 1)], slot);
  }
  register_in(page, in_page, key, tokens);
}

void HybridCache::Impl::register_in(int32_t page, int64_t in_page, const BlockKey& key, std::span<const int32_t> tokens) {
  Page& held = at(page);
  K3_CHECK(held.blocks == in_page, "block {} of a page with {} blocks", in_page, held.blocks);
  index.insert(record_of(page, in_page), key);
  ++held.blocks;
  if (token_store.data() != nullptr) {
    std::ranges::copy(tokens, tokens_of(page).begin() + in_page * block_tokens);
  }
  // A tail page that ends with this block and that nobody uses says nothing that this page does not say. The page that was
  // copied in part to make this one is such; the first blocks of a system prompt may have thousands of copies, and none is.
  int32_t other = index.find(key);
  for (int seen = 0; seen < kMostCopiesSeen && other != BlockIndex::kNone; ++seen, other = index.next(other)) {
    const int32_t tail = page_of(other);
    const Page& old = at(tail);
    if (tail == page || old.references > 0 || old.children > 0 || old.blocks != in_page + 1) continue;
    absorb(tail, page);
    break;
  }
}

void HybridCache::Impl::unregister(int32_t page) {
  Page& gone = at(page);
  K3_CHECK(gone.children == 0 && gone.checkpoints == 0, "page {} is no leaf", page);
  for (int64_t block = 0; block < gone.blocks; ++block) index.erase(record_of(page, block));
  if (gone.blocks > 0 && gone.references > 0) --counts.pinned_pages;
  gone.blocks = 0;
  heap.erase(page);
  if (gone.parent >= 0) {
    --at(gone.parent).children;
    update_leaf(gone.parent);
    gone.parent = -1;
  }
}

// Checkpoints move to the records of the other page; the page is freed.
void HybridCache::Impl::absorb(int32_t from, int32_t into) {
  Page& gone = at(from);
  K3_CHECK(at(into).blocks >= gone.blocks && gone.references == 0, "page {} does not hold what page {} does", into, from);
  for (int64_t block = 0; block < gone.blocks; ++block) {
    const int32_t old = record_of(from, block), record = record_of(into, block);
    const int32_t checkpoint = index.checkpoint(old);
    if (checkpoint < 0) continue;
    index.set_checkpoint(old, BlockIndex::kNone);
    index.promote(record);
    index.set_checkpoint(record, checkpoint);
    checkpoint_at(checkpoint).record = record;
    --gone.checkpoints;
    ++at(into).checkpoints;
  }
  at(into).touched = std::max(at(into).touched, gone.touched);
  heap.erase(into);
  update_leaf(into);
  unregister(from);
  --counts.pages_cached_mla;
  ++counts.pages_running_mla;  // as give() counts
  give(from);
}

bool HybridCache::Impl::absorb_if_redundant(int32_t page) {
  const Page& leaf = at(page);
  if (leaf.children > 0) return false;
  const int32_t last = record_of(page, leaf.blocks - 1);
  for (int32_t other = index.find(index.key(last)); other != BlockIndex::kNone; other = index.next(other)) {
    if (other == last) continue;
    absorb(page, page_of(other));
    return true;
  }
  return false;
}

int32_t HybridCache::Impl::attach_checkpoint(int32_t record, int64_t position, int64_t saved_tokens,
                                             std::span<const int32_t> group_pages) {
  if (free_checkpoints.empty()) {
    free_checkpoints.push_back(static_cast<int32_t>(checkpoints.size()));
    checkpoints.emplace_back();
    checkpoint_pages.resize(checkpoints.size() * static_cast<size_t>(groups));
  }
  const int32_t id = free_checkpoints.back();
  free_checkpoints.pop_back();
  Checkpoint& made = checkpoint_at(id);
  made = {.record = record, .pins = 0, .serial = made.serial + 1, .hit = false, .position = position, .saved_tokens = saved_tokens};
  std::ranges::copy(group_pages, pages_of(id).begin());
  for (const int32_t page : group_pages) at(page).use = PageUse::checkpoint;
  counts.pages_running_kda -= groups;
  counts.pages_cached_kda += groups;
  ++counts.checkpoints;
  index.promote(record);
  index.set_checkpoint(record, id);
  heap.erase(page_of(record));
  ++at(page_of(record)).checkpoints;
  touch_checkpoint(id);
  return id;
}

void HybridCache::Impl::drop_checkpoint(int32_t id) {
  Checkpoint& gone = checkpoint_at(id);
  K3_CHECK(gone.record >= 0 && gone.pins == 0, "checkpoint {} is free or pinned", id);
  heap.erase(heap_id(id));
  index.set_checkpoint(gone.record, BlockIndex::kNone);
  const int32_t page = page_of(gone.record);
  --at(page).checkpoints;
  gone.record = -1;
  free_checkpoints.push_back(id);
  --counts.checkpoints;
  for (const int32_t group_page : pages_of(id)) give(group_page);
  update_leaf(page);
}

void HybridCache::Impl::touch_checkpoint(int32_t id) {
  if (checkpoint_at(id).pins > 0) return;
  heap.erase(heap_id(id));
  // Tokens saved for each page that it takes.
  heap.insert(heap_id(id), inflation + static_cast<double>(checkpoint_at(id).saved_tokens) / static_cast<double>(groups));
}

void HybridCache::Impl::pin_checkpoint(int32_t id, int change) {
  Checkpoint& pinned = checkpoint_at(id);
  const bool before = pinned.pins > 0;
  pinned.pins += change;
  const bool after = pinned.pins > 0;
  if (before == after) return;
  pinned_checkpoints += after ? 1 : -1;
  if (after) {
    heap.erase(heap_id(id));
  } else {
    touch_checkpoint(id);
  }
}

void HybridCache::Impl::evict_one(bool write_back) {
  K3_CHECK(!heap.empty(), "nothing can be evicted: {} free, {} and {} cached", pool.free_count(), counts.pages_cached_mla,
           counts.pages_cached_kda);
  inflation = std::max(inflation, heap.top_value());
  const int32_t id = heap.top();
  if (id >= pool.count()) {
    const int32_t checkpoint = id - static_cast<int32_t>(pool.count());
    if (write_back) write_back_checkpoint(checkpoint);
    drop_checkpoint(checkpoint);
    ++counts.evicted_checkpoints;
    return;
  }
  if (write_back) write_back_page(id);
  unregister(id);
  --counts.pages_cached_mla;
  ++counts.pages_running_mla;  // as give() counts
  give(id);
  ++counts.evicted_pages;
}

// The page and all that stands on it are not found any more; what nobody references is freed, but for the page itself. Rare,
// so scans are good enough. Sequences that hold such a page go on, but register nothing from now on.
void HybridCache::Impl::disown(int32_t page) {
  for (int32_t child = 0; at(page).children > 0 && child < pool.count(); ++child) {
    if (at(child).use != PageUse::mla || at(child).blocks == 0 || at(child).parent != page) continue;
    disown(child);
    if (at(child).references > 0) continue;
    --counts.pages_cached_mla;
    ++counts.pages_running_mla;  // as give() counts
    give(child);
  }
  for (int64_t block = 0; at(page).checkpoints > 0 && block < at(page).blocks; ++block) {
    const int32_t checkpoint = index.checkpoint(record_of(page, block));
    if (checkpoint >= 0) drop_checkpoint(checkpoint);
  }
  if (at(page).blocks > 0) unregister(page);
  for (Sequence& sequence : sequences) {
    if (sequence.live && std::ranges::find(sequence.table, page) != sequence.table.end()) sequence.registers = false;
  }
}

}  // namespace k3::cache
