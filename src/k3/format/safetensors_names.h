// Internal to format.
//
// The names of a checkpoint, compact: the text they were read from is the store (names are moved to its front
// while it is scanned), an entry takes 8 bytes and a hash slot 8 more at a load of at most one half.
// 497,220 names of 73 bytes: about 49 MB in all.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::safetensors {

// Malloced text: shrinking a large block gives its tail back without a copy, which std::string cannot.
class Text {
 public:
  Text() = default;
  static Result<Text> allocate(size_t size);
  static Result<Text> copy_of(std::string_view text);
  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::string_view view() const { return {data_.get(), size_}; }
  void shrink(size_t size);

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  size_t size_ = 0;
};

class NameTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kMaxNameBytes = UINT16_MAX;
  static constexpr size_t kMaxShards = UINT16_MAX;
  static constexpr size_t kMaxTextBytes = size_t{1} << 31;

  NameTable() = default;
  explicit NameTable(Text text) : text_(std::move(text)) {}
  char* text() { return text_.data(); }
  size_t text_bytes() const { return text_.size(); }

  // Moves `name` (inside text()) behind the names already stored and adds it. False: it is there already.
  bool add(std::string_view name, uint16_t shard);
  void set_shard(uint32_t id, uint16_t shard) { entries_[id].shard = shard; }
  void shrink();  // after the last add()

  uint32_t find(std::string_view name) const;  // kNone when absent
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  std::string_view name(uint32_t id) const { return {text_.data() + entries_[id].offset, entries_[id].length}; }
  uint16_t shard(uint32_t id) const { return entries_[id].shard; }

 private:
  struct Entry {
    uint32_t offset;
    uint16_t length;
    uint16_t shard;
  };
  struct Slot {
    uint32_t tag = 0;  // low half of the hash: enough to place the entry again when the table grows
    uint32_t id = kNone;
  };
  size_t probe(std::string_view name, uint32_t tag) const;
  void grow();

  Text text_;
  size_t stored_bytes_ = 0;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
};

}  // namespace k3::safetensors
