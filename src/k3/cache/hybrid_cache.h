// Purpose:  the hybrid prefix cache: one pool of pages for MLA latents and KDA states of running sequences and for what is
//           kept of finished ones; lookup, pinning, checkpoints, eviction, tiers.
// Shapes:   shape.h. A running sequence has a block table of MLA pages and one private KDA page a group. Spans that are
//           returned hold until the next call that changes their sequence.
// Units:    tokens, bytes, pages.
// Memory:   owns the pool (options.backed; a simulator has none) and all records. Contents of pages are written by the step
//           (latents, states, exports) and by the copies that this class makes on a hit, a fork and a restore.
//           On a device (options.queue) those are queued ahead of the next step.
// Threads:  one thread (the engine's); no locks.
// Errors:   admit, grow: exhausted when pages cannot be had now (nothing is changed: try again when others have finished);
//           invalid_argument when they can never be had. A tier that fails or holds damaged entries is a miss and a
//           counter, never an error of the request. device_lost: from admit, fork, save, restore once the device has failed.
// Source:   serving.md 2-3. Rules:
//           - A boundary is usable when MLA pages hold every block up to it and every KDA group holds a checkpoint at it;
//             a match stops one token short of the prompt, so that there is something to compute.
//           - Pin before allocate. What the current step computes is matched only after commit().
//           - Checkpoints are immutable; a hit copies them into the private pages. MLA pages that are wholly matched are
//             shared; one that is matched in part is copied up to the boundary.
//           - All groups of a boundary live and die together. Pages of running sequences are never evicted.
//           - Eviction takes leaves only (a checkpoint before the pages it stands on, tail pages before heads), the least
//             value first: GreedyDual on recompute cost over bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/cache/block_key.h"
#include "k3/cache/page_memory.h"
#include "k3/cache/shape.h"
#include "k3/cache/tier/cache_tier.h"

namespace k3::cache {

enum class SequenceId : int32_t {};

struct CheckpointPolicy {
  bool prompt_end = true;      // last endpoint of the prompt
  bool turn_ends = true;       // last endpoint not after each turn's end, and of the generated answer
  int64_t every_tokens = 0;    // 0: off; a multiple of block_tokens
  bool second_sighting = true;  // where the MLA match went further than the usable checkpoint
  bool chunk_ends = false;     // last endpoint of each prefill chunk, recycled by the next: what preemption can return to
};

struct CacheOptions {
  CacheShape shape;
  int64_t pool_bytes = 0;
  bool backed = true;          // false: bookkeeping only (simulator)
  std::shared_ptr<DeviceQueue> queue;  // the device that holds the pool; null: host memory
  bool enabled = true;         // false: nothing is kept or matched (cache off)
  bool compare_tokens = true;  // keep the token ids of blocks and compare them on a hit (then tokens must be given)
  bool poison = false;         // fill freed pages with NaN (tests)
  CheckpointPolicy policy;
  int64_t host_bytes = 0;      // write-back tier in memory
  std::string disk_folder;     // empty: none
  int64_t disk_bytes = 0;
  // Behind those: tiers of the caller, nearest first, each of which passes on by itself what it drops (simulator).
  std::vector<std::shared_ptr<CacheTier>> further_tiers;
  std::string identity;        // checkpoint hash, dtypes, policy: what makes entries of a disk tier ours
};

// What limited a hit: nothing (all blocks of the prompt that leave a token to compute); no block was there; the MLA blocks
// ended; the last checkpoint came before the last block; the prompt (shorter than a block, or its last block would also have
// been there but a token must be left to compute).
enum class HitLimit { none, nothing_cached, mla, kda, prompt_length };
std::string_view hit_limit_name(HitLimit limit);

struct Admission {
  SequenceId sequence{};
  int64_t cached_tokens = 0;   // the usable boundary: computing starts here
  int64_t matched_tokens = 0;  // by MLA blocks alone
  HitLimit limit = HitLimit::nothing_cached;
  int64_t copied_bytes = 0;
  int64_t fetched_bytes = 0;  // from other tiers
};

// A prompt to admit. keys: of its complete blocks. tokens: empty where tokens are not compared (a simulator).
struct CachePrompt {
  std::span<const BlockKey> keys;
  std::span<const int32_t> tokens;
  int64_t token_count = 0;
  std::span<const int64_t> turn_ends;  // token positions at which earlier turns end, ascending
  bool use_cache = true;               // false: nothing is looked up; commit it with no keys and nothing is registered
};

// Where a step is to put the state of a sequence after `position` tokens: one page a group.
struct CheckpointWrite {
  int64_t position = 0;  // tokens from the start of the sequence; a multiple of block_tokens
  std::vector<int32_t> pages;
  bool rolling = false;  // recycled by the next checkpoint of the sequence
};

struct CacheStats {
  int64_t pages = 0, pages_free = 0;
  int64_t pages_running_mla = 0, pages_running_kda = 0;  // of running sequences (a shared page counts once)
  int64_t pages_cached_mla = 0, pages_cached_kda = 0;    // kept only for later hits
  int64_t checkpoints = 0, pinned_pages = 0, quarantined_pages = 0;
  int64_t prompt_tokens = 0, matched_tokens = 0, hit_tokens = 0;  // sums over admissions
  int64_t limited_by_mla = 0, limited_by_kda = 0, no_match = 0;   // admissions
  int64_t evicted_pages = 0, evicted_checkpoints = 0, copied_bytes = 0;
  int64_t host_entries = 0, host_bytes = 0, disk_entries = 0, disk_bytes = 0;
  int64_t host_hits = 0, disk_hits = 0;  // entries fetched
  int64_t tier_errors = 0;   // entries of a tier that were damaged, torn or of something else
  int64_t tier_dropped = 0;  // entries that a tier could not take (disk full)
  int64_t key_collisions = 0;  // blocks with the key but not the tokens that were asked for
};

// A block that is cached (tests, inspection).
struct CachedBlock {
  BlockKey key;
  int64_t copies = 0;       // pages that hold it
  bool checkpoint = false;  // every KDA group has its state at the end of this block
};

class HybridCache {
 public:
  static Result<std::unique_ptr<HybridCache>> create(const CacheOptions& options);
  ~HybridCache();

