// TokenTrie: the ordinary tokens of a tokenizer, prepared once.
#include <algorithm>

#include "k3/base/utf8.h"
#include "k3/format/grammar/constraint.h"
#include "k3/format/grammar/grammar_impl.h"

namespace k3 {
namespace {

bool is_plain(std::string_view token) {
  const auto kept = [](char c) { return static_cast<uint8_t>(c) >= 0x20 && c != '"' && c != '\\'; };
  return std::all_of(token.begin(), token.end(), kept) && is_utf8(token);
}

}  // namespace

TokenTrie::TokenTrie(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenTrie::~TokenTrie() = default;

std::shared_ptr<const TokenTrie> TokenTrie::build(const Tokenizer& tokenizer) {
  auto impl = std::make_unique<Impl>();
  grammar::Vocabulary& v = impl->vocabulary;
  v.base = tokenizer.base_count();
  v.size = tokenizer.vocab_size();
  const size_t words = mask_words(v.size);
  v.plain_masks.assign(grammar::kPlainLengths, std::vector<uint32_t>(words, 0));
  std::vector<std::pair<std::string_view, int32_t>> all, unusual;
  std::string& text = impl->text;
  size_t total = 0;
  for (int32_t id = 0; id < v.base; ++id) total += tokenizer.bytes(id).size();
  text.reserve(total);  // the views below stay valid
  for (int32_t id = 0; id < v.base; ++id) {
    const std::string_view source = tokenizer.bytes(id);
    const std::string_view token(text.data() + text.size(), source.size());
    text.append(source);
    v.bytes.push_back(token);
    all.emplace_back(token, id);
    v.longest = std::max(v.longest, static_cast<uint32_t>(token.size()));
    if (!is_plain(token)) {
      unusual.emplace_back(token, id);
      continue;
    }
    const auto length = static_cast<uint32_t>(utf8_length(token));
    const uint32_t first = std::min(length, grammar::kPlainLengths - 1);
    v.plain_masks[first][static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    if (length >= grammar::kPlainLengths - 1) v.long_plain.emplace_back(length, id);
  }
  for (size_t n = 1; n < grammar::kPlainLengths; ++n) {
    for (size_t w = 0; w < words; ++w) v.plain_masks[n][w] |= v.plain_masks[n - 1][w];
  }
  std::sort(v.long_plain.begin(), v.long_plain.end());
  v.all = grammar::ByteTrie::build(std::move(all));
  v.unusual = grammar::ByteTrie::build(std::move(unusual));
  return std::shared_ptr<const TokenTrie>(new TokenTrie(std::move(impl)));
}

}  // namespace k3
