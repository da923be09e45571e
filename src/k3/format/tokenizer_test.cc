// The tokenizer against known ids (model.md 5.5, an independent reference, k3-mini), round trips, special tokens,
// streaming, concurrency.
#include "k3/format/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/base/utf8.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

const Tokenizer& released() {
  static const Tokenizer tokenizer = Tokenizer::load(K3_SOURCE_DIR "/tests/data/tokenizer").value();
  return tokenizer;
}
const Tokenizer& mini() {
  static const Tokenizer tokenizer = Tokenizer::load(K3_SOURCE_DIR "/models/k3-mini").value();
  return tokenizer;
}
Ids encode(const Tokenizer& tokenizer, std::string_view text) { return tokenizer.encode(text).value(); }
Ids encode_specials(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode_with_specials(text, ids).value();
  return ids;
}
json read_json(const std::string& path) {
  std::ifstream file(K3_SOURCE_DIR + path);
  return json::parse(file);
}

// A draw below `limit`.
class Dice {
 public:
  explicit Dice(uint64_t seed) : rng_(seed, 0) {}
  uint32_t operator()(uint32_t limit) { return rng_.bits(counter_++) % limit; }

 private:
  Rng rng_;
  uint64_t counter_ = 0;
};

uint32_t random_code_point(Dice& dice) {
  switch (dice(5)) {
    case 0: return dice(0x80);
    case 1: return dice(0x800);
    case 2: return 0x2E80 + dice(0x7200);
    case 3: return 0xE000 + dice(0x2000);
    default: return 0x10000 + dice(0x100000);
  }
}

TEST(Tokenizer, ReleasedVectors) {  // model.md 5.5
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"message", {2778}},
      {"think", {39964}},
      {"response", {12092}},
      {"tools", {25385}},
      {"call", {10257}},
      {"argument", {47185}},
      {"json", {5534}},
      {"Hello world!", {19180, 2695, 0}},
      {"don't stop", {88709, 6156}},
      {"1234567890", {6694, 12972, 16242, 15}},
      {"你好，世界", {33845, 378, 2243}},
      {"  two  spaces\n\nnew", {220, 2069, 220, 14803, 382, 3514}},
      {"東京タワーです", {138442, 21449, 59168, 5678, 54319}},
      {"ÄÖÜ straße", {142810, 88228, 89743, 10784, 73903}},
      {"I'LL go", {40, 6, 5847, 970}},
      {"a\r\nb", {64, 462, 65}},
      {"<|open|>", {27, 91, 4454, 91, 29}},
      {"", {}},
  };
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(encode(released(), text), ids) << text;
    EXPECT_EQ(released().decode(ids).value(), text);
  }
}

TEST(Tokenizer, MiniVectors) {
  const json golden = read_json("/models/k3-mini/golden/golden.json").at("tokenizer");
  EXPECT_GE(golden.size(), 10U);
  for (const auto& [text, ids] : golden.items()) EXPECT_EQ(encode(mini(), text), ids.get<Ids>()) << text;
}

TEST(Tokenizer, AgreesWithIndependentReference) {
  const json vectors = read_json("/tests/data/tokenizer/vectors.json");
  EXPECT_GE(vectors.at("texts").size(), 200U);
  for (const json& row : vectors.at("texts")) {
    const auto text = row.at("text").get<std::string>();
    EXPECT_EQ(encode(released(), text), row.at("released").get<Ids>()) << row.at("text");
    EXPECT_EQ(encode(mini(), text), row.at("mini").get<Ids>()) << row.at("text");
  }
  for (const json& row : vectors.at("specials")) {
    EXPECT_EQ(encode_specials(released(), row.at("text").get<std::string>()), row.at("released").get<Ids>())
        << row.at("text");
  }
}

