#include "k3/format/safetensors_names.h"

#include <cstring>
#include <utility>

namespace k3::safetensors {
namespace {

uint32_t hash_of(std::string_view name) {
  // Names differ mostly in a few digits in the middle: every 8 bytes are multiplied in and folded.
  uint64_t hash = 0x9E3779B97F4A7C15u ^ name.size();
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= name.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + i, 8);
    mix(word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, name.data() + i, name.size() - i);
  mix(tail);
  mix(0);
  return static_cast<uint32_t>(hash);
}

}  // namespace

Result<Text> Text::allocate(size_t size) {
  Text text;
  text.data_.reset(static_cast<char*>(std::malloc(size + 1)));
  if (!text.data_) return fail(Code::exhausted, "no memory for {} bytes", size);
  text.size_ = size;
  return text;
}

Result<Text> Text::copy_of(std::string_view source) {
  K3_TRY_ASSIGN(Text text, allocate(source.size()));
  std::memcpy(text.data(), source.data(), source.size());
  return text;
}

void Text::shrink(size_t size) {
  if (size >= size_) return;
  if (void* smaller = std::realloc(data_.get(), size + 1)) {
    static_cast<void>(data_.release());
    data_.reset(static_cast<char*>(smaller));
  }
  size_ = size;
}

size_t NameTable::probe(std::string_view wanted, uint32_t tag) const {
  const size_t mask = slots_.size() - 1;
  size_t at = tag & mask;
  while (slots_[at].id != kNone && !(slots_[at].tag == tag && name(slots_[at].id) == wanted)) at = (at + 1) & mask;
  return at;
}

void NameTable::grow() {
  std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : slots_.size() * 2));
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    size_t at = slot.tag & mask;
    while (slots_[at].id != kNone) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

bool NameTable::add(std::string_view added, uint16_t shard) {
  if ((entries_.size() + 1) * 2 > slots_.size()) grow();
  const uint32_t tag = hash_of(added);
  const size_t at = probe(added, tag);
  if (slots_[at].id != kNone) return false;
  slots_[at] = Slot{tag, static_cast<uint32_t>(entries_.size())};
  entries_.push_back(Entry{static_cast<uint32_t>(stored_bytes_), static_cast<uint16_t>(added.size()), shard});
  std::memmove(text_.data() + stored_bytes_, added.data(), added.size());
  stored_bytes_ += added.size();
  return true;
}

void NameTable::shrink() {
  text_.shrink(stored_bytes_);
  entries_.shrink_to_fit();
}

uint32_t NameTable::find(std::string_view wanted) const {
  if (slots_.empty()) return kNone;
  return slots_[probe(wanted, hash_of(wanted))].id;
}

}  // namespace k3::safetensors
