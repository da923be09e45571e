#include "k3/train/tokenizer/bpe_trainer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "k3/format/tokenizer.h"
#include "k3/format/tokenizer/chunks.h"
#include "k3/format/tokenizer/pattern_scan.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace k3::train {
namespace {

WordCounts counts_of(const std::vector<std::string>& texts) {
  WordCounts counts;
  for (const std::string& text : texts) counts.add_text(text, kCountUnit);
  return counts;
}

constexpr const char* kProse =
    "The cat sat on the mat. The hat that the cat had was flat; that's that! 12 34 1234 12345\n\n"
    "aaaa aaaaa aaaaaa aa aaa banana bananas ananas  two  spaces\n"
    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C \xE4\xBD\xA0\xE5\xA5\xBD "
    "\xC3\x84\xC3\x96\xC3\x9C stra\xC3\x9F"
    "e \xF0\x9F\x99\x82\xF0\x9F\x99\x82 don't I'LL we've";

// Words of few letters, so that pairs overlap, tie and chain.
std::string random_text(std::mt19937_64& random, size_t size) {
  constexpr const char* kPieces[] = {"a", "b", "ab", "ba", " ", "c", "aa", "\xE4\xBD\xA0", "\xC3\xA9", "\n", "1", "'s", "A"};
  std::string text;
  while (text.size() < size) text += kPieces[random() % std::size(kPieces)];
  return text;
}

// BPE by its definition: in every piece the ranks are applied one after another.
std::vector<int32_t> encode_naive(const std::vector<std::string>& tokens, std::string_view text) {
  std::vector<int32_t> out;
  std::vector<size_t> chunks, pieces;
  split_chunks(text, chunks);
  size_t chunk_begin = 0;
  for (const size_t chunk_end : chunks) {
    const std::string_view chunk = text.substr(chunk_begin, chunk_end - chunk_begin);
    pieces.clear();
    split_by_scan(chunk, pieces);
    size_t at = 0;
    for (const size_t end : pieces) {
      std::vector<std::string> parts;
      for (const char c : chunk.substr(at, end - at)) parts.emplace_back(1, c);
      for (size_t rank = kByteRanks; rank < tokens.size(); ++rank) {
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
          if (parts[i] + parts[i + 1] != tokens[rank]) continue;
          parts[i] += parts[i + 1];
          parts.erase(parts.begin() + static_cast<int64_t>(i) + 1);
        }
      }
      for (const std::string& part : parts) {
        out.push_back(static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), part) - tokens.begin()));
      }
      at = end;
    }
    chunk_begin = chunk_end;
  }
  return out;
}

TEST(BpeTrainerTest, LearnsByHand) {
  WordCounts words;
  words.add_word("aaabdaaabac", kCountUnit);
  const auto ranks = train_bpe(words, {.ranks = 259, .least_count = kCountUnit});
  ASSERT_TRUE(ranks.ok());
  // (a, a) stands in 4 places; then of aa a b d aa a b a c: (aa, a) and (a, b) twice each: the lower left rank is a's.
  EXPECT_EQ(ranks->tokens[256], "aa");
  EXPECT_EQ(ranks->tokens[257], "ab");
  EXPECT_EQ(ranks->tokens[258], "aaab");
  EXPECT_EQ(ranks->text_bytes, 11 * kCountUnit);
  EXPECT_EQ(ranks->text_tokens, 5 * kCountUnit);
}

TEST(BpeTrainerTest, TheBytesAloneAndTooMany) {
  WordCounts words;
  words.add_word("ab", kCountUnit);
  EXPECT_EQ(train_bpe(words, {.ranks = 256})->tokens.size(), 256U);
  EXPECT_EQ(train_bpe(words, {.ranks = 257, .least_count = 1})->tokens[256], "ab");
  const auto too_many = train_bpe(words, {.ranks = 300, .least_count = 1});
  ASSERT_FALSE(too_many.ok());
  EXPECT_NE(too_many.error().message.find("257 ranks, 300"), std::string::npos) << too_many.error().message;
  EXPECT_FALSE(train_bpe(words, {.ranks = 255}).ok());
  EXPECT_FALSE(train_bpe(words, {.ranks = int64_t{1} << 40}).ok());
  EXPECT_FALSE(train_bpe(WordCounts(), {.ranks = 257}).ok());
}

