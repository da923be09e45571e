#include "k3/train/tokenizer/word_counts.h"

#include <functional>

#include "k3/format/tokenizer/chunks.h"
#include "k3/format/tokenizer/pattern_scan.h"

namespace k3::train {
namespace {

constexpr size_t kFirstSlots = size_t{1} << 12;

}  // namespace

WordCounts::WordCounts() : slots_(kFirstSlots) {}

void WordCounts::add_text(std::string_view text, int64_t count) {
  chunks_.clear();
  split_chunks(text, chunks_);
  size_t begin = 0;
  for (const size_t end : chunks_) {
    const std::string_view chunk = text.substr(begin, end - begin);
    pieces_.clear();
    split_by_scan(chunk, pieces_);
    size_t at = 0;
    for (const size_t stop : pieces_) {
      add_word(chunk.substr(at, stop - at), count);
      at = stop;
    }
    begin = end;
  }
}

void WordCounts::add_word(std::string_view word, int64_t count) {
  const auto hash = static_cast<uint32_t>(std::hash<std::string_view>()(word));
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    if (slots_[i] == 0) {
      words_.push_back({arena_.size(), static_cast<uint32_t>(word.size()), hash, count});
      arena_.append(word);
      slots_[i] = static_cast<uint32_t>(words_.size());
      break;
    }
    Word& found = words_[slots_[i] - 1];
    if (found.hash == hash && std::string_view(arena_.data() + found.begin, found.size) == word) {
      found.count += count;
      return;
    }
  }
  if (words_.size() * 2 > slots_.size()) grow();
}

void WordCounts::grow() {
  slots_.assign(slots_.size() * 2, 0);
  const size_t mask = slots_.size() - 1;
  for (size_t w = 0; w < words_.size(); ++w) {
    size_t i = words_[w].hash & mask;
    while (slots_[i] != 0) i = (i + 1) & mask;
    slots_[i] = static_cast<uint32_t>(w + 1);
  }
}

void WordCounts::add(const WordCounts& other) {
  for (int64_t i = 0; i < other.words(); ++i) add_word(other.word(i), other.count(i));
}

}  // namespace k3::train
