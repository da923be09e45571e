// Regular expressions and EBNF, byte by byte.
#include <gtest/gtest.h>

#include "k3/format/grammar/grammar_test_util.h"

namespace k3 {
namespace {

struct Case {
  const char* source;
  std::vector<const char*> accepted, refused;
};

void check(const Case& test, const Result<std::shared_ptr<const Grammar>>& grammar) {
  ASSERT_TRUE(grammar.ok()) << test.source << ": " << grammar.error().message;
  for (const char* text : test.accepted) EXPECT_EQ(test::feed_bytes(*grammar, text), "") << test.source << ": " << text;
  for (const char* text : test.refused) {
    const std::string result = test::feed_bytes(*grammar, text);
    EXPECT_NE(result, "") << test.source << ": " << text;
    EXPECT_EQ(result.find("disagree"), std::string::npos) << test.source << ": " << text << ": " << result;
  }
}

TEST(RegexGrammar, WholeMatches) {
  const std::vector<Case> cases = {
      {"a|bc*", {"a", "b", "bccc"}, {"", "ab", "c"}},
      {"^(?:x+?y){2,3}$", {"xyxxy", "xyxyxy"}, {"xy", "xyxyxyxy"}},
      {"(?<name>[^a-y])\\.", {"z.", "\xC3\xA9."}, {"a.", "z"}},
      {"\\d{3}-[\\w.]+", {"123-a_b.c"}, {"12-a"}},
      {"[\\u00e4\\u{1F600}]", {"\xC3\xA4", "\xF0\x9F\x98\x80"}, {"a"}},
      {"\\p{L}+", {"abc\xC3\xA9\xE5\x90\x8D"}, {"1"}},
      {"\\p{Han}\\P{N}",
       {"\xE5\x90\x8Dx"},
       {"xx",
        "\xE5\x90\x8D"
        "1"}},
      {".", {"x", " ", "\xE2\x82\xAC"}, {"\n", "\xE2\x80\xA8"}},
      {"[^]", {"\n", "x"}, {""}},
      {"[a-]]?", {"a]", "-]", "-"}, {"b", "a]]"}},
      {"[]|a", {"a"}, {"]"}},
      {"(a*)*b", {"b", "aab"}, {"a"}},
      {"\\x41\\cA\\0", {}, {"A"}},
      {"", {""}, {"a"}},
  };
  for (const Case& test : cases) check(test, Grammar::regex(test::byte_trie(), test.source));
}

TEST(RegexGrammar, Refusals) {
  for (const char* pattern : {"(", ")", "a**", "*", "[b-a]", "\\1", "(?<=a)b", "a(?!b)", "(?i)a", "\\q", "a{2,1}", "a{x}",
                              "[a", "\\", "\\p{Emoji}", "(?:a", "^*", "\\ud800", "\xFF"}) {
    const auto grammar = Grammar::regex(test::byte_trie(), pattern);
    ASSERT_FALSE(grammar.ok()) << pattern;
    EXPECT_EQ(grammar.error().code, Code::invalid_argument) << pattern;
  }
  EXPECT_EQ(Grammar::regex(test::byte_trie(), "(a{1000}){1000}").error().code, Code::exhausted);
  EXPECT_EQ(Grammar::regex(test::byte_trie(), "(a|b)*a(a|b){40}").error().code, Code::exhausted);
}

// Texts of a request that would nest or repeat work without an end: an error or a grammar, and soon.
TEST(HostileGrammars, AreBounded) {
  const auto repeated = [](std::string_view text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const char* op : {"?", "*", "+"}) {
    EXPECT_FALSE(Grammar::ebnf(test::byte_trie(), "root ::= \"a\"" + repeated(op, 150'000)).ok());
    EXPECT_TRUE(Grammar::ebnf(test::byte_trie(), "root ::= \"a\"" + repeated(op, 1)).ok());
  }
  EXPECT_TRUE(Grammar::ebnf(test::byte_trie(), "root ::= \"a\"" + std::string(1'000'000, '\n') + "| \"b\"\n").ok());
  EXPECT_TRUE(Grammar::regex(test::byte_trie(), "\\p{N}{100}").ok());
  // Their length alone is refused: what is built of them would take a hundred times their bytes before it is counted.
  for (const auto& refused : {Grammar::regex(test::byte_trie(), std::string(300'000, 'a')),
                              Grammar::ebnf(test::byte_trie(), "root ::= \"" + std::string(5'000'000, 'a') + "\"")}) {
    EXPECT_EQ(refused.error().code, Code::exhausted);
    EXPECT_NE(refused.error().message.find("is longer than"), std::string::npos) << refused.error().message;
  }
  std::string chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 20'000; ++i) chain += fmt::format(R"("a{}":{{"$ref":"#/$defs/a{}"}},)", i, i + 1);
  EXPECT_EQ(Grammar::json_schema(test::byte_trie(), chain + R"("a20000":{}}})").error().code, Code::exhausted);
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 20'000; ++i) wide += fmt::format(R"({}"p{}":{{"type":"null"}})", i == 0 ? "" : ",", i);
  EXPECT_EQ(Grammar::json_schema(test::byte_trie(), wide + "}}").error().code, Code::exhausted);
}

TEST(EbnfGrammar, Texts) {
  const std::vector<Case> cases = {
      {"root ::= \"yes\" | \"no\" # comment", {"yes", "no"}, {"yesno", ""}},
      {"root ::= greeting \" \" name\ngreeting ::= \"hi\" | \"hello\"\nname ::= [A-Z] [a-z]*",
       {"hi Bob", "hello A"},
       {"hi bob"}},
      {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
       {"1", "(1+2)+3", "((4))"},
       {"1+", "(1", "()"}},
      {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "ba"}},
      {"root ::= item{2,3}\nitem ::= \"x\" | \"y\"", {"xy", "xxx"}, {"x", "xxxx"}},
      {"root ::= item{20,30} \".\"\nitem ::= \"ab\"", {"abababababababababababababababababababab."}, {"ab.", "a."}},
      {"root: \"a\"\n  | 'b' \"\\n\"\n  | /[0-9]{2}/\n", {"a", "b\n", "42"}, {"b", "4"}},
      {"root = (\n  \"a\" |\n  \"b\"\n)+\n", {"ab", "b"}, {""}},
      {"root ::= [^\"\\\\] . \"\\u00e9\"?", {"xy", "xy\xC3\xA9", "\xC3\xA9\xC3\xA9"}, {"\"y", "x"}},
      {R"(root ::= /\[a/ | /[\]\/]b/ | /\\[[\\/]c/)", {"[a", "]b", "/b", "\\[c", "\\/c"}, {"a", "[b", "[c"}},
      {"// a comment\n\nroot ::= ws \"x\" ws\nws ::= ([ \\t\\n] ws)?", {"x", "  x\n"}, {"y"}},
  };
  for (const Case& test : cases) check(test, Grammar::ebnf(test::byte_trie(), test.source));
}

TEST(EbnfGrammar, Refusals) {
  for (const char* text : {"", "a ::= \"x\"", "root ::= b", "root ::= \"x", "root ::= root \"x\" | \"y\"", "root ::= (\"a\"",
                           "root ::= \"a\")", "root \"a\"", "root ::= \"a\"\nroot ::= \"b\"", "root ::= [a", "root ::= *",
                           "root ::= root", "root ::= a\na ::= b \"x\"\nb ::= \"\" | a", "root ::= \"\\q\"",
                           "root ::= \"a\"{3,2}", "root ::= x{100}\nx ::= \"a\"?"}) {
    const auto grammar = Grammar::ebnf(test::byte_trie(), text);
    ASSERT_FALSE(grammar.ok()) << text;
    EXPECT_EQ(grammar.error().code, Code::invalid_argument) << text << ": " << grammar.error().message;
  }
}

}  // namespace
}  // namespace k3
