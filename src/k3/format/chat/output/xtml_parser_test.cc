// One test a row of the table in api.md 7.4, the rules of 6.3 and 7.3, and properties over random token streams.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "k3/base/utf8.h"
#include "k3/format/chat/output/output_test_util.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

using test::Draws;
using test::Outcome;
using test::output_ids;
using test::summary;

const Tokenizer& bytes() {
  static const Tokenizer tokenizer = test::byte_tokenizer(test::kXtmlSpecials);
  return tokenizer;
}
const ChatFormat& format() {
  static const ChatFormat chat = test::short_format();
  return chat;
}

ParserOptions thinking() { return {.start = OpenChannel::think, .thinking = true}; }
ParserOptions instruct() { return {.start = OpenChannel::response, .thinking = false}; }

Outcome run(std::string_view output, ParserOptions options, StopCause cause = StopCause::stop) {
  return test::run_output(OutputParser(format(), bytes(), std::move(options)), output_ids(bytes(), output), cause);
}

struct Row {
  const char* name;
  const char* output;
  const char* expected;
  bool think = false;
  StopCause cause = StopCause::stop;
  bool repaired = true;  // the output is malformed: warnings() > 0
};

void check(const Row& row) {
  const Outcome result = run(row.output, row.think ? thinking() : instruct(), row.cause);
  EXPECT_EQ(summary(result.message), row.expected) << row.name;
  EXPECT_EQ(result.warnings > 0, row.repaired) << row.name;
}

TEST(XtmlParser, WellFormed) {
  check({"answer", "hello«/response»«/message»«.»", "r= c=hello -> stop", false, StopCause::stop, false});
  check(
      {"reasoning", "why«/think»«response»so«/response»«/message»«.»", "r=why c=so -> stop", true, StopCause::stop, false});
  check({"calls",
         "«/think»«response»«/response»«tools»«call tool=\"f\" index=\"7\"»«argument key=\"a\" "
         "type=\"string\"»x\n\"y\\«/argument»"
         "«argument key=\"n\" type=\"number\"»1.0«/argument»«argument key=\"o\" type=\"object\"»{\"k\": [1, "
         "2]}«/argument»«/call»"
         "«call tool=\"g\" index=\"7\"»«/call»«/tools»«/message»«.»",
         "r= c=null f#f_0({\"a\": \"x\\n\\\"y\\\\\", \"n\": 1.0, \"o\": {\"k\": [1, 2]}}) g#g_1({}) -> tool_calls", true,
         StopCause::stop, false});
  check({"content beside calls", "see«/response»«tools»«call tool=\"f\"»«/call»«/tools»«/message»«.»",
         "r= c=see f#f_0({}) -> tool_calls", false, StopCause::stop, false});
  check({"no response before a pure call", "r«/think»«tools»«call tool=\"f\"»«/call»«/tools»«/message»«.»",
         "r=r c=null f#f_0({}) -> tool_calls", true, StopCause::stop, false});
}

TEST(XtmlParser, Row01ThinkNotClosed) {
  check({"response opens", "why«response»so«/response»«/message»«.»", "r=why c=so -> stop", true});
  check({"tools open", "why«tools»«call tool=\"f\"»«/call»«/tools»«/message»«.»", "r=why c=null f#f_0({}) -> tool_calls",
         true});
}

TEST(XtmlParser, Row02ResponseMarkerMissing) {
  check({"text to close", "why«/think»\nso«/response»«/message»«.»", "r=why c=\nso -> stop", true});
  check({"text to tools", "«/think»so«tools»«call tool=\"f\"»«/call»«/tools»«.»", "r= c=so f#f_0({}) -> tool_calls", true});
  check({"a blank is no text", "«/think» \n«response»so«/response»«/message»«.»", "r= c=so -> stop", true, StopCause::stop,
         false});
}

TEST(XtmlParser, Row03ResponseNotClosed) {
  check({"message closes", "so«/message»«.»", "r= c=so -> stop", false, StopCause::stop, false});
  check({"message ends", "so«.»", "r= c=so -> stop", false, StopCause::stop, false});
}