  const CacheShape& shape() const;
  std::byte* pool();    // base of page 0 for steps, in the memory of their device; null when not backed
  PageMemory& memory();  // the bytes of pages for the host
  int64_t page_count() const;
  uint64_t key_seed() const;  // for KeyChain: of the disk folder, so that its keys outlive the process; else drawn at create

  // Looks up, pins, allocates private KDA pages and the MLA pages of the prompt, copies what the hit needs; the private KDA
  // pages of a sequence without a hit are zeroed. `reserve_tokens` more tokens must be possible at once (1 for decode).
  Result<Admission> admit(const CachePrompt& prompt, int64_t reserve_tokens = 1);
  // The boundary that admit would find now; changes nothing, not even recency. Of entries in tiers it takes for granted that
  // they are whole and that there is room to fetch them.
  Admission peek(const CachePrompt& prompt) const;

  // A running sequence goes on with this longer prompt (whose beginning it holds): for the checkpoint policy alone.
  void extend(SequenceId sequence, const CachePrompt& prompt);

  // Makes room for tokens up to `tokens` in all; more pages in the block table.
  Status grow(SequenceId sequence, int64_t tokens);
  std::span<const int32_t> block_table(SequenceId sequence) const;
  std::span<const int32_t> state_pages(SequenceId sequence) const;  // [groups]
  int64_t length(SequenceId sequence) const;                        // committed tokens

  // Checkpoints that the step which takes the sequence from length() to `end` has to export, ascending; pages are allocated
  // (evicting others if need be; fewer writes when there is no room: a checkpoint is never worth a failure). At most one
  // plan per sequence is open; commit or abandon closes it.
  std::span<const CheckpointWrite> plan_checkpoints(SequenceId sequence, int64_t end);
  // The step has landed: `keys` and `tokens` are those of the whole sequence so far (`token_count` tokens); registers the
  // blocks and checkpoints that are complete. Planned checkpoints beyond token_count are given back.
  void commit(SequenceId sequence, std::span<const BlockKey> keys, std::span<const int32_t> tokens, int64_t token_count);
  void abandon(SequenceId sequence);  // the step failed: planned pages are freed, nothing is registered

  // The sequence ends. What it registered stays as cached pages.
  void release(SequenceId sequence);
  // As release, but a fault of the request may be in what it computed: nothing that it registered is found any more, its pages
  // are zeroed and, except those that others share, taken out of use until clear_quarantine().
  void quarantine(SequenceId sequence);
  void clear_quarantine();

  // States from pages to pages, one a group: what a step left in the private pages becomes a checkpoint that was planned for its end.
  void copy_states(std::span<const int32_t> from, std::span<const int32_t> to);

  // A copy that goes on independently: full MLA pages shared, the open page and the states copied. Room that the original
  // has beyond its length is not copied: grow the copy before its first step. No plan may be open.
  Result<SequenceId> fork(SequenceId sequence);

  // Saves and restores a sequence's content (latents up to length(), states) for slot files; bytes are in a private format
  // that begins with `identity` and ends with a checksum. restore allocates like admit; the first commit after it registers
  // the whole sequence. Errors: unsupported when not backed, invalid_argument for another identity or shape, corrupt for
  // damage and for a length that is not `tokens`, and what the callbacks return.
  Status save(SequenceId sequence, const std::function<Status(std::span<const std::byte>)>& write) const;
  Result<SequenceId> restore(int64_t tokens, const std::function<Status(std::span<std::byte>)>& read);

  void reset();        // forgets everything that no running sequence holds, tiers included
  Status flush();      // tiers: writes back what is worth keeping (shutdown)
  CacheStats stats() const;
  Status check() const;  // invariants (tests): counts, lists, records, refcounts
  std::vector<CachedBlock> contents() const;

 private:
  struct Impl;
  explicit HybridCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::cache
