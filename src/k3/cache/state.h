// Internal to cache. What a HybridCache is made of; its functions are grouped by file:
//   hybrid_cache.cc  create, stats, the public face      lookup.cc      the usable boundary of a prompt
//   sequences.cc     admit, grow, release, fork          checkpoints.cc plan, commit, abandon
//   pages.cc         references, registration, eviction  check.cc       invariants
//   save.cc          save, restore                       tiering.cc     write-back and fetch
//
// A page of the pool is free, quarantined, private to a sequence (KDA), part of a checkpoint (KDA), or an MLA page. An MLA
// page is referenced by the running sequences whose block tables hold it and, once a block of it is complete, registered:
// its records are in the index, and its parent is the page before it in the block table at that moment. A registered page
// whose references are gone is cached. A block table is always a chain of parents, so that
//   - a registered block vouches for all blocks before it: they lie in the same page or in its ancestors;
//   - a page without references has no descendant with references: eviction from the leaves reaches every cached page.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "k3/cache/block_index.h"
#include "k3/cache/evict_heap.h"
#include "k3/cache/hybrid_cache.h"
#include "k3/cache/page_pool.h"
#include "k3/cache/tier/cache_tier.h"

namespace k3::cache {

enum class PageUse : uint8_t { free, quarantined, mla, state, checkpoint };

struct Page {
  PageUse use = PageUse::free;
  int32_t references = 0;   // running sequences (and pins while something is copied)
  int32_t parent = -1;      // of a registered page: that of the slot before
  int32_t slot = 0;         // of a registered page: its place in the block table
  int32_t children = 0;     // registered pages whose parent this is
  int32_t checkpoints = 0;  // attached to blocks of this page
  int32_t blocks = 0;       // registered: the first so many of the page
  double touched = 0;       // inflation when last used
};

struct Checkpoint {
  int32_t record = -1;  // of the block at whose end it was taken; -1: free
  int32_t pins = 0;
  uint32_t serial = 0;  // distinguishes later users of the number
  bool hit = false;     // somebody resumed here
  int64_t position = 0, saved_tokens = 0;  // saved: from the checkpoint before it on its chain
};

struct Sequence {
  bool live = false, planned = false;
  bool registers = true;  // CachePrompt::use_cache; not after a fault in a page that it shares
  std::vector<int32_t> table, states;
  int64_t length = 0, prompt_tokens = 0;
  int64_t registered_blocks = 0;
  int64_t shared_pages = 0;        // the first so many are not written by this sequence
  std::vector<int64_t> kept;       // prompt boundaries that get a checkpoint, ascending
  std::vector<CheckpointWrite> plan;
  int32_t rolling = -1;            // the checkpoint that the next one recycles
  uint32_t rolling_serial = 0;
  int64_t last_checkpoint = 0;     // position
};

// The result of a lookup.
struct Match {
  int64_t matched = 0, boundary = 0;
  int32_t page = -1, checkpoint = -1;  // at the boundary
  HitLimit limit = HitLimit::nothing_cached;
  bool collision = false;
};

// What the pool and the tiers hold of a prompt together, in blocks.
struct Reach {
  int64_t local_blocks = 0;  // matched in the pool
  int64_t local_boundary = 0, boundary = 0;
};

struct HybridCache::Impl {
  Impl(const CacheOptions& options_, PagePool pool_);

  CacheOptions options;
  CacheShape shape;
  int64_t block_tokens, page_tokens, page_blocks, groups;
  PagePool pool;
  std::vector<Page> pages;
  BlockIndex index;
  EvictHeap heap;  // pages by number, checkpoints behind them
  std::vector<Checkpoint> checkpoints;
  std::vector<int32_t> checkpoint_pages;  // [checkpoints][groups]
  std::vector<int32_t> free_checkpoints;
  std::deque<Sequence> sequences;
  std::vector<int32_t> free_sequences;
  Storage token_store;  // [pages][page_tokens] int32, when tokens are compared
  std::vector<std::shared_ptr<CacheTier>> tiers;  // nearest first
  uint64_t seed = 0;
  double inflation = 0;
  CacheStats counts;  // sums, and the page counts that change with every transition
  int64_t pinned_checkpoints = 0;
  std::vector<int32_t> chain;  // scratch of lookups