TEST(BpeTrainerTest, EqualsTheNaiveTrainer) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    WordCounts words = trial == 0 ? counts_of({kProse}) : counts_of({random_text(random, 20 + random() % 400)});
    if (trial % 3 == 1) words.add_text(random_text(random, 100), 700);  // weights tie less, and at other places
    const BpeOptions options{.ranks = 256 + static_cast<int64_t>(random() % 60), .least_count = kCountUnit};
    const auto fast = train_bpe(words, options), naive = train_bpe_naive(words, options);
    ASSERT_EQ(fast.ok(), naive.ok());
    if (!fast.ok()) continue;
    ASSERT_EQ(fast->tokens, naive->tokens) << trial;
    EXPECT_EQ(fast->text_tokens, naive->text_tokens);
    EXPECT_EQ(fast->text_bytes, naive->text_bytes);
  }
}

TEST(BpeTrainerTest, TheOrderOfTheWordsDoesNotMatter) {
  std::mt19937_64 random(2);
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(random_text(random, 60));
  const BpeOptions options{.ranks = 320};
  const auto first = train_bpe(counts_of(texts), options);
  ASSERT_TRUE(first.ok());
  for (int trial = 0; trial < 5; ++trial) {
    std::shuffle(texts.begin(), texts.end(), random);
    WordCounts other;
    const size_t half = texts.size() / 2;
    other.add(counts_of({texts.begin() + static_cast<int64_t>(half), texts.end()}));
    other.add(counts_of({texts.begin(), texts.begin() + static_cast<int64_t>(half)}));
    EXPECT_EQ(train_bpe(other, options)->tokens, first->tokens);
  }
}

Result<Tokenizer> tokenizer_of(const std::vector<std::string>& tokens) {
  return Tokenizer::from_text(tiktoken_text(tokens), tokenizer_config_text(static_cast<int64_t>(tokens.size())), "test");
}

RC_GTEST_PROP(BpeTrainerTest, TokenizerEncodesAsNaiveBpeAndRoundTrips, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<uint32_t>());
  const WordCounts words = counts_of({kProse, random_text(random, 300)});
  const auto ranks = train_bpe(words, {.ranks = *rc::gen::inRange<int64_t>(256, 330), .least_count = kCountUnit});
  RC_ASSERT(ranks.ok());
  const auto tokenizer = tokenizer_of(ranks->tokens);
  RC_ASSERT(tokenizer.ok());
  for (const std::string& text : {std::string(kProse), random_text(random, 200), std::string("Z\t\t\t  unseen \xE6\x9D\xB1?!")}) {
    const std::vector<int32_t> ids = *tokenizer->encode(text);
    RC_ASSERT(ids == encode_naive(ranks->tokens, text));
    RC_ASSERT(*tokenizer->decode(ids) == text);
  }
  // A rank is its own encoding whatever made it, and every byte has one.
  for (size_t rank = 0; rank < ranks->tokens.size(); ++rank) {
    RC_ASSERT(tokenizer->bytes(static_cast<int32_t>(rank)) == ranks->tokens[rank]);
  }
}

TEST(TokenizerFilesTest, SpecialsLieAtTheOffsetsOfK3) {
  const auto tokenizer = tokenizer_of(train_bpe(counts_of({kProse}), {.ranks = 300, .least_count = kCountUnit})->tokens);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->base_count(), 300);
  EXPECT_EQ(tokenizer->vocab_size(), 556);
  // K3: ranks below 163584, then these ids.
  const std::pair<const char*, int32_t> kIds[] = {{"[BOS]", 163584},        {"[EOS]", 163585},          {"<|end_of_msg|>", 163586},
                                                  {"<|open|>", 163587},     {"<|close|>", 163588},      {"<|sep|>", 163589},
                                                  {"<|media_begin|>", 163602}, {"<|media_content|>", 163603},
                                                  {"<|media_end|>", 163604},   {"<|media_pad|>", 163605},
                                                  {"[UNK]", 163838},        {"[PAD]", 163839}};
  for (const auto& [name, id] : kIds) EXPECT_EQ(tokenizer->special(name), id - 163584 + 300) << name;
}

}  // namespace
}  // namespace k3::train
