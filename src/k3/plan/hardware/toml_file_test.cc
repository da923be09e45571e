// What is read of TOML, and what is refused: by line, without an assertion of any library.
#include "k3/plan/hardware/toml_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace k3::plan {
namespace {

using testing::HasSubstr;
using Kind = TomlNode::Kind;

TomlNode read(std::string_view text) {
  auto root = parse_toml(text, "t.toml");
  EXPECT_TRUE(root.ok()) << text << "\n" << (root.ok() ? "" : root.error().message);
  return root.ok() ? *std::move(root) : TomlNode();
}

TEST(Toml, ReadsValues) {
  const TomlNode root = read(
      "# a comment\r\n"
      "whole = 1_000 # and another\n"
      "real = -2.5e-3\n"
      "plus = +7\n"
      "endless = -inf\n"
      "none = nan\n"
      "yes = true\n"
      "text = \"a # \\\"b\\\" \\u00b5\\t\"\n"
      "raw = 'C:\\n'\n"
      "list = [1, 'two', # three\n  [3],\n]\n"
      "a.b.c = 4");
  EXPECT_EQ(root.find("whole")->number, 1000);
  EXPECT_EQ(root.find("real")->number, -2.5e-3);
  EXPECT_EQ(root.find("plus")->number, 7);
  EXPECT_EQ(root.find("endless")->number, -HUGE_VAL);
  EXPECT_TRUE(std::isnan(root.find("none")->number));
  EXPECT_TRUE(root.find("yes")->flag);
  EXPECT_EQ(root.find("text")->text, "a # \"b\" \xc2\xb5\t");
  EXPECT_EQ(root.find("raw")->text, "C:\\n");
  const TomlNode& list = *root.find("list");
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_EQ(list.items[1].text, "two");
  EXPECT_EQ(list.items[2].items.at(0).number, 3);
  EXPECT_EQ(list.line, 10);
  EXPECT_EQ(list.items[2].line, 11);
  EXPECT_EQ(root.find("a")->find("b")->find("c")->number, 4);
  EXPECT_EQ(root.find("nothing"), nullptr);
}

TEST(Toml, ReadsTables) {
  const TomlNode root = read("[one]\nx = 1\n[one.two]\nx = 2\n [[ many ]]\nx = 3\n[many.inner]\nx = 4\n[[many]]\nx = 5\n");
  EXPECT_EQ(root.find("one")->find("x")->number, 1);
  EXPECT_EQ(root.find("one")->find("two")->find("x")->number, 2);
  const TomlNode& many = *root.find("many");
  ASSERT_EQ(many.items.size(), 2u);
  EXPECT_EQ(many.line, 5);
  EXPECT_EQ(many.items[0].find("inner")->find("x")->number, 4);
  EXPECT_EQ(many.items[1].find("x")->number, 5);
  EXPECT_EQ(many.items[1].line, 9);
}

TEST(Toml, PassesOverAByteOrderMark) {
  EXPECT_EQ(read("\xef\xbb\xbfx = 1\n").find("x")->number, 1);
  EXPECT_FALSE(parse_toml("x = 1\n\xef\xbb\xbfy = 1\n", "t.toml").ok());
}

// Without a limit the search for names that stand there already takes time by the square of their number.
TEST(Toml, TablesHaveAThousandNamesAtMost) {
  for (const auto& [before, after] : {std::pair("k", " = 1\n"), std::pair("[k", "]\n"), std::pair("[[k", "]]\n")}) {
    std::string text;
    for (int i = 1; i <= 1000; ++i) text += before + std::to_string(i) + after;
    EXPECT_TRUE(parse_toml(text, "t.toml").ok());
    EXPECT_THAT(parse_toml(text + before + "z" + after, "t.toml").error().message,
                testing::HasSubstr("t.toml:1001: a table has 1000 names at most"));
  }
}

TEST(Toml, RefusesByLine) {
  const std::pair<std::string, const char*> table[] = {
      {"x = 1\n[#]\n", "t.toml:2: a name of letters, digits, _ and - is wanted, not '#'"},
      {"[[[[x]]\n", "t.toml:1: a name of letters, digits, _ and - is wanted, not '['"},
      {"[", "is wanted, not the end of the line"},
      {"[x\n", "']' is wanted after a table's name, not the end of the line"},
      {"[[x]\n", "']]' is wanted after a table's name"},
      {"[x] y = 1\n", "the end of the line is wanted, not 'y'"},
      {"x = 1 y = 2\n", "the end of the line is wanted, not 'y'"},
      {"x 1\n", "'=' is wanted after x, not '1'"},
      {"= 1\n", "is wanted, not '='"},
      {"x =\n", "a value is wanted, not the end of the line"},
      {"x = [0,}]\n", "a value is wanted, not '}'"},
      {"x = [1 2]\n", "',' or ']' is wanted in an array, not '2'"},
      {"x = [1,\n2\n", "',' or ']' is wanted in an array, not the end of the file"},
      {"x = 20T2T\n", "20T2T is neither a number nor"},
      {"x = 1__0\n", "1__0 is neither a number"},
      {"x = 1.\n", "1. is neither a number"},
      {"x = --1\n", "--1 is neither a number"},
      {"x = 1e400\n", "1e400 is neither a number"},
      {"x = yes\n", "yes is neither a number"},
      {"x = 07:32:00\n", "dates and times have no place here"},
      {"x = {y = 1}\n", "tables in braces are not read here"},
      {"x = \"a\n", "a quote is not closed"},
      {"x = 'a", "a quote is not closed"},
      {"x = \"\"\"a\"\"\"\n", "strings over several lines are not read here"},
      {"x = \"\\q\"\n", "an escape that TOML does not have"},
      {"x = \"\\ud800\"\n", "an escape that TOML does not have"},
      {"x = \"\\u00", "an escape that TOML does not have"},
      {std::string("x = \"a\x01\"\n"), "byte 0x01 in a string: write \\u0001"},
      {std::string("x = 1\ny = \0\n", 11), "t.toml:2: a value is wanted, not byte 0x00"},
      {"x = 1\ny = \"\xff\"\n", "t.toml:2: invalid UTF-8"},
      {"x = 1\nx = 2\n", "t.toml:2: x stands there already, from line 1"},
      {"[x]\n[x]\n", "t.toml:2: x stands there already, from line 1"},
      {"x = 1\n[x.y]\n", "t.toml:2: x is a number already, from line 1"},
      {"x = [1]\n[[x]]\n", "t.toml:2: x is an array already, from line 1"},
      {"x = " + std::string(100000, '['), "arrays in arrays, more than 32 deep"},
      {std::string(100000, 'a') + " = 1\n", "t.toml:1: a name of more than 100 letters"},
  };
  for (const auto& [text, says] : table) {
    const auto root = parse_toml(text, "t.toml");
    ASSERT_FALSE(root.ok()) << text.substr(0, 80);
    EXPECT_THAT(root.error().message, HasSubstr(says)) << text.substr(0, 80);
    EXPECT_THAT(root.error().message, HasSubstr("t.toml:"));
  }
}

}  // namespace
}  // namespace k3::plan
