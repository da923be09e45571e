// Invariants of the whole, for tests: everything that is counted or linked is counted and followed again.
#include <optional>
#include <string_view>

#include "k3/cache/state.h"

#define K3_HOLDS(condition, ...) do { if (!(condition)) return fail(Code::internal, __VA_ARGS__); } while (0)

namespace k3::cache {

struct HybridCache::Impl::Recount {
  explicit Recount(const Impl& impl_)
      : impl(impl_), references(impl_.pages.size()), children(impl_.pages.size()), attached(impl_.pages.size()), use(impl_.pages.size()) {}

  Status claim(int32_t page, PageUse as) {
    K3_HOLDS(page >= 0 && page < impl.pool.count(), "page {} does not exist", page);
    std::optional<PageUse>& now = use[static_cast<size_t>(page)];
    K3_HOLDS(!now.has_value(), "page {} has two owners", page);
    K3_HOLDS(impl.at(page).use == as, "page {} is not what its owner takes it for", page);
    now = as;
    return {};
  }

  Status sequence(const Sequence& one) {
    for (size_t slot = 0; slot < one.table.size(); ++slot) {
      const int32_t page = one.table[slot];
      if (references[static_cast<size_t>(page)]++ == 0) K3_TRY(claim(page, PageUse::mla));
      if (impl.at(page).blocks == 0) continue;
      K3_HOLDS(impl.at(page).slot == static_cast<int32_t>(slot), "page {} is registered at another place", page);
      K3_HOLDS(impl.at(page).parent == (slot == 0 ? -1 : one.table[slot - 1]), "page {} has another parent", page);
    }
    K3_HOLDS(static_cast<int64_t>(one.states.size()) == impl.groups, "a sequence has {} states", one.states.size());
    for (const int32_t page : one.states) K3_TRY(claim(page, PageUse::state));
    for (const CheckpointWrite& write : one.plan) {
      for (const int32_t page : write.pages) K3_TRY(claim(page, PageUse::state));
    }
    return {};
  }

  Status all_checkpoints() {
    int64_t live = 0, pinned = 0;
    for (size_t id = 0; id < impl.checkpoints.size(); ++id) {
      const Checkpoint& one = impl.checkpoints[id];
      if (one.record < 0) continue;
      ++live;
      pinned += one.pins > 0 ? 1 : 0;
      const int32_t number = static_cast<int32_t>(id), page = impl.page_of(one.record);
      K3_HOLDS(impl.index.used(one.record) && impl.index.checkpoint(one.record) == number, "checkpoint {} is attached to nothing", id);
      K3_HOLDS(one.position == (impl.at(page).slot * impl.page_blocks + one.record % impl.page_blocks + 1) * impl.block_tokens,
               "checkpoint {} is at another position than its block", id);
      ++attached[static_cast<size_t>(page)];
      K3_HOLDS(impl.heap.contains(impl.heap_id(number)) == (one.pins == 0), "checkpoint {} and the heap disagree", id);
      for (int64_t g = 0; g < impl.groups; ++g) {
        K3_TRY(claim(impl.checkpoint_pages[id * static_cast<size_t>(impl.groups) + static_cast<size_t>(g)], PageUse::checkpoint));
      }
    }
    K3_HOLDS(live == impl.counts.checkpoints && pinned == impl.pinned_checkpoints, "{} checkpoints, {} pinned", live, pinned);
    return {};
  }

