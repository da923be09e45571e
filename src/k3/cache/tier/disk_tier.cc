#include "k3/cache/tier/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/log.h"
#include "k3/base/rng.h"

namespace k3::cache {

namespace {

constexpr int64_t kAlign = 4096;
constexpr size_t kMostUnsaved = 16;  // entries that one transaction saves
constexpr int64_t kIndexBytes = int64_t{64} << 20;

int64_t slot_bytes_of(const CacheShape& shape) {
  const int64_t bytes = shape.page_bytes + shape.page_tokens * static_cast<int64_t>(sizeof(int32_t));
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// The token counts of blocks are part of the layout, the size of the tier is not.
std::string about_text(const CacheShape& shape, const std::string& identity, uint64_t seed) {
  const auto hash = XXH3_128bits(identity.data(), identity.size());
  std::string text = fmt::format("k3 cache folder 1\nidentity {:016x}{:016x}\npage {} {} {} {}\nseed {:016x}\n", hash.high64, hash.low64,
                                 shape.page_bytes, shape.page_tokens, shape.block_tokens, shape.groups(), seed);
  return text + fmt::format("sum {:016x}\n", XXH3_64bits(text.data(), text.size()));
}

// A name in the folder that this program did not make; empty: there is none. `about` comes before all but the lock, and
// stays.
Result<std::string> foreign_name(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return fail(Code::internal, "cache folder {}: {}", folder, error.message());
  std::ranges::sort(names);
  const bool made_here = std::ranges::binary_search(names, "about");
  for (const std::string& name : names) {
    // lost+found: a file system of its own. about.tmp-: the process was killed while it wrote.
    if (name == "lock" || name == "about" || name == "lost+found" || name.starts_with("about.tmp-")) continue;
    if (!made_here || (name != "index" && !SlabStore::is_slab(name))) return name;
  }
  return std::string();
}

}  // namespace

DiskTier::DiskTier(const CacheShape& shape, const std::string& folder, int64_t slots)
    : folder_(folder),
      page_bytes_(shape.page_bytes),
      page_blocks_(shape.blocks_per_page()),
      block_tokens_(shape.block_tokens),
      groups_(shape.groups()),
      index_(slots, page_blocks_),
      slabs_(folder, slot_bytes_of(shape), slots),
      sums_(static_cast<size_t>(slots)) {}

Result<std::unique_ptr<DiskTier>> DiskTier::create(const CacheShape& shape, const std::string& folder, int64_t bytes,
                                                   const std::string& identity) {
  const int64_t slots = bytes / slot_bytes_of(shape);
  if (slots < std::max<int64_t>(1, shape.groups())) {
    return fail(Code::invalid_argument, "cache folder {}: {} bytes hold {} pages of {}", folder, bytes, slots, slot_bytes_of(shape));
  }
  if (slots * shape.blocks_per_page() >= int64_t{1} << 31) {
    return fail(Code::invalid_argument, "cache folder {}: {} pages of {} blocks are too many", folder, slots, shape.blocks_per_page());
  }
  K3_TRY(make_directories(folder));
  K3_TRY_ASSIGN(const std::string foreign, foreign_name(folder));
  if (!foreign.empty()) {
    return fail(
        Code::invalid_argument,
        "{} is no cache folder: it holds '{}', which this program did not write; name a new or empty folder, or one that "
        "a server made",
        folder, foreign);
  }
  std::unique_ptr<DiskTier> tier(new DiskTier(shape, folder, slots));
  K3_TRY(tier->lock());
  const std::string about = join_path(folder, "about");
  const auto old = read_file(about, 4096);
  // The seed is the only part that cannot be known: what is there must be what this seed gives.
  const size_t seed_at = old.ok() ? old->find("seed ") : std::string::npos;
  if (seed_at != std::string::npos) tier->key_seed_ = std::strtoull(old->c_str() + seed_at + 5, nullptr, 16);
  if (!old.ok() || *old != about_text(shape, identity, tier->key_seed_)) {
    if (old.ok()) log_warn("cache folder {} is of another model, dtype or version, or damaged: starting empty", folder);
    tier->slabs_.remove_files();
    const std::string index = join_path(folder, "index");
    if (::unlink(index.c_str()) != 0 && errno != ENOENT) return fail(Code::internal, "{}: {}", index, std::strerror(errno));
    tier->key_seed_ = random_seed();
    K3_TRY(write_file(about, about_text(shape, identity, tier->key_seed_)));
  }
  K3_TRY(tier->open_index(slots));
  tier->slabs_.remove_files(tier->slabs_.file_count());  // of a larger tier; the index has forgotten what was in them
  return tier;
}

DiskTier::~DiskTier() {
  if (entries_ != nullptr) (void)settle().ok();
  if (lock_ >= 0) ::close(lock_);
}

Status DiskTier::lock() {
  const std::string path = join_path(folder_, "lock");
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return fail(Code::internal, "{}: {}", path, std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return {};
  return fail(Code::unavailable, "cache folder {} is in use by another process; give each its own", folder_);
}

Status DiskTier::open_index(int64_t slots) {
  bool damaged = false;
  const int64_t record_bytes = 128 + groups_ * 12 + page_blocks_ * static_cast<int64_t>(sizeof(BlockKey));
  K3_TRY_ASSIGN(entries_, EntryStore::open(join_path(folder_, "index"), kIndexBytes + 8 * slots * record_bytes, &damaged));
  if (damaged) {
    log_warn("the index of cache folder {} is damaged: starting empty", folder_);
    ++stats_.errors;
  }
  std::vector<StoredEntry> saved;
  std::vector<int32_t> broken;
  K3_TRY(entries_->load(&saved, &broken));
  for (StoredEntry& entry : saved) {
    next_stamp_ = std::max(next_stamp_, entry.stamp + 1);
    const int64_t parts = entry.checkpoint ? groups_ : 1, most_keys = entry.checkpoint ? 1 : page_blocks_;
    const bool fits = static_cast<int64_t>(entry.slots.size()) == parts && static_cast<int64_t>(entry.keys.size()) <= most_keys;
    if (!fits || !index_.claim_slots(entry.slots)) {
      broken.push_back(entry.slots.front());
      continue;
    }
    sums_[static_cast<size_t>(entry.slots.front())] = entry.sums;
    index_.insert(entry.checkpoint, entry.keys, entry.slots);
  }
  index_.end_claims();
  stats_.errors += static_cast<int64_t>(broken.size());
  if (!broken.empty()) K3_TRY(entries_->change(broken, {}));
  return {};
}

uint64_t DiskTier::sum_of(const BlockKey& key, size_t part, const std::byte* page, std::span<const int32_t> tokens) const {
  const uint64_t seed = XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), key.low ^ part);
  return XXH3_64bits_withSeed(page, static_cast<size_t>(page_bytes_), seed);
}

// Entries leave in batches, so that one transaction makes room for many.
bool DiskTier::make_room(int64_t slots) {
  if (index_.free_slots() >= slots) return true;
  const auto capacity = static_cast<int64_t>(sums_.size());
  int64_t freed = index_.free_slots();
  for (const auto& gone : doomed_) freed += static_cast<int64_t>(gone.size());
  const int64_t wanted = std::min(capacity, std::max(slots, capacity / 32));
  while (freed < wanted && index_.oldest() != TierIndex::kNone) {
    freed += static_cast<int64_t>(index_.at(index_.oldest()).slots.size());
    forget(index_.oldest());
  }
  return index_.free_slots() >= slots || (settle().ok() && index_.free_slots() >= slots);
}

void DiskTier::forget(int32_t name) {
  std::vector<int32_t> slots = index_.erase(name);
  if (std::erase(unsaved_, name) > 0) {
    index_.give_slots(slots);
  } else {
    doomed_.push_back(std::move(slots));
  }
}

Status DiskTier::settle() {
  if (unsaved_.empty() && doomed_.empty()) return {};
  std::vector<int32_t> remove;
  for (const auto& slots : doomed_) remove.push_back(slots.front());
  std::vector<StoredEntry> add;
  for (const int32_t name : unsaved_) {
    const TierIndex::Entry& entry = index_.at(name);
    add.push_back({entry.checkpoint, next_stamp_++, entry.slots, sums_[static_cast<size_t>(name)], entry.keys});
  }
  Status status = add.empty() ? Status{} : slabs_.sync();
  if (status.ok()) status = entries_->change(remove, add);
  if (!status.ok() && !add.empty()) {
    // What cannot be saved is dropped; at least the deletions may still fit.
    stats_.dropped += static_cast<int64_t>(unsaved_.size());
    for (const int32_t name : std::vector<int32_t>(unsaved_)) forget(name);
    if (!entries_->change(remove, {}).ok()) return status;
  } else if (!status.ok()) {
    return status;
  }
  unsaved_.clear();
  for (const auto& slots : doomed_) index_.give_slots(slots);
  doomed_.clear();
  return status;
}

void DiskTier::put(const TierEntry& entry) {
  if (index_.touch_held(entry.checkpoint, entry.keys)) return;
  const auto parts = static_cast<int64_t>(entry.parts.size());
  if (!make_room(parts)) {
    ++stats_.dropped;
    return;
  }
  for (int32_t part = TierIndex::kNone; !entry.checkpoint && (part = index_.find_contained(entry.keys)) != TierIndex::kNone;) forget(part);
  std::vector<int32_t> slots = index_.take_slots(parts);
  std::vector<uint64_t> sums;
  for (size_t part = 0; part < slots.size(); ++part) {
    const auto page = std::span(entry.parts[part], static_cast<size_t>(page_bytes_));
    Status status = slabs_.write(slots[part], 0, page);
    if (status.ok() && !entry.tokens.empty()) status = slabs_.write(slots[part], page_bytes_, std::as_bytes(entry.tokens));
    if (!status.ok()) {
      ++stats_.dropped;
      index_.give_slots(slots);
      return;
    }
    sums.push_back(sum_of(entry.keys.back(), part, page.data(), entry.tokens));
  }
  const int32_t name = index_.insert(entry.checkpoint, entry.keys, std::move(slots));
  sums_[static_cast<size_t>(name)] = std::move(sums);
  unsaved_.push_back(name);
  if (unsaved_.size() >= kMostUnsaved) (void)settle().ok();
}

bool DiskTier::read_part(const BlockKey& key, int32_t name, size_t part, std::byte* page, std::span<int32_t> tokens) {
  const int32_t slot = index_.at(name).slots[part];
  const bool read = slabs_.read(slot, 0, std::span(page, static_cast<size_t>(page_bytes_))).ok() &&
                    (tokens.empty() || slabs_.read(slot, page_bytes_, std::as_writable_bytes(tokens)).ok());
  return read && sum_of(key, part, page, tokens) == sums_[static_cast<size_t>(name)][part];
}

bool DiskTier::count_read(int32_t name, bool sound) {
  if (sound) {
    index_.touch(name);
    ++stats_.hits;
  } else {
    ++stats_.errors;
    forget(name);
  }
  return sound;
}

bool DiskTier::get_page(std::span<const BlockKey> keys, std::span<const int32_t> tokens, std::byte* page) {
  const int32_t name = index_.find_page(keys);
  if (name == TierIndex::kNone) return false;
  const auto& held = index_.at(name).keys;
  token_buffer_.resize(tokens.empty() ? 0 : held.size() * static_cast<size_t>(block_tokens_));
  const bool sound = read_part(held.back(), name, 0, page, token_buffer_) &&
                     std::ranges::equal(tokens, std::span(token_buffer_).first(tokens.size()));
  return count_read(name, sound);
}

bool DiskTier::get_checkpoint(const BlockKey& key, std::span<std::byte* const> parts) {
  const int32_t name = index_.find_checkpoint(key);
  if (name == TierIndex::kNone) return false;
  bool sound = true;
  for (size_t part = 0; sound && part < parts.size(); ++part) sound = read_part(key, name, part, parts[part], {});
  return count_read(name, sound);
}

void DiskTier::clear() {
  while (index_.oldest() != TierIndex::kNone) forget(index_.oldest());
  (void)settle().ok();
}

Status DiskTier::flush() { return settle(); }

TierStats DiskTier::stats() const {
  TierStats out = stats_;
  out.entries = index_.entries();
  out.bytes = index_.used_slots() * slabs_.slot_bytes();
  return out;
}

}  // namespace k3::cache
