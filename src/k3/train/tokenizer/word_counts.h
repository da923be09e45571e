// Purpose:  how often each piece of the split pattern occurs in the training texts.
// Shapes:   none.
// Units:    counts in thousandths of an occurrence: a text of weight 0.5 adds 500 for each.
// Memory:   owns the bytes of every distinct piece and 24 bytes each; a hash table at most half full.
// Threads:  one at a time; threads fill a table each and add() one to another. Sums do not depend on the order.
// Errors:   none; texts are valid UTF-8.
// Source:   model.md 5.2: the same cuts and the same pattern as the tokenizer (format/tokenizer).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3::train {

inline constexpr int64_t kCountUnit = 1000;

class WordCounts {
 public:
  WordCounts();
  void add_text(std::string_view text, int64_t count);  // all pieces of one text
  void add_word(std::string_view word, int64_t count);
  void add(const WordCounts& other);

  int64_t words() const { return static_cast<int64_t>(words_.size()); }
  std::string_view word(int64_t i) const {
    const Word& w = words_[static_cast<size_t>(i)];
    return {arena_.data() + w.begin, w.size};
  }
  int64_t count(int64_t i) const { return words_[static_cast<size_t>(i)].count; }
  int64_t total_bytes() const { return static_cast<int64_t>(arena_.size()); }  // of the distinct words

 private:
  struct Word {
    size_t begin;
    uint32_t size;
    uint32_t hash;
    int64_t count;
  };
  void grow();

  std::string arena_;
  std::vector<Word> words_;
  std::vector<uint32_t> slots_;  // word + 1; 0 is free
  std::vector<size_t> chunks_, pieces_;
};

}  // namespace k3::train
