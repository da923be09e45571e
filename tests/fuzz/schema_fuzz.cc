// The first byte chooses the front end (schema, regex, EBNF), the rest is its source. What compiles is walked: masks are
// never empty, what they allow is accepted, and nothing takes long.
#include <cstdint>
#include <string_view>

#include "k3/base/check.h"
#include "k3/format/chat/chat_test_util.h"
#include "k3/format/grammar/constraint.h"

namespace {

constexpr int32_t kEnd = 258;
constexpr int kSteps = 24;

void walk(const std::shared_ptr<const k3::Grammar>& grammar, int64_t vocab, uint64_t seed) {
  k3::Constraint constraint(grammar, {kEnd});
  std::vector<uint32_t> mask(k3::mask_words(vocab));
  for (int step = 0; step < kSteps; ++step) {
    if (!constraint.fill_mask(mask)) return;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocab; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    K3_CHECK(!allowed.empty(), "an empty mask");
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const int32_t id = allowed[(seed >> 33) % allowed.size()];
    K3_CHECK(constraint.accept(id), "token {} is in the mask and not accepted", id);
    if (id == kEnd) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace k3;
  static const Tokenizer tokenizer = test::byte_tokenizer(test::kXtmlSpecials);
  static const auto trie = TokenTrie::build(tokenizer);
  if (size == 0) return 0;
  const std::string_view source(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char kind = static_cast<char>(data[0]);
  auto grammar = kind == 'r'   ? Grammar::regex(trie, source)
                 : kind == 'e' ? Grammar::ebnf(trie, source)
                               : Grammar::json_schema(trie, source);
  if (!grammar.ok()) {
    K3_CHECK(!grammar.error().message.empty(), "an error without a message");
    return 0;
  }
  for (uint64_t seed = 0; seed < 3; ++seed) walk(*grammar, tokenizer.vocab_size(), seed);
  return 0;
}