  // pages.cc
  int64_t available_pages() const;  // free or evictable
  int32_t take(PageUse use);        // evicts; there must be an available page
  void give(int32_t page);
  void reference(int32_t page);
  void unreference(int32_t page);  // an unregistered page without references is freed
  void update_leaf(int32_t page);
  void register_block(Sequence& sequence, int64_t block, const BlockKey& key, std::span<const int32_t> tokens);
  void register_in(int32_t page, int64_t in_page, const BlockKey& key, std::span<const int32_t> tokens);
  void enroll(int32_t page, int32_t parent, int64_t slot);  // before its first block is registered
  void unregister(int32_t page);
  void absorb(int32_t from, int32_t into);  // `into` holds all blocks of `from`
  bool absorb_if_redundant(int32_t page);
  int32_t attach_checkpoint(int32_t record, int64_t position, int64_t saved_tokens, std::span<const int32_t> group_pages);
  void drop_checkpoint(int32_t checkpoint);
  void touch_checkpoint(int32_t checkpoint);
  void pin_checkpoint(int32_t checkpoint, int change);
  void evict_one(bool write_back);
  void disown(int32_t page);
  int32_t record_of(int32_t page, int64_t block) const { return static_cast<int32_t>(page * page_blocks + block); }
  int32_t page_of(int32_t record) const { return static_cast<int32_t>(record / page_blocks); }
  int32_t heap_id(int32_t checkpoint) const { return static_cast<int32_t>(pool.count()) + checkpoint; }
  std::span<int32_t> pages_of(int32_t checkpoint) {
    return {checkpoint_pages.data() + checkpoint * groups, static_cast<size_t>(groups)};
  }
  std::span<int32_t> tokens_of(int32_t page) {
    return {reinterpret_cast<int32_t*>(token_store.data()) + page * page_tokens, static_cast<size_t>(page_tokens)};
  }
  std::span<const int32_t> tokens_of(int32_t page) const { return const_cast<Impl*>(this)->tokens_of(page); }
  Page& at(int32_t page) { return pages[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages[static_cast<size_t>(page)]; }
  Checkpoint& checkpoint_at(int32_t id) { return checkpoints[static_cast<size_t>(id)]; }

  // lookup.cc
  Match find(const CachePrompt& prompt) const;
  bool verify(const CachePrompt& prompt, const Match& match) const;
  void chain_of(int32_t page, std::vector<int32_t>* out) const;  // from the first slot to this page

  // sequences.cc
  Status check_fits(int64_t tokens, const char* what) const;
  Result<Admission> admit(const CachePrompt& prompt, int64_t reserve_tokens);
  bool try_admit(const CachePrompt& prompt, int64_t reserve_tokens, const Match& match, Admission* admission);
  void plan_prompt(const CachePrompt& prompt, const Match& match, Sequence* sequence) const;
  Status grow(Sequence& sequence, int64_t tokens);
  void release(SequenceId id);
  void quarantine(SequenceId id);
  Result<SequenceId> fork(SequenceId id);
  SequenceId new_sequence();
  Sequence& live(SequenceId id);
  const Sequence& live(SequenceId id) const { return const_cast<Impl*>(this)->live(id); }
  void close(SequenceId id);
  int64_t copy_latents(int32_t from, int32_t to, int64_t rows);  // bytes
  int64_t copy_states(std::span<const int32_t> from, std::span<const int32_t> to);
  int64_t group_bytes(int64_t group) const { return shape.group_layers[static_cast<size_t>(group)] * shape.layer_stride; }

  // checkpoints.cc
  std::span<const CheckpointWrite> plan(Sequence& sequence, int64_t end);
  void commit(Sequence& sequence, std::span<const BlockKey> keys, std::span<const int32_t> tokens, int64_t token_count);
  void close_plan(Sequence& sequence, int64_t landed, std::span<const BlockKey> keys);

  // save.cc
  Status save(const Sequence& sequence, const std::function<Status(std::span<const std::byte>)>& write);
  Result<SequenceId> restore(int64_t tokens, const std::function<Status(std::span<std::byte>)>& read);

  // tiering.cc
  Status open_tiers();
  void put(bool checkpoint, std::span<const BlockKey> keys, std::span<const int32_t> tokens, std::span<const int32_t> entry_pages);
  bool get(std::span<const int32_t> entry_pages, const std::function<bool(CacheTier&, std::span<std::byte* const>)>& from);
  void write_back_page(int32_t page);
  void write_back_checkpoint(int32_t checkpoint);
  void write_back_all();
  Reach reach(const CachePrompt& prompt) const;
  void fetch(const CachePrompt& prompt, int64_t reserve_tokens, Admission* admission);
  bool fetch_to(const CachePrompt& prompt, const Reach& found, int64_t reserve_tokens, Admission* admission);
  int32_t fetch_page(const CachePrompt& prompt, int64_t slot, int64_t blocks, int32_t parent);
  bool fetch_checkpoint(const BlockKey& key, int32_t page, const Reach& found);

  // check.cc
  struct Recount;
  Status check() const;
};

}  // namespace k3::cache