TEST(Tokenizer, CutsAtCharacterLimits) {
  const json vectors = read_json("/tests/data/tokenizer/vectors.json");
  EXPECT_EQ(vectors.at("long").size(), 15U);
  for (const json& row : vectors.at("long")) {
    std::string text;
    for (const json& part : row.at("parts")) {
      for (int i = 0; i < part.at(1).get<int>(); ++i) text += part.at(0).get<std::string>();
    }
    Ids expected;
    for (const json& run : row.at("released")) {
      const auto cycle = run.at(0).get<Ids>();
      for (int i = 0; i < run.at(1).get<int>(); ++i) expected.insert(expected.end(), cycle.begin(), cycle.end());
    }
    EXPECT_TRUE(encode(released(), text) == expected) << row.at("parts");
  }
}

TEST(Tokenizer, RoundTripsRandomText) {
  Dice dice(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint32_t n = dice(60); n > 0; --n) append_utf8(text, random_code_point(dice));
    EXPECT_EQ(released().decode(encode(released(), text)).value(), text);
    EXPECT_EQ(mini().decode(encode_specials(mini(), text)).value(), text);
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  for (const std::string text : {"abc\xFF", "abc\xC3", "abc\xED\xA0\x80", "abc\xC0\x80", "abc\xF4\x90\x80\x80"}) {
    Ids ids = {7};
    for (const Status& status : {released().encode(text, ids), released().encode_with_specials(text, ids)}) {
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, Code::invalid_argument);
      EXPECT_THAT(status.error().message, testing::HasSubstr("offset 3"));
    }
    EXPECT_EQ(ids, Ids{7});
  }
}

TEST(Tokenizer, CountsAndSpecials) {
  EXPECT_EQ(released().base_count(), 163584);
  EXPECT_EQ(released().vocab_size(), 163840);
  EXPECT_EQ(mini().vocab_size(), 12288);
  const std::map<std::string, int32_t> expected = {
      {"[BOS]", 163584},
      {"[EOS]", 163585},
      {"<|end_of_msg|>", 163586},
      {"<|open|>", 163587},
      {"<|close|>", 163588},
      {"<|sep|>", 163589},
      {"[start_header_id]", 163590},
      {"[end_header_id]", 163591},
      {"[EOT]", 163593},
      {"<|media_begin|>", 163602},
      {"<|media_content|>", 163603},
      {"<|media_end|>", 163604},
      {"<|media_pad|>", 163605},
      {"<osagent_mode>", 163649},
      {"[UNK]", 163838},
      {"[PAD]", 163839},
      {"<|reserved_token_163592|>", 163592},
      {"<|reserved_token_163837|>", 163837},
  };
  for (const auto& [name, id] : expected) {
    EXPECT_EQ(released().special(name), id) << name;
    EXPECT_EQ(released().bytes(id), name);
    EXPECT_EQ(encode_specials(released(), name), Ids{id}) << name;
    EXPECT_GE(encode(released(), name).size(), 2U) << name;
    EXPECT_TRUE(released().is_special(id));
  }
  EXPECT_EQ(released().special("<|reserved_token_163587|>"), std::nullopt);  // that id has a name
  EXPECT_EQ(released().special("message"), std::nullopt);
  EXPECT_FALSE(released().is_special(163583));
}

TEST(Tokenizer, WithoutConfigMarkupIsText) {
  const std::string model = read_file(K3_SOURCE_DIR "/models/k3-mini/tiktoken.model").value();
  for (const char* config : {"", "{}", R"({"added_tokens_decoder": {}})"}) {
    const Tokenizer bare = Tokenizer::from_text(model, config, "bare").value();
    EXPECT_EQ(bare.vocab_size(), 12288);
    EXPECT_EQ(bare.special("<|open|>"), std::nullopt);
    EXPECT_EQ(encode_specials(bare, "<|open|>"), encode(bare, "<|open|>"));
    EXPECT_EQ(bare.special("<|reserved_token_12035|>"), 12035);
  }
  const Tokenizer file_alone = Tokenizer::load(K3_SOURCE_DIR "/models/k3-mini/tiktoken.model").value();
  EXPECT_EQ(file_alone.special("<|open|>"), std::nullopt);
}

