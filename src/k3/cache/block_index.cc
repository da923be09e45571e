#include "k3/cache/block_index.h"

#include "k3/base/check.h"

namespace k3::cache {

namespace {

constexpr int kFirstBits = 10;

}  // namespace

BlockIndex::BlockIndex(int64_t slots, int64_t blocks_per_slot) {
  K3_CHECK(slots * blocks_per_slot < int64_t{1} << 31, "{} slots of {} blocks", slots, blocks_per_slot);
  records_.resize(static_cast<size_t>(slots * blocks_per_slot));
  table_.assign(size_t{1} << kFirstBits, kNone);
  shift_ = 64 - kFirstBits;
}

// Multiplicative: a simulator's keys are small consecutive numbers.
size_t BlockIndex::home(const BlockKey& key) const {
  return static_cast<size_t>(((key.low ^ key.high) * 0x9E3779B97F4A7C15ULL) >> shift_);
}

size_t BlockIndex::place(const BlockKey& key) const {
  const size_t mask = table_.size() - 1;
  size_t at_place = home(key);
  while (table_[at_place] != kNone && !(at(table_[at_place]).key == key)) at_place = (at_place + 1) & mask;
  return at_place;
}

int32_t BlockIndex::find(const BlockKey& key) const { return table_[place(key)]; }

void BlockIndex::insert(int32_t record, const BlockKey& key) {
  K3_CHECK(!used(record), "record {} is in use", record);
  if (2 * (keys_ + 1) > static_cast<int64_t>(table_.size())) grow();
  const size_t where = place(key);
  const int32_t head = table_[where];
  Record& added = at(record);
  added.key = key;
  added.checkpoint = kNone;
  ++records_used_;
  if (head == kNone) {
    added.next = added.prev = kNone;
    table_[where] = record;
    ++keys_;
    return;
  }
  added.prev = head;  // behind the head, which may carry the checkpoint
  added.next = at(head).next;
  if (added.next != kNone) at(added.next).prev = record;
  at(head).next = record;
}

void BlockIndex::erase(int32_t record) {
  Record& gone = at(record);
  K3_CHECK(used(record), "record {} is not in use", record);
  K3_CHECK(gone.checkpoint == kNone, "record {} still carries a checkpoint", record);
  if (gone.next != kNone) at(gone.next).prev = gone.prev;
  if (gone.prev != kNone) {
    at(gone.prev).next = gone.next;
  } else {
    const size_t where = place(gone.key);
    if (gone.next != kNone) {
      table_[where] = gone.next;
    } else {
      remove_place(where);
      --keys_;
    }
  }
  gone = Record{};
  --records_used_;
}

void BlockIndex::promote(int32_t record) {
  Record& first = at(record);
  if (first.prev == kNone) return;
  const size_t where = place(first.key);
  at(first.prev).next = first.next;
  if (first.next != kNone) at(first.next).prev = first.prev;
  at(table_[where]).prev = record;
  first.next = table_[where];
  first.prev = kNone;
  table_[where] = record;
}

// Linear probing without tombstones: entries behind the hole move up when their home does not lie between.
void BlockIndex::remove_place(size_t hole) {
  const size_t mask = table_.size() - 1;
  for (size_t probe = (hole + 1) & mask; table_[probe] != kNone; probe = (probe + 1) & mask) {
    const size_t from_home = (probe - home(at(table_[probe]).key)) & mask;
    if (from_home < ((probe - hole) & mask)) continue;
    table_[hole] = table_[probe];
    hole = probe;
  }
  table_[hole] = kNone;
}

void BlockIndex::grow() {
  const std::vector<int32_t> old = std::move(table_);
  table_.assign(old.size() * 2, kNone);
  --shift_;
  for (const int32_t head : old) {
    if (head != kNone) table_[place(at(head).key)] = head;
  }
}

const char* BlockIndex::check() const {
  int64_t heads = 0, seen = 0;
  for (size_t where = 0; where < table_.size(); ++where) {
    const int32_t head = table_[where];
    if (head == kNone) continue;
    ++heads;
    if (place(at(head).key) != where) return "a key is not where it is looked for";
    if (at(head).prev != kNone) return "a head has a predecessor";
    for (int32_t record = head; record != kNone; record = next(record)) {
      if (++seen > records_used_) return "a list of records does not end";
      if (!(at(record).key == at(head).key)) return "a list mixes keys";
      if (record != head && at(record).checkpoint != kNone) return "a checkpoint is not at the head of its list";
      if (next(record) != kNone && at(next(record)).prev != record) return "a list of records is not linked both ways";
    }
  }
  if (heads != keys_) return "the number of keys is wrong";
  if (seen != records_used_) return "the number of records is wrong";
  return "";
}

}  // namespace k3::cache
