// The released vocabulary and that of k3-mini against known ids; round trips; errors.
#include "k3/format/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& released() {
  static const Tokenizer tokenizer = Tokenizer::load(K3_SOURCE_DIR "/tests/data/tokenizer").value();
  return tokenizer;
}
const Tokenizer& mini() {
  static const Tokenizer tokenizer = Tokenizer::load(K3_SOURCE_DIR "/models/k3-mini").value();
  return tokenizer;
}
Ids encode(const Tokenizer& tokenizer, std::string_view text) { return tokenizer.encode(text).value(); }

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
  std::ifstream file(K3_SOURCE_DIR "/models/k3-mini/golden/golden.json");
  const auto golden = nlohmann::json::parse(file).at("tokenizer");
  EXPECT_GE(golden.size(), 10U);
  for (const auto& [text, ids] : golden.items()) EXPECT_EQ(encode(mini(), text), ids.get<Ids>()) << text;
}

}  // namespace
}  // namespace k3
