#include "k3/format/json/json_tree.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace k3 {
namespace {

std::string print(std::string_view text, JsonStyle style) {
  std::string out;
  append_json(out, parse_json(text).value(), style);
  return out;
}

TEST(JsonTree, KeepsOrderLiteralsAndSlices) {
  const std::string text = R"( {"b": 1.50, "a" : [true , null, "x\u00e9\ud83d\ude42"]} )";
  const JsonNode root = parse_json(text).value();
  EXPECT_EQ(root.keys, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(root.find("b")->raw, "1.50");
  EXPECT_EQ(root.find("a")->raw, R"([true , null, "x\u00e9\ud83d\ude42"])");
  EXPECT_EQ(root.find("a")->items[2].text, "xé🙂");
  EXPECT_EQ(root.find("c"), nullptr);
  EXPECT_EQ(print(text, {}), R"({"b":1.5,"a":[true,null,"xé🙂"]})");
  EXPECT_EQ(print(text, {.sorted = true, .spaced = true}), R"({"a": [true, null, "xé🙂"], "b": 1.5})");
  EXPECT_EQ(print(text, {.literal = true}), R"({"b":1.50,"a":[true,null,"xé🙂"]})");
}

TEST(JsonTree, NumbersPrintAsTheReferencePrintsThem) {
  const std::pair<const char*, const char*> cases[] = {{"0", "0"},
                                                       {"-0", "0"},
                                                       {"-0.0", "-0.0"},
                                                       {"1.0", "1.0"},
                                                       {"1e5", "100000.0"},
                                                       {"1E16", "1e+16"},
                                                       {"1e15", "1000000000000000.0"},
                                                       {"0.0001", "0.0001"},
                                                       {"0.00001", "1e-05"},
                                                       {"123.456", "123.456"},
                                                       {"1.5e300", "1.5e+300"},
                                                       {"5e-324", "5e-324"},
                                                       {"123456789012345678901234567890", "123456789012345678901234567890"},
                                                       {"1e400", "1e400"}};
  for (const auto& [literal, expected] : cases) EXPECT_EQ(normalized_number(literal), expected) << literal;
}

struct Bad {
  const char* name;
  std::string text;
  const char* fact;
};

TEST(JsonTree, RefusesMalformedText) {
  const Bad cases[] = {
      {"empty", "", "ends where a value is expected"},
      {"trailing bytes", "{} x", "after the end"},
      {"duplicate key", R"({"a":1,"b":{"c":1,"c":2}})", "the key 'c' twice"},
      {"invalid UTF-8", "\"\xFF\"", "invalid UTF-8 at byte 1"},
      {"lone surrogate", R"("\ud800")", "lone surrogate"},
      {"low surrogate first", R"("\udc00")", "lone surrogate"},
      {"two high surrogates", R"("\ud800\ud800")", "lone surrogate"},
      {"unknown escape", R"("\x")", "unknown escape"},
      {"short escape", R"("\u12)", "inside a \\u escape"},
      {"bad hex", R"("\u12g4")", "four hex digits"},
      {"control character", "\"a\nb\"", "control character"},
      {"open string", "\"a", "ends inside a string"},
      {"open array", "[1", "',' or ']'"},
      {"trailing comma", "[1,]", "a value is expected"},
      {"object without colon", R"({"a" 1})", "':' is expected"},
      {"key without quotes", "{a:1}", "a key is expected"},
      {"leading zero", "01", "may not start with 0"},
      {"no fraction", "1.", "after the decimal point"},
      {"no exponent", "1e+", "in the exponent"},
      {"NaN", "NaN", "a value is expected"},
      {"word", "nul", "unknown word"},
      {"too deep", std::string(200, '[') + std::string(200, ']'), "nested too deeply"},
  };
  for (const Bad& item : cases) {
    const auto parsed = parse_json(item.text);
    ASSERT_FALSE(parsed.ok()) << item.name;
    EXPECT_EQ(parsed.error().code, Code::invalid_argument);
    EXPECT_NE(parsed.error().message.find(item.fact), std::string::npos) << item.name << ": " << parsed.error().message;
  }
  EXPECT_TRUE(parse_json(R"({"a":1,"a":2})", DuplicateKeys::keep).ok());
}

TEST(JsonTree, RefusesMoreValuesThanTheLimit) {
  std::string text = "[0";
  for (int64_t i = 0; i < kMaxJsonValues; ++i) text += ",0";
  const auto parsed = parse_json(text + "]");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("too many values"), std::string::npos);
}

// An independent parser accepts what is printed and reads the same value.
TEST(JsonTree, PrintsValidJson) {
  const std::string text = R"({"s":"\"\\\/\b\f\n\r\t\u0001","n":[-1.25e-7,0,1e22],"o":{"z":{},"a":[]},"é":false})";
  for (const JsonStyle style :
       {JsonStyle{}, JsonStyle{.sorted = true}, JsonStyle{.spaced = true}, JsonStyle{.literal = true}}) {
    EXPECT_EQ(nlohmann::json::parse(print(text, style)), nlohmann::json::parse(text));
  }
}

}  // namespace
}  // namespace k3