  Status all_pages() {
    for (const int32_t page : impl.pool.free_pages()) K3_TRY(claim(page, PageUse::free));
    for (const int32_t page : impl.pool.quarantined_pages()) K3_TRY(claim(page, PageUse::quarantined));
    int64_t records = 0;
    for (int32_t page = 0; page < impl.pool.count(); ++page) {
      const Page& one = impl.at(page);
      if (one.blocks == 0) continue;
      records += one.blocks;
      if (one.references == 0) K3_TRY(claim(page, PageUse::mla));
      if (one.parent >= 0) {
        ++children[static_cast<size_t>(one.parent)];
        const Page& parent = impl.at(one.parent);
        K3_HOLDS(parent.blocks == impl.page_blocks && parent.slot + 1 == one.slot, "page {} does not continue its parent", page);
        K3_HOLDS(one.references <= parent.references, "page {} has more references than its parent", page);
      }
      K3_HOLDS((one.parent < 0) == (one.slot == 0), "page {} of slot {} has parent {}", page, one.slot, one.parent);
      for (int64_t block = 0; block < impl.page_blocks; ++block) {
        K3_HOLDS(impl.index.used(impl.record_of(page, block)) == (block < one.blocks), "record {} of page {}", block, page);
      }
    }
    K3_HOLDS(records == impl.index.records_used(), "{} records", records);
    return {};
  }

  Status compare() {
    CacheStats now;
    int64_t heap = impl.counts.checkpoints - impl.pinned_checkpoints;
    for (size_t i = 0; i < impl.pages.size(); ++i) {
      const Page& one = impl.pages[i];
      K3_HOLDS(use[i].has_value(), "page {} belongs to nobody", i);
      K3_HOLDS(one.references == references[i] && one.children == children[i] && one.checkpoints == attached[i],
               "page {}: {} references, {} children, {} checkpoints; counted {}, {}, {}", i, one.references, one.children,
               one.checkpoints, references[i], children[i], attached[i]);
      const bool cached = one.use == PageUse::mla && one.references == 0;
      now.pages_cached_mla += cached ? 1 : 0;
      now.pages_running_mla += one.use == PageUse::mla && !cached ? 1 : 0;
      now.pages_running_kda += one.use == PageUse::state ? 1 : 0;
      now.pages_cached_kda += one.use == PageUse::checkpoint ? 1 : 0;
      now.pinned_pages += one.use == PageUse::mla && one.references > 0 && one.blocks > 0 ? 1 : 0;
      const bool leaf = cached && one.children == 0 && one.checkpoints == 0;
      K3_HOLDS(impl.heap.contains(static_cast<int32_t>(i)) == leaf, "page {} and the heap disagree", i);
      heap += leaf ? 1 : 0;
    }
    const CacheStats& kept = impl.counts;
    K3_HOLDS(heap == impl.heap.size(), "the heap has {} entries, not {}", impl.heap.size(), heap);
    K3_HOLDS(now.pages_cached_mla == kept.pages_cached_mla && now.pages_running_mla == kept.pages_running_mla &&
                 now.pages_running_kda == kept.pages_running_kda && now.pages_cached_kda == kept.pages_cached_kda &&
                 now.pinned_pages == kept.pinned_pages,
             "pages: {} {} {} {} {} counted, {} {} {} {} {} kept", now.pages_cached_mla, now.pages_running_mla, now.pages_running_kda,
             now.pages_cached_kda, now.pinned_pages, kept.pages_cached_mla, kept.pages_running_mla, kept.pages_running_kda,
             kept.pages_cached_kda, kept.pinned_pages);
    return {};
  }

  const Impl& impl;
  std::vector<int32_t> references, children, attached;
  std::vector<std::optional<PageUse>> use;
};

Status HybridCache::Impl::check() const {
  Recount count(*this);
  const std::string_view wrong = index.check();
  K3_HOLDS(wrong.empty(), "{}", wrong);
  int64_t running = 0;
  for (const Sequence& sequence : sequences) {
    if (!sequence.live) continue;
    ++running;
    K3_TRY(count.sequence(sequence));
  }
  K3_HOLDS(running + static_cast<int64_t>(free_sequences.size()) == static_cast<int64_t>(sequences.size()), "{} sequences", running);
  K3_TRY(count.all_checkpoints());
  K3_TRY(count.all_pages());
  return count.compare();
}

}  // namespace k3::cache
