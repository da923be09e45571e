// Malformed tokenizer files: each is refused with a code and a message that names file and line or field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "k3/base/file.h"
#include "k3/format/tokenizer.h"

namespace k3 {
namespace {

using testing::HasSubstr;

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k < bytes.size() + 1 ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The 256 single bytes, then "ab" at rank 256 and "abc" at 257; line 258 is the last.
std::vector<std::string> lines() {
  std::vector<std::string> lines;
  for (int b = 0; b < 256; ++b) lines.push_back(base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b));
  lines.push_back(base64("ab") + " 256");
  lines.push_back(base64("abc") + " 257");
  return lines;
}
std::string join(const std::vector<std::string>& lines, std::string_view end = "\n") {
  std::string text;
  for (const std::string& line : lines) text.append(line).append(end);
  return text;
}
std::string with_line(size_t number, const std::string& line) {
  auto all = lines();
  all[number - 1] = line;
  return join(all);
}
std::string with_token(const std::string& key, const std::string& value) {
  return R"({"added_tokens_decoder": {"259": {"content": "<x>"}, ")" + key + "\": " + value + "}}";
}

TEST(TokenizerLoad, AcceptsOrderLineEndsAndBlankTail) {
  auto reversed = lines();
  std::reverse(reversed.begin(), reversed.end());
  for (const std::string& text : {join(lines()), join(lines(), "\r\n"), join(lines()) + "\n\r\n\n", join(reversed)}) {
    const auto tokenizer = Tokenizer::from_text(text, "", "t");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->base_count(), 258);
    EXPECT_EQ(tokenizer->encode("abcab").value(), (std::vector<int32_t>{257, 256}));
  }
  std::string no_end = join(lines());
  no_end.pop_back();
  EXPECT_TRUE(Tokenizer::from_text(no_end, "", "t").ok());
}

TEST(TokenizerLoad, RefusesMalformedRanks) {
  struct Case {
    std::string text, message;
  };
  auto missing_byte = lines();
  missing_byte[7] = base64("abcd") + " 7";
  auto gap = lines();
  gap[257] = base64("abc") + " 258";
  auto blank = lines();
  blank[9] = "";
  const std::vector<Case> cases = {
      {"", "0 ranks"},
      {"\n\n", "0 ranks"},
      {"YQ== 0\n", "1 ranks"},
      {with_line(3, "Ag==2"), "line 3: expected '<base64> <rank>'"},
      {with_line(3, "Ag==\t2"), "line 3: expected '<base64> <rank>'"},
      {with_line(3, " 2"), "line 3: the token is not canonical base64"},
      {with_line(3, "Ag= 2"), "line 3: the token is not canonical base64"},
      {with_line(3, "A=g= 2"), "line 3: the token is not canonical base64"},
      {with_line(3, "==== 2"), "line 3: the token is not canonical base64"},
      {with_line(3, "Ah== 2"), "line 3: the token is not canonical base64"},  // stray low bits
      {with_line(3, "Ag-= 2"), "line 3: the token is not canonical base64"},
      {with_line(3, std::string("\0\0\0\0 2", 6)), "line 3: the token is not canonical base64"},
      {with_line(3, "Ag== "), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== -2"), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== 02"), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== 2 "), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== 2x"), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== 99999999999999999999"), "line 3: the rank is not a plain decimal number"},
      {with_line(3, "Ag== 5"), "line 6: rank 5 repeats line 3"},
      {with_line(3, "Ag== 1048575"), "line 3: rank 1048575 in a file of 258 ranks leaves a gap"},
      {join(gap), "line 258: rank 258 in a file of 258 ranks leaves a gap"},
      {with_line(258, base64("ab") + " 257"), "line 258: token 6162 repeats line 257"},
      {join(missing_byte), "no rank for the single byte 07"},
      {join(blank), "line 10: expected '<base64> <rank>'"},
  };
  for (const Case& c : cases) {
    const auto result = Tokenizer::from_text(c.text, "", "folder");
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_EQ(result.error().code, Code::corrupt);
    EXPECT_THAT(result.error().message, HasSubstr("folder/tiktoken.model: " + c.message));
  }
}

TEST(TokenizerLoad, RefusesMalformedConfig) {
  struct Case {
    std::string config;
    Code code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"{", Code::corrupt, "not JSON"},
      {" ", Code::corrupt, "not JSON"},
      {"{} x", Code::corrupt, "not JSON"},
      {"{\"a\": \"\xFF\"}", Code::corrupt, "not JSON"},
      {"[]", Code::corrupt, "expected a JSON object"},
      {R"({"added_tokens_decoder": []})", Code::corrupt, "added_tokens_decoder: expected an object of ids"},
      {R"({"added_tokens_decoder": null})", Code::corrupt, "added_tokens_decoder: expected an object of ids"},
      {with_token("x", R"({"content": "a"})"), Code::corrupt, "added_tokens_decoder: 'x' is not an id"},
      {with_token("-260", R"({"content": "a"})"), Code::corrupt, "added_tokens_decoder: '-260' is not an id"},
      {with_token("0260", R"({"content": "a"})"), Code::corrupt, "added_tokens_decoder: '0260' is not an id"},
      {with_token("257", R"({"content": "a"})"), Code::corrupt, "added_tokens_decoder: id 257 lies among the 258 ranks"},
      {with_token("1048576", R"({"content": "a"})"), Code::exhausted, "added_tokens_decoder: id 1048576 is beyond"},
      {with_token("260", R"({"special": true})"), Code::corrupt, "added_tokens_decoder: id 260: field 'content' is missing"},
      {with_token("260", R"({"content": 5})"), Code::corrupt, "added_tokens_decoder: id 260: field 'content' is missing"},
      {with_token("260", R"("<y>")"), Code::corrupt, "added_tokens_decoder: id 260: field 'content' is missing"},
      {with_token("260", R"({"content": ""})"), Code::corrupt, "added_tokens_decoder: id 260: 'content' must have 1 to"},
      {with_token("260", "{\"content\": \"" + std::string(2000, 'x') + "\"}"), Code::corrupt,
       "id 260: 'content' must have 1"},
      {with_token("260", R"({"content": "<x>"})"), Code::corrupt, "ids 259 and 260 have the same content '<x>'"},
      {with_token("259", R"({"content": "<y>"})"), Code::corrupt, "added_tokens_decoder: id 259 appears twice"},
      {with_token("260", R"({"content": "<|reserved_token_300|>"})"), Code::corrupt,
       "ids 260 and 300 have the same content"},
      {std::string(100000, '['), Code::corrupt, "not JSON"},
  };
  for (const Case& c : cases) {
    const auto result = Tokenizer::from_text(join(lines()), c.config, "folder");
    ASSERT_FALSE(result.ok()) << c.config;
    EXPECT_EQ(result.error().code, c.code) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr("folder/tokenizer_config.json: "));
    EXPECT_THAT(result.error().message, HasSubstr(c.message));
  }
}

TEST(TokenizerLoad, NamesMissingAndEmptyFiles) {
  const std::string folder = K3_BINARY_DIR "/tokenizer_load_test";
  make_directories(folder).value();
  const auto missing = Tokenizer::load(folder + "/none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_THAT(missing.error().message, HasSubstr(folder + "/none"));
  write_file(folder + "/tiktoken.model", join(lines())).value();
  write_file(folder + "/tokenizer_config.json", "").value();
  const auto empty = Tokenizer::load(folder);
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code, Code::corrupt);
  EXPECT_THAT(empty.error().message, HasSubstr(folder + "/tokenizer_config.json: the file is empty"));
}

}  // namespace
}  // namespace k3
