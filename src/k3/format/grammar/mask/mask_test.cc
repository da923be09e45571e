// Cached masks against trying every token, along random walks; constraints are values.
#include <gtest/gtest.h>

#include "k3/base/rng.h"
#include "k3/format/grammar/grammar_test_util.h"
#include "k3/format/grammar/mask/byte_trie.h"

namespace k3 {
namespace {

// Most ids that the mask allows or not are tried, a different part at every step.
void compare(const Constraint& constraint, const std::vector<uint32_t>& mask, int64_t vocab, const Rng& rng, uint64_t step,
             size_t most, const std::string& where) {
  for (size_t k = 0; k < most; ++k) {
    const auto id = static_cast<int32_t>(rng.bits(step * 100000 + k) % static_cast<uint64_t>(vocab));
    Constraint copy = constraint;
    ASSERT_EQ(copy.accept(id), test::bit(mask, id)) << where << ", token " << id;
  }
  // The allowed ones are few among all: a stretch of them.
  size_t tried = 0;
  const auto words = mask.size();
  const size_t first = rng.bits(step) % words;
  for (size_t w = 0; w < words && tried < most; ++w) {
    const size_t word = (first + w) % words;
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1, ++tried) {
      const auto id = static_cast<int32_t>(word * 32 + static_cast<size_t>(__builtin_ctz(bits)));
      Constraint copy = constraint;
      ASSERT_TRUE(copy.accept(id)) << where << ", token " << id;
    }
  }
}

void walk(const std::shared_ptr<const Grammar>& grammar, const Tokenizer& tokenizer, int32_t end, uint64_t seed, int steps,
          size_t most, const std::string& name) {
  const int64_t vocab = tokenizer.vocab_size();
  Constraint constraint(grammar, {end});
  const Rng rng(seed, 3);
  std::string text;
  for (int step = 0; step < steps; ++step) {
    const std::vector<uint32_t> mask = test::mask_of(constraint, vocab);
    compare(constraint, mask, vocab, rng, static_cast<uint64_t>(step), most, name + " after " + text);
    if (::testing::Test::HasFatalFailure()) return;
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab; ++id) {
      if (test::bit(mask, id)) ids.push_back(id);
    }
    ASSERT_FALSE(ids.empty()) << name << " after " << text;
    const int32_t id = ids[rng.bits(1'000'000 + static_cast<uint64_t>(step)) % ids.size()];
    ASSERT_TRUE(constraint.accept(id));
    if (id == end) return;
    text += tokenizer.bytes(id);
  }
}

const char* const kSchemas[] = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","minLength":40,"maxLength":60})",
    R"({"type":"string","pattern":"^[a-z]+( [a-z]+){1,3}$"})",
    R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"},"minItems":3,"maxItems":9},"c":{}},"required":["a"]})",
    R"({"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"type":"null"},{"type":"object","properties":{"l":{"$ref":"#/$defs/n"},"r":{"$ref":"#/$defs/n"}},"required":["l","r"]}]}}})",
    R"({"type":"object","additionalProperties":{"type":["number","boolean"]}})",
    "true"};

TEST(Masks, EqualNaiveOnesOfTheReleasedVocabulary) {
  const Tokenizer& tokenizer = test::released_tokenizer();
  const auto trie = TokenTrie::build(tokenizer);
  const int32_t end = tokenizer.special("<|end_of_msg|>").value();
  for (const char* schema : kSchemas) {
    const auto grammar = Grammar::json_schema(trie, schema);
    ASSERT_TRUE(grammar.ok()) << schema << grammar.error().message;
    for (uint64_t seed = 0; seed < 2; ++seed) walk(*grammar, tokenizer, end, seed, 12, 400, schema);
  }
}

TEST(Masks, EqualNaiveOnesOfTheByteVocabulary) {
  for (const char* schema : kSchemas) {
    const auto grammar = Grammar::json_schema(test::byte_trie(), schema);
    ASSERT_TRUE(grammar.ok()) << schema << grammar.error().message;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      walk(*grammar, test::byte_vocabulary(), test::kByteEnd, seed, 60, 266, schema);
    }
  }
}

TEST(Masks, WholeNaiveMaskOnce) {
  const Tokenizer& tokenizer = test::released_tokenizer();
  const auto trie = TokenTrie::build(tokenizer);
  const int32_t end = tokenizer.special("<|end_of_msg|>").value();
  const auto grammar =
      Grammar::json_schema(
          trie,
          R"({"type":"object","properties":{"a":{"type":"string","maxLength":6},"b":{"type":"integer"}},"required":["b"]})")
          .value();
  for (const char* before : {"", "{\"a\":\"x", "{\"a\": \"abc\", ", "{\"b\":1"}) {
    Constraint constraint(grammar, {end});
    const std::vector<int32_t> ids = tokenizer.encode(before).value();
    for (const int32_t id : ids) ASSERT_TRUE(constraint.accept(id)) << before;
    EXPECT_EQ(test::mask_of(constraint, tokenizer.vocab_size()), test::naive_mask(constraint, tokenizer.vocab_size()))
        << before;
  }
}

// Nesting is limited, and below the limit a text can always be completed.
TEST(Masks, DepthIsLimitedWithoutDeadEnds) {
  const auto grammar = Grammar::json_schema(test::byte_trie(), "true").value();
  Constraint constraint(grammar, {test::kByteEnd});
  int depth = 0;
  while (constraint.accept('[')) ASSERT_LT(++depth, 1000);
  EXPECT_GT(depth, 60);
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(constraint.accept(']')) << i;
  EXPECT_TRUE(constraint.accept(test::kByteEnd));
}

TEST(Masks, ConstraintsAreValues) {
  const auto grammar = Grammar::json_schema(test::byte_trie(), R"({"enum":["ab","ac"]})").value();
  Constraint a(grammar, {test::kByteEnd});
  ASSERT_TRUE(a.accept('"') && a.accept('a'));
  Constraint b = a;
  ASSERT_TRUE(a.accept('b'));
  EXPECT_FALSE(a.accept('c'));
  EXPECT_TRUE(b.accept('c'));
  b = a;
  EXPECT_TRUE(b.accept('"'));
  EXPECT_TRUE(b.accept(test::kByteEnd));
  EXPECT_FALSE(b.accept('x'));
  const auto mask = test::mask_of(b, test::byte_vocabulary().vocab_size());
  for (int32_t id = 0; id < test::byte_vocabulary().vocab_size(); ++id) EXPECT_EQ(test::bit(mask, id), id == test::kByteEnd);
}

TEST(Masks, TriePreorder) {
  const auto trie = grammar::ByteTrie::build({{"b", 1}, {"ab", 2}, {"abc", 3}, {"ad", 4}, {"", 5}});
  EXPECT_EQ(trie.token, (std::vector<int32_t>{-1, -1, 2, 3, 4, 1}));
  EXPECT_EQ(trie.end, (std::vector<uint32_t>{6, 5, 4, 4, 5, 6}));
  EXPECT_EQ(trie.depth, (std::vector<uint8_t>{0, 1, 2, 3, 2, 1}));
}

}  // namespace
}  // namespace k3