TEST(Tokenizer, LongestSpecialWinsAndTextBetweenIsSegments) {
  const std::string model = read_file(K3_SOURCE_DIR "/models/k3-mini/tiktoken.model").value();
  const Tokenizer tokenizer = Tokenizer::from_text(model, R"({"added_tokens_decoder": {
      "12032": {"content": "<a>"}, "12040": {"content": "<a><b>"}, "12400": {"content": "ll"}}})",
                                                   "test")
                                  .value();
  EXPECT_EQ(tokenizer.vocab_size(), 12401);  // an id beyond the 256 reserved ones extends them
  EXPECT_EQ(tokenizer.special("<|reserved_token_12399|>"), 12399);
  EXPECT_EQ(encode_specials(tokenizer, "<a><b><a>"), (Ids{12040, 12032}));
  EXPECT_EQ(encode_specials(tokenizer, "<a<a><"),
            (Ids{encode(tokenizer, "<a")[0], encode(tokenizer, "<a")[1], 12032, encode(tokenizer, "<")[0]}));
  Ids expected = encode(tokenizer, "he");
  expected.push_back(12400);
  for (const int32_t id : encode(tokenizer, "o world")) expected.push_back(id);
  EXPECT_EQ(encode_specials(tokenizer, "hello world"), expected);
}

TEST(Tokenizer, DecodeChecksIds) {
  EXPECT_EQ(released().decode(Ids{19180, 163587, 2695}).value(), "Hello<|open|> world");
  EXPECT_EQ(released().decode(Ids{19180, 163587, 2695}, true).value(), "Hello world");
  for (const int32_t bad : {-1, 163840, INT32_MAX, INT32_MIN}) {
    const auto result = released().decode(Ids{19180, bad});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Code::invalid_argument);
    EXPECT_THAT(result.error().message, testing::HasSubstr(std::to_string(bad)));
    EXPECT_EQ(released().bytes(bad), "");
  }
}

TEST(StreamDecoder, ConcatenationIsRepairedBytes) {
  Dice dice(2);
  for (int round = 0; round < 3000; ++round) {
    StreamDecoder decoder(mini());
    std::string joined, bytes;
    for (uint32_t n = dice(40); n > 0; --n) {
      // Mostly single bytes (ids of one-byte tokens come first), so that broken sequences of all kinds appear.
      const auto id = static_cast<int32_t>(dice(4) == 0 ? dice(12288) : dice(2) == 0 ? 128 + dice(128) : dice(256));
      const std::string piece = decoder.push(id);
      EXPECT_TRUE(is_utf8(piece));
      joined += piece;
      if (!mini().is_special(id)) bytes += mini().bytes(id);
    }
    joined += decoder.finish();
    EXPECT_EQ(joined, utf8_repair(bytes));
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST(StreamDecoder, WaitsForWholeCodePoints) {
  StreamDecoder decoder(released());
  std::string text;
  const Ids ids = encode(released(), "🙂漢!");  // several tokens a character
  ASSERT_GT(ids.size(), 3U);
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(163587), "");  // specials contribute nothing
  EXPECT_EQ(decoder.push(-5), "");
  EXPECT_EQ(decoder.push(1 << 30), "");
  for (size_t i = 1; i < ids.size(); ++i) text += decoder.push(ids[i]);
  EXPECT_EQ(text, "🙂漢!");
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, ConcurrentEncodersAgree) {
  const std::string text = read_file(K3_SOURCE_DIR "/tests/data/tokenizer/vectors.json").value() + std::string(30000, 'a');
  const Ids expected = encode(released(), text);
  std::vector<std::thread> threads;
  std::vector<Ids> results(4);
  for (Ids& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) result = encode(released(), text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_TRUE(result == expected);
}

}  // namespace
}  // namespace k3
