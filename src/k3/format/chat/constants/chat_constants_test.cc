// Sentences from chat_format.json and from a synthetic encoding_k3.py. The sentences here are the test's own.
#include "k3/format/chat/constants/chat_constants.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/format/chat/chat_test_util.h"
#include "k3/format/chat/constants/python_literals.h"

namespace k3 {
namespace {

constexpr std::string_view kPython = R"PY("""Docstring of the module."""
from typing import Any  # don't be fooled by 'quotes' here
OPEN = "<|open|>"
def declare(tools, dynamic=False):
    if dynamic:
        return (
            "More tools, listed"  # a comment between
            ' below:\n'
            f"{dump(tools, sep=(",", ":"))}!\n"
            "end"
        )
    return f"Tools {{all}} of them:\t{dump(tools)}!\nend"
def effort(level):
    return "Think " \
        f"about it, {level!r:>{width}} \x41\u00e9\101\
B" + r"raw \n text"
CHOICE = {"required": u'Call "one" tool', "none": '''Call
no tool''', "x": b"bytes", "y": rb'\d', "z": F"{a['k}']}tail", "n": "\N{BULLET}after"}
)PY";

TEST(PythonLiterals, JoinsAndDecodes) {
  const auto literals = python_string_literals(kPython, "encoding.py").value();
  const std::vector<std::string> expected = {"Docstring of the module.",
                                             "<|open|>",
                                             "More tools, listed below:\n",
                                             "!\nend",
                                             "Tools {all} of them:\t",
                                             "!\nend",
                                             "Think about it, ",
                                             " AéAB",
                                             "raw \\n text",
                                             "required",
                                             "Call \"one\" tool",
                                             "none",
                                             "Call\nno tool",
                                             "x",
                                             "bytes",
                                             "y",
                                             "\\d",
                                             "z",
                                             "tail",
                                             "n",
                                             "after"};
  EXPECT_EQ(literals, expected);
}

// Checks made from the sentences that the synthetic file is known to hold.
struct Checks {
  std::vector<std::string> hashes;
  std::vector<SentenceCheck> rows;
};
Checks checks_for(const std::vector<std::pair<Sentence, std::string>>& sentences) {
  Checks out;
  out.hashes.reserve(sentences.size());
  for (const auto& [which, text] : sentences) {
    out.hashes.push_back(sha256_hex(text).substr(0, 16));
    out.rows.push_back({which, text.size(), out.hashes.back()});
  }
  return out;
}

TEST(ChatConstants, AreRecognisedAmongPythonLiterals) {
  const Checks checks = checks_for({{Sentence::tool_declare_before, "Tools {all} of them:\t"},
                                    {Sentence::tool_declare_dynamic_before, "More tools, listed below:\n"},
                                    {Sentence::tool_declare_after, "!\nend"},
                                    {Sentence::effort_before, "Think about it, "},
                                    {Sentence::effort_after, " AéAB"},
                                    {Sentence::choice_required, "Call \"one\" tool"},
                                    {Sentence::choice_none, "Call\nno tool"},
                                    {Sentence::response_json_object, "not in the file"},
                                    {Sentence::response_json_schema_after, "!\nend"}});
  const ChatConstants constants = constants_from_python(kPython, "encoding.py", checks.rows).value();
  EXPECT_EQ(constants.get(Sentence::tool_declare_before).value(), "Tools {all} of them:\t");
  EXPECT_EQ(constants.get(Sentence::effort_after).value(), " AéAB");
  EXPECT_EQ(constants.get(Sentence::response_json_schema_after).value(), "!\nend");
  const auto missing = constants.get(Sentence::response_json_object);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_NE(missing.error().message.find("encoding.py: the sentence 'response_json_object'"), std::string::npos);
}

TEST(ChatConstants, TheReleasedTableCoversEverySentenceOnce) {
  std::set<Sentence> seen;
  for (const SentenceCheck& check : released_sentences()) {
    EXPECT_TRUE(seen.insert(check.which).second);
    EXPECT_EQ(check.sha256_prefix.size(), 16U);
  }
  EXPECT_EQ(seen.size(), kSentenceCount);
}

TEST(ChatConstants, MalformedPythonNamesFileAndLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"x = 1\ny = 'open\n", "e.py:2: a string does not end on its line"},
      {"'''never", "e.py:1: a string does not end"},
      {"'\\", "e.py:1: a string does not end"},
      {"f'}'", "e.py:1: a single '}'"},
      {"\n\nf'{a'", "e.py:3: a replacement field"},
      {"'\\x4'", "e.py:1: an escape in a string lacks hex digits"},
      {"'\\U00110000'", "e.py:1: an escape in a string is above"},
      {"a\n\xFF", "e.py:2: invalid UTF-8"},
  };
  for (const auto& [text, fact] : cases) {
    const auto literals = python_string_literals(text, "e.py");
    ASSERT_FALSE(literals.ok()) << text;
    EXPECT_EQ(literals.error().code, Code::corrupt);
    EXPECT_EQ(literals.error().message.find(fact), 0U) << literals.error().message;
  }
}

TEST(ChatConstants, MalformedChatFormatNamesFileAndField) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "c.json: invalid JSON"},
      {"[]", "c.json: must be a JSON object"},
      {"{}", "c.json: format must be"},
      {R"({"format":1})", "c.json: format must be"},
      {R"({"format":"k2"})", "c.json: format is 'k2', but the special tokens"},
      {R"({"format":"xtml","format":"xtml"})", "c.json: the object"},
      {R"({"format":"xtml","constants":[]})", "c.json: constants must be an object"},
      {R"({"format":"xtml","constants":{"effort_bfore":""}})", "c.json: constants.effort_bfore is not the name"},
      {R"({"format":"xtml","constants":{"effort_before":1}})", "c.json: constants.effort_before must be a string"},
      {R"({"format":"xtml","thinking_default":"on"})", "c.json: thinking_default must be"},
      {R"({"format":"xtml","thinking_default":true})", "c.json: thinking_default must be"},
      {R"({"format":"xtml","effort_default":"medium"})", "c.json: effort_default must be"},
      {"{\"format\":\"xtml\"} trailing", "c.json: invalid JSON at byte 18"},
  };
  for (const auto& [text, fact] : cases) {
    const auto constants = constants_from_json(text, "xtml", "c.json");
    ASSERT_FALSE(constants.ok()) << text;
    EXPECT_EQ(constants.error().code, Code::corrupt) << text;
    EXPECT_EQ(constants.error().message.find(fact), 0U) << constants.error().message;
  }
}

class ChatFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::string(K3_BINARY_DIR) + "/chat_folder_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    make_directories(folder_).value();
  }
  void put(const char* name, std::string_view text) { write_file(join_path(folder_, name), text).value(); }
  std::string folder_;
  const Tokenizer tokenizer_ = test::byte_tokenizer(test::kXtmlSpecials);
};

TEST_F(ChatFolder, AMissingSentenceMattersOnlyWhenNeeded) {
  const ChatFormat format = ChatFormat::load(folder_, tokenizer_).value();
  EXPECT_TRUE(
      test::render_text(format, R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"}})").ok());
  const auto text = test::render_text(format, R"({"messages":[{"role":"user","content":"x"}]})");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::not_found);
  EXPECT_NE(text.error().message.find("neither chat_format.json nor encoding_k3.py"), std::string::npos)
      << text.error().message;
  EXPECT_NE(text.error().message.find("'effort_before'"), std::string::npos);
}

TEST_F(ChatFolder, ChatFormatJsonComesBeforeThePythonFile) {
  put("encoding_k3.py", "x = 'unterminated");
  const auto from_python = ChatFormat::load(folder_, tokenizer_);
  ASSERT_FALSE(from_python.ok());
  EXPECT_NE(from_python.error().message.find("encoding_k3.py:1: "), std::string::npos) << from_python.error().message;
  put("chat_format.json", R"({"format":"xtml","thinking_default":"disabled","effort_default":"low"})");
  const ChatFormat format = ChatFormat::load(folder_, tokenizer_).value();
  const ChatRequest request = parse_chat_request(R"({"messages":[{"role":"user","content":"x"}]})").value();
  EXPECT_FALSE(format.thinking_of(request).enabled);
  EXPECT_EQ(format.thinking_of(request).effort, Effort::low);
  std::filesystem::remove_all(folder_);
}

TEST_F(ChatFolder, TheTokenizerDecidesTheFormat) {
  EXPECT_EQ(ChatFormat::load(folder_, test::byte_tokenizer(test::kK2Specials))->kind(), ChatFormat::Kind::k2);
  const auto none = ChatFormat::load(folder_, test::byte_tokenizer({"[BOS]"}));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::unsupported);
  EXPECT_NE(none.error().message.find("no chat format"), std::string::npos);
}

}  // namespace
}  // namespace k3