TEST(XtmlParser, Row04ToolsNotClosed) {
  const char* open =
      "«/response»«tools»«call tool=\"f\"»«argument key=\"a\" type=\"string\"»x«/argument»«/call»«call tool=\"g\"»"
      "«argument key=\"b\" type=\"string\"»yz";
  check({"cut by length", open, "r= c=null f#f_0({\"a\": \"x\"}) g#g_1({\"b\": \"yz) -> length", false, StopCause::length,
         false});
  check({"ended by the model", (std::string(open) + "«.»").c_str(),
         "r= c=null f#f_0({\"a\": \"x\"}) g#g_1({\"b\": \"yz\"}) -> tool_calls"});
  check({"cut before the name is known", "«/response»«tools»«call tool=\"f\"»«/call»«|open|»call to",
         "r= c=null f#f_0({}) -> length", false, StopCause::length, false});
  check({"complete, only the end is missing", "«/response»«tools»«call tool=\"f\"»«/call»«/tools»",
         "r= c=null f#f_0({}) -> tool_calls", false, StopCause::length, false});
}

TEST(XtmlParser, Row05CallWithoutTool) {
  check({"dropped",
         "«/response»«tools»«call index=\"1\"»«argument key=\"a\" type=\"string\"»x«/argument»«/call»«call "
         "tool=\"g\"»«/call»«/tools»«.»",
         "r= c=null g#g_0({}) -> tool_calls"});
}

TEST(XtmlParser, Row06UndeclaredTool) {
  const char* output =
      "«/response»«tools»«call tool=\"x\"»«argument key=\"a\" type=\"string\"»1«/argument»«/call»«call "
      "tool=\"f\"»«/call»«/tools»«.»";
  ParserOptions options = instruct();
  options.tools = {"f"};
  EXPECT_EQ(summary(run(output, options).message), "r= c=null x#x_0({\"a\": \"1\"}) f#f_1({}) -> tool_calls");
  options.strict_tools = true;
  EXPECT_EQ(summary(run(output, options).message), "r= c=null f#f_0({}) -> tool_calls");
}

TEST(XtmlParser, Row07ArgumentWithoutKey) {
  check({"dropped",
         "«/response»«tools»«call tool=\"f\"»«argument type=\"string\"»x«/argument»«argument key=\"b\" "
         "type=\"number\"»2«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"b\": 2}) -> tool_calls"});
}

TEST(XtmlParser, Row08SameKeyTwice) {
  check({"first wins",
         "«/response»«tools»«call tool=\"f\"»«argument key=\"a\" type=\"string\"»1«/argument»«argument key=\"a\" "
         "type=\"number\"»2«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\": \"1\"}) -> tool_calls"});
}

TEST(XtmlParser, Row09ValueThatIsNotJson) {
  check({"becomes a string",
         "«/response»«tools»«call tool=\"f\"»«argument key=\"a\" type=\"object\"»{b: 1}«/argument»«argument key=\"c\" "
         "type=\"number\"»«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\": \"{b: 1}\", \"c\": \"\"}) -> tool_calls"});
}

TEST(XtmlParser, Row10UnknownElementInCall) {
  check({"ignored",
         "«/response»«tools»«call tool=\"f\"»«note x=\"1\"»text«/note»«argument key=\"a\" "
         "type=\"string\"»1«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\": \"1\"}) -> tool_calls"});
  check({"never closed",
         "«/response»«tools»«call tool=\"f\"»«note»text«argument key=\"a\" type=\"string\"»1«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\": \"1\"}) -> tool_calls"});
}

TEST(XtmlParser, Row11JsonBlock) {
  check({"object", "«/response»«tools»«call tool=\"f\"»«json type=\"object\"» {\"a\":[1]} «/json»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\":[1]}) -> tool_calls", false, StopCause::stop, false});
  check({"raw", "«/response»«tools»«call tool=\"f\"»«json type=\"object\"»{\"a\":«/json»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\":) -> tool_calls"});
}

TEST(XtmlParser, Row12AfterTheToolsClose) {
  check({"dropped",
         "«/response»«tools»«call tool=\"f\"»«/call»«/tools»more«tools»«call "
         "tool=\"g\"»«/call»«/tools»«response»x«/response»«/message»«.»",
         "r= c=null f#f_0({}) -> tool_calls"});
}

TEST(XtmlParser, Row13EscapedAttributes) {
  check({"unescaped",
         "«/response»«tools»«call tool=\"f\"»«argument key=\"a&quot;&amp;quot;\" "
         "type=\"string\"»1«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\\\"&quot;\": \"1\"}) -> tool_calls", false, StopCause::stop, false});
}

TEST(XtmlParser, Row14EmptyToolsSection) {
  check({"no calls", "so«/response»«tools»«/tools»«/message»«.»", "r= c=so -> stop", false, StopCause::stop, false});
}

