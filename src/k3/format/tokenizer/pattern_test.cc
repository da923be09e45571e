// The split pattern: each alternative by hand, and the scanner against PCRE2 on random text.
#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "k3/base/rng.h"
#include "k3/base/utf8.h"
#include "k3/format/tokenizer/pattern_pcre2.h"
#include "k3/format/tokenizer/pattern_scan.h"
#include "k3/format/tokenizer/unicode_classes.h"

namespace k3 {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(std::string_view text, const std::vector<size_t>& ends) {
  Pieces pieces;
  size_t begin = 0;
  for (const size_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return pieces;
}
Pieces scan(std::string_view text) {
  std::vector<size_t> ends;
  split_by_scan(text, ends);
  return cut(text, ends);
}
Pieces pcre2(std::string_view text) {
  std::vector<size_t> ends;
  split_by_pcre2(text, ends).value();
  return cut(text, ends);
}

// The table and PCRE2 agree on code points assigned after Unicode 14 only when the library is that old.
bool same_unicode() {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return std::string_view(version).starts_with("14.");
}

TEST(SplitPattern, Alternatives) {
  const std::vector<std::pair<std::string, Pieces>> cases = {
      {"", {}},
      // 1: Han is the script, not the block: U+3005, U+3007 (a number), U+2E80 (a symbol); not U+3001
      {"漢字々〇⺀", {"漢字々〇⺀"}},
      {"你好、世界", {"你好", "、", "世界"}},
      {"漢字abc漢", {"漢字", "abc", "漢"}},
      {"1〇", {"1〇"}},      // a number run takes a Han number
      {"!⺀", {"!⺀"}},      // a symbol run takes a Han symbol
      {" 漢", {" ", "漢"}},  // Han takes no space along
      // 2, 3: case, the optional first character, letters without case
      {"HelloWorld", {"Hello", "World"}},
      {"HTTPServer", {"HTTPServer"}},
      {"aB", {"a", "B"}},
      {"ABC", {"ABC"}},
      {" abc\tdef(ghi", {" abc", "\tdef", "(ghi"}},
      {"\nabc", {"\n", "abc"}},
      {"1abc", {"1", "abc"}},
      {"あBい", {"あBい"}},
      {"あB", {"あ", "B"}},  // U* gives back until W+ has one
      {"あBC い", {"あ", "BC", " い"}},
      {"\u0301AB", {"\u0301", "AB"}},  // a mark is a word, not the first character of AB
      {"\u0301ab", {"\u0301ab"}},
      {"e\u0301A", {"e\u0301", "A"}},
      {"!\u0301", {"!\u0301"}},
      // contractions: after letters only, any case, at most one
      {"don't", {"don't"}},
      {"DON'T", {"DON'T"}},
      {"we'Re've", {"we'Re", "'ve"}},
      {"a'sb", {"a's", "b"}},
      {"a'l", {"a", "'l"}},
      {"a'll", {"a'll"}},
      {"'sample", {"'sample"}},
      {"1's", {"1", "'s"}},
      {"漢's", {"漢", "'s"}},
      {"x'\u017F", {"x'\u017F"}},  // long s folds to s
      {"x'", {"x", "'"}},
      // 4
      {"1234567", {"123", "456", "7"}},
      {"½Ⅷ٣4", {"½Ⅷ٣", "4"}},
      {" 12", {" ", "12"}},
      // 5
      {" !?\r\n\nx", {" !?\r\n\n", "x"}},
      {"a  !", {"a", " ", " !"}},
      {"\t!", {"\t", "!"}},
      {"!a", {"!a"}},
      {"!!a", {"!!", "a"}},
      // 6
      {" \n \n x", {" \n \n", " x"}},
      {"\r\n\r\n", {"\r\n\r\n"}},
      {"a\r\nb", {"a", "\r\n", "b"}},
      // 7, 8
      {"a   b", {"a", "  ", " b"}},
      {"a   ", {"a", "   "}},
      {"a 1", {"a", " ", "1"}},
      {"a\u3000\u3000 1", {"a", "\u3000\u3000", " ", "1"}},
      // whitespace is White_Space: U+0085 is, U+180E and U+001C are not
      {"!\u0085!", {"!", "\u0085", "!"}},
      {"!\u180E!", {"!\u180E!"}},
      {"!\x1C!", {"!\x1C!"}},
  };
  for (const auto& [text, pieces] : cases) {
    EXPECT_EQ(scan(text), pieces) << text;
    EXPECT_EQ(pcre2(text), pieces) << text;
  }
}

// Every code point in places where each of its classes decides.
TEST(SplitPattern, EveryCodePoint) {
  if (!same_unicode()) GTEST_SKIP() << "another Unicode version in PCRE2";
  for (uint32_t begin = 0; begin < kCodePoints; begin += 0x100) {
    if (begin >= 0xD800 && begin < 0xE000) continue;
    std::string text;
    for (uint32_t c = begin; c < begin + 0x100; ++c) {
      for (const char* around : {"a", "B", "1", "!", " ", "\n", "漢"}) {
        append_utf8(text, c);
        text += around;
        append_utf8(text, c);
      }
    }
    std::vector<size_t> by_scan, by_pcre2;
    split_by_scan(text, by_scan);
    split_by_pcre2(text, by_pcre2).value();
    ASSERT_EQ(by_scan, by_pcre2) << std::hex << begin;
  }
}

TEST(SplitPattern, ScannerEqualsPcre2OnRandomText) {
  constexpr uint32_t kTricky[] = {'a',    'A',    's',    'S',    't',     'l',     'L',     'v',    'e',    'R',    'm',
                                  'D',    '\'',   '\'',   ' ',    ' ',     '\n',    '\r',    '\t',   '1',    '9',    '!',
                                  '-',    0x1C,   0x85,   0xA0,   0xBD,    0xE9,    0xC9,    0x17F,  0x1C5,  0x2B0,  0x301,
                                  0x664,  0x94D,  0x180E, 0x2003, 0x2028,  0x2167,  0x2E80,  0x3000, 0x3001, 0x3005, 0x3007,
                                  0x3042, 0x4E00, 0xAC00, 0xFF0C, 0x16FE2, 0x16FF0, 0x1F642, 0x20000};
  const bool all = same_unicode();
  for (uint64_t round = 0; round < 20000; ++round) {
    const Rng rng(6, round);
    std::string text;
    const uint32_t size = 1 + rng.bits(0) % 30;
    const bool any = all && round % 4 == 0;  // a quarter over all of Unicode
    for (uint64_t i = 1; i <= size; ++i) {
      const uint32_t c = rng.bits(2 * i) % 0x10F800;  // all but the surrogates
      append_utf8(text,
                  any && rng.bits(2 * i + 1) % 2 == 0 ? (c < 0xD800 ? c : c + 0x800) : kTricky[c % std::size(kTricky)]);
    }
    ASSERT_EQ(scan(text), pcre2(text)) << round << ": " << text;
  }
}

// A run of the longest length that reaches the pattern, of each kind that backtracks.
TEST(SplitPattern, LongRuns) {
  for (const char* unit : {"A", "あ", "あB", "漢", " ", "!", "\n", "e\u0301"}) {
    std::string text;
    for (int i = 0; i < 25000; ++i) text += unit;
    for (const std::string tail : {"", "x", "A", " "}) EXPECT_EQ(scan(text + tail), pcre2(text + tail)) << unit << tail;
  }
}

}  // namespace
}  // namespace k3
