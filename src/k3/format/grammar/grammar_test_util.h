// Purpose:  what the tests of constrained output share: feeding texts, naive masks, tokenizers with tries.
// Shapes:   none.
// Units:    none.
// Memory:   vocabularies are loaded once a process.
// Threads:  single-threaded.
// Errors:   a failed load is a test failure.
// Source:   constraint.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "k3/format/chat/chat_test_util.h"
#include "k3/format/grammar/constraint.h"

namespace k3::test {

inline constexpr int32_t kByteEnd = 258;  // <|end_of_msg|> of the byte vocabulary

inline const Tokenizer& byte_vocabulary() {
  static const Tokenizer tokenizer = byte_tokenizer(kXtmlSpecials);
  return tokenizer;
}

inline std::shared_ptr<const TokenTrie> byte_trie() {
  static const auto trie = TokenTrie::build(byte_vocabulary());
  return trie;
}

inline bool bit(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

inline std::vector<uint32_t> mask_of(Constraint constraint, int64_t vocab) {
  std::vector<uint32_t> mask(mask_words(vocab), 0);
  if (!constraint.fill_mask(mask)) mask.assign(mask.size(), UINT32_MAX);
  return mask;
}

// Tries every id on a copy.
inline std::vector<uint32_t> naive_mask(const Constraint& constraint, int64_t vocab) {
  std::vector<uint32_t> mask(mask_words(vocab), 0);
  for (int32_t id = 0; id < vocab; ++id) {
    Constraint copy = constraint;
    if (copy.accept(id)) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
  }
  return mask;
}

// "": the whole text is accepted. Else what went wrong, and where.
inline std::string feed_bytes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Constraint constraint(grammar, {kByteEnd});
  const int64_t vocab = byte_vocabulary().vocab_size();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto id = static_cast<int32_t>(static_cast<uint8_t>(text[i]));
    const bool allowed = bit(mask_of(constraint, vocab), id);
    if (constraint.accept(id) != allowed) return fmt::format("mask and accept disagree at byte {}", i);
    if (!allowed) return fmt::format("byte {} ('{}') is refused", i, text[i]);
  }
  return bit(mask_of(constraint, vocab), kByteEnd) ? "" : "the text may not end here";
}

}  // namespace k3::test