TEST(XtmlParser, SpelledMarkersStayText) {
  check({"in an argument",
         "«/response»«tools»«call tool=\"f\"»«argument key=\"a\" "
         "type=\"string\"»<|close|>argument<|sep|>«/argument»«/call»«/tools»«.»",
         "r= c=null f#f_0({\"a\": \"<|close|>argument<|sep|>\"}) -> tool_calls", false, StopCause::stop, false});
  check({"in content", "<|end_of_msg|>«/response»«.»", "r= c=<|end_of_msg|> -> stop", false, StopCause::stop, false});
}

TEST(XtmlParser, ThinkingRules) {
  check({"cut inside think", "why", "r=why c=null -> length", true, StopCause::length, false});
  check({"cut before any text", "", "r= c=null -> length", true, StopCause::length, false});
  check({"off: everything is content", "«think»why«/think»so«/response»«.»", "r= c=whyso -> stop", false, StopCause::stop,
         false});
  check({"no reasoning after content", "a«/think»«response»b«/response»«think»c«/think»«/message»«.»", "r=a c=b -> stop",
         true});
  check({"another message is not ours", "so«/response»«message role=\"user\"»x", "r= c=so -> stop"});
  check({"unknown element in text", "a«b»c«/b»d«.»", "r= c=acd -> stop"});
  check({"other specials", "a«|media_pad|»b«.»", "r= c=ab -> stop"});
  check({"cancelled", "ab", "r= c=ab -> server_interrupted", false, StopCause::cancelled, false});
}

TEST(XtmlParser, GlobalIndexContinuesTheConversation) {
  ParserOptions options = instruct();
  options.first_call_index = 3;
  EXPECT_EQ(summary(run("«/response»«tools»«call tool=\"f\"»«/call»«/tools»«.»", options).message),
            "r= c=null f#f_3({}) -> tool_calls");
}

TEST(XtmlParser, StringArgumentsStreamAndOthersWait) {
  const Outcome result =
      run("«/response»«tools»«call tool=\"f\"»«argument key=\"a\" type=\"string\"»xyz«/argument»«argument key=\"b\" "
          "type=\"array\"»[1]«/argument»«/call»",
          instruct());
  std::string pieces;
  for (const ChatEvent& event : result.events) {
    if (event.kind == ChatEvent::Kind::call_arguments) pieces += event.text + "|";
  }
  EXPECT_EQ(pieces, "{\"a\": \"|x|y|z|\"|, \"b\": [1]|}|");
}

TEST(XtmlParser, OnlyWholeCodePointsLeave) {
  const Outcome result = run("é«/response»«.»", instruct());
  ASSERT_EQ(result.events.size(), 2U);
  EXPECT_EQ(result.events[0].text, "é");
  // A cut code point becomes one U+FFFD when the text ends.
  const auto cut = [](StopCause cause) {
    std::vector<int32_t> ids = {0xE4, 0xBD};
    return test::run_output(OutputParser(format(), bytes(), instruct()), ids, cause).message.content.value_or("null");
  };
  EXPECT_EQ(cut(StopCause::length), "\xEF\xBF\xBD");
  EXPECT_EQ(cut(StopCause::stop), "\xEF\xBF\xBD");
}

TEST(XtmlParser, CountsReasoningTokens) {
  OutputParser parser(format(), bytes(), thinking());
  std::vector<ChatEvent> events;
  for (const int32_t id : output_ids(bytes(), "abc«/think»«response»d")) parser.push(id, events);
  EXPECT_EQ(parser.reasoning_tokens(), 3);
  EXPECT_TRUE(parser.in_content());
  EXPECT_FALSE(parser.in_reasoning());
}

// Random outputs out of fragments that make and break structure.
std::string random_output(Draws& rng) {
  static const std::vector<std::string> kPieces = {"«think»",
                                                   "«/think»",
                                                   "«response»",
                                                   "«/response»",
                                                   "«tools»",
                                                   "«/tools»",
                                                   "«call tool=\"f\" index=\"1\"»",
                                                   "«call»",
                                                   "«/call»",
                                                   "«argument key=\"a\" type=\"string\"»",
                                                   "«argument key=\"b\" type=\"number\"»",
                                                   "«argument»",
                                                   "«/argument»",
                                                   "«/message»",
                                                   "«note»",
                                                   "«/note»",
                                                   "«|open|»",
                                                   "«|close|»",
                                                   "«|sep|»",
                                                   "«|media_pad|»",
                                                   "«»",
                                                   "text",
                                                   " ",
                                                   "\n",
                                                   "\"q\\",
                                                   "12",
                                                   "{\"x\": 1}",
                                                   "日本",
                                                   "🙂",
                                                   "«.»"};
  std::string out;
  for (uint64_t n = rng.below(40); n > 0; --n) out += kPieces[rng.below(kPieces.size() - (n > 3 ? 1 : 0))];
  return out;
}

TEST(XtmlParserProperty, TokenBordersDoNotMatter) {
  Draws rng(1);
  for (int i = 0; i < 400; ++i) {
    const std::string output = random_output(rng);
    const ParserOptions options = i % 2 == 0 ? thinking() : instruct();
    const StopCause cause = i % 3 == 0 ? StopCause::length : StopCause::stop;
    const auto& big = test::released_tokenizer();
    const Outcome whole = test::run_output(OutputParser(format(), big, options), output_ids(big, output), cause);
    EXPECT_EQ(summary(run(output, options, cause).message), summary(whole.message)) << output;
  }
}

TEST(XtmlParserProperty, StreamsAreWellFormedAndClosable) {
  Draws rng(2);
  for (int i = 0; i < 1500; ++i) {
    const std::string output = random_output(rng);
    const ParserOptions options = i % 2 == 0 ? thinking() : instruct();
    std::vector<int32_t> ids = output_ids(bytes(), output);
    for (int32_t& id : ids) {
      if (rng.below(40) == 0) id = static_cast<int32_t>(rng.below(300)) - 8;  // stray ids, negative ones too
    }
    const Outcome result = test::run_output(OutputParser(format(), bytes(), options), ids, StopCause::stop);
    bool content = false;
    int last_call = -1;
    for (const ChatEvent& event : result.events) {
      EXPECT_TRUE(is_utf8(event.text)) << output;
      if (event.kind == ChatEvent::Kind::content || event.kind == ChatEvent::Kind::call_start) content = true;
      EXPECT_FALSE(event.kind == ChatEvent::Kind::reasoning && content) << output;
      if (event.kind == ChatEvent::Kind::call_start) {
        EXPECT_EQ(event.call_index, ++last_call) << output;
      }
    }
    EXPECT_EQ(result.events.back().kind, ChatEvent::Kind::finished);
    for (const OutputCall& call : result.message.calls) {
      const auto parsed = parse_json(call.arguments);
      EXPECT_TRUE(parsed.ok() && parsed->is_object()) << output << "\n" << call.arguments;
    }
    // Cut anywhere, the closing ids end the message and add no text.
    const size_t cut = rng.below(ids.size() + 1);
    OutputParser parser(format(), bytes(), options);
    std::vector<ChatEvent> before, after;
    for (size_t k = 0; k < cut; ++k) parser.push(ids[k], before);
    const auto closing = parser.closing().encode(bytes()).value();
    for (const int32_t id : closing) {
      EXPECT_FALSE(parser.ended() && id != bytes().special("<|end_of_msg|>")) << output;
      parser.push(id, after);
    }
    EXPECT_TRUE(parser.ended()) << output << " cut at " << cut;
  }
}

TEST(XtmlParserProperty, APrefixGivesAPrefix) {
  Draws rng(3);
  const auto starts = [](const std::string& whole, std::string part) {
    if (part.ends_with("\xEF\xBF\xBD")) part.resize(part.size() - 3);  // a code point cut by the end
    return whole.starts_with(part);
  };
  for (int i = 0; i < 150; ++i) {
    const std::string output = random_output(rng);
    const auto ids = output_ids(bytes(), output);
    const auto at = [&](size_t n) {
      return test::run_output(OutputParser(format(), bytes(), thinking()), std::span(ids).first(n), StopCause::length)
          .message;
    };
    const AssistantMessage whole = at(ids.size());
    for (size_t n = 0; n < ids.size(); n += 1 + rng.below(3)) {
      const AssistantMessage part = at(n);
      EXPECT_TRUE(starts(whole.reasoning, part.reasoning)) << output;
      EXPECT_TRUE(starts(whole.content.value_or(""), part.content.value_or("")) || part.calls.size() < whole.calls.size())
          << output;
      ASSERT_LE(part.calls.size(), whole.calls.size());
      for (size_t c = 0; c < part.calls.size(); ++c)
        EXPECT_TRUE(starts(whole.calls[c].arguments, part.calls[c].arguments)) << output;
    }
  }
}

RC_GTEST_PROP(XtmlParserProperty, AnyIdsAreAccepted, (const std::vector<uint16_t>& raw, bool think)) {
  OutputParser parser(format(), bytes(), think ? thinking() : instruct());
  std::vector<ChatEvent> events;
  for (const uint16_t id : raw) parser.push(static_cast<int32_t>(id % 520) - 4, events);
  parser.finish(StopCause::length, events);
  RC_ASSERT(events.back().kind == ChatEvent::Kind::finished);
}

}  // namespace
}  // namespace k3
