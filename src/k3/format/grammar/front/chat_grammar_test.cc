// The grammar of an assistant's message: channels, tool calls, and what the output parser makes of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "k3/base/rng.h"
#include "k3/format/chat/output/output_test_util.h"
#include "k3/format/grammar/grammar_test_util.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

struct Chat {
  ChatRequest request;
  Prompt prompt;
  std::shared_ptr<const Grammar> grammar;
  std::string error;
};

Chat make(const std::string& fields, bool thinking = true) {
  const ChatFormat format = test::short_format();
  Chat chat;
  chat.request = parse_chat_request(R"({"messages":[{"role":"user","content":"x"}],)" + fields + R"(,"thinking":{"type":")" +
                                    (thinking ? "enabled" : "disabled") + "\"}}")
                     .value();
  chat.prompt = format.render(chat.request).value();
  auto grammar = Grammar::for_chat(format, test::byte_vocabulary(), test::byte_trie(), chat.request, chat.prompt);
  if (grammar.ok()) {
    chat.grammar = *std::move(grammar);
  } else {
    chat.error = grammar.error().message;
  }
  return chat;
}

// "": accepted to its end. The text is written as in the parser's tests.
std::string feed(const Chat& chat, std::string_view text) {
  Constraint constraint(chat.grammar, {test::kByteEnd});
  const std::vector<int32_t> ids = test::output_ids(test::byte_vocabulary(), text);
  const int64_t vocab = test::byte_vocabulary().vocab_size();
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool allowed = test::bit(test::mask_of(constraint, vocab), ids[i]);
    if (constraint.accept(ids[i]) != allowed) return fmt::format("mask and accept disagree at {}", i);
    if (!allowed) return fmt::format("refused at {}", i);
  }
  return test::bit(test::mask_of(constraint, vocab), test::kByteEnd) ? "" : "may not end here";
}

void expect(const Chat& chat, const std::vector<const char*>& accepted, const std::vector<const char*>& refused) {
  ASSERT_NE(chat.grammar, nullptr) << chat.error;
  for (const char* text : accepted) EXPECT_EQ(feed(chat, text), "") << text;
  for (const char* text : refused) {
    const std::string result = feed(chat, text);
    EXPECT_NE(result, "") << text;
    EXPECT_EQ(result.find("disagree"), std::string::npos) << text;
  }
}

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"tide_at","parameters":{"type":"object","properties":{
    "port":{"type":"string","maxLength":8},"days":{"type":"integer","minimum":1},"unit":{"enum":["m","ft",null]}},
    "required":["port"]}}},{"type":"function","function":{"name":"stop"}}])";

TEST(ChatGrammar, NothingAsked) {
  EXPECT_EQ(make(R"("seed":1)").grammar, nullptr);
  EXPECT_EQ(make(kTools).grammar, nullptr);
  EXPECT_EQ(make(kTools + R"(,"tool_choice":"none")").grammar, nullptr);
}

TEST(ChatGrammar, ResponseFormat) {
  const std::string schema = R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object",
    "properties":{"z":{"type":"boolean"},"a":{"type":"integer"}},"required":["z","a"]}}})";
  expect(make(schema),
         {"I <think> \"freely\"«/think»«response»{\"z\": true, \"a\": 1}«/response»«/message»",
          "«/think»«response»{\"z\":false,\"a\":2}", "no close«response»{\"z\":false,\"a\":2}«/response»"},
         {"x", "«/think»", "«/think»«response»", "«/think»«response»{\"a\":1,\"z\":true}", "«/think»{\"z\":true,\"a\":1}",
          "x«.»", "«/think»«response»{\"z\":true,\"a\":1} «/response»", "«/think»«response»```", "«/think»«tools»",
          "«/response»"});
  expect(make(schema, false), {"{\"z\":true,\"a\":1}«/response»«/message»"}, {"hi", "«/response»"});
  expect(make(R"("response_format":{"type":"json_object"})", false), {"{}", "{\"a\":[1]}"}, {"[]", "1"});
  expect(make(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":false,"schema":{"not":{}}}})",
              false),
         {"{}"}, {"1"});
  EXPECT_EQ(
      make(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"a":{"not":{}}}}}})")
          .error,
      "response_format.json_schema.schema.properties.a.not: is not supported");
}

TEST(ChatGrammar, RequiredTools) {
  const Chat chat = make(kTools + R"(,"tool_choice":"required")");
  const char* const call =
      "t«/think»«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"string\"»B\"r\n<x«/argument»"
      "«argument key=\"days\" type=\"number\"»3«/argument»«/call»«/tools»";
  expect(
      chat,
      {call, "«/think»«response»I look.«/response»«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»«/message»",
       "«tools»«call tool=\"stop\" index=\"1\"»«/call»«call tool=\"stop\" index=\"2\"»«/call»«/tools»",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"unit\" type=\"null\"»null«/argument»«argument "
       "key=\"port\" "
       "type=\"string\"»B«/argument»«/call»«/tools»",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"string\"»B«/argument»«argument key=\"unit\" "
       "type=\"string\"»ft«/argument»«/call»«/tools»"},
      {"«/think»«response»No.«/response»«/message»", "«tools»«/tools»", "«tools»«call tool=\"other\" index=\"1\"»",
       "«tools»«call tool=\"stop\" index=\"2\"»",
       "«tools»«call tool=\"stop\" index=\"1\"»«/call»«call tool=\"stop\" index=\"1\"»",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«/call»",  // the required key is missing
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"string\"»123456789",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"number\"»",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"days\" type=\"number\"»0",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"string\"»a«/argument»«argument "
       "key=\"port\" ",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"else\" ",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" type=\"string\"»a«|media_pad|»"});
  const test::Outcome outcome = test::run_output(
      OutputParser(test::short_format(), test::byte_vocabulary(), parser_options(chat.request, chat.prompt)),
      test::output_ids(test::byte_vocabulary(), std::string(call) + "«/message»«.»"), StopCause::stop);
  EXPECT_EQ(test::summary(outcome.message),
            "r=t c=null tide_at#tide_at_0({\"port\": \"B\\\"r\\n<x\", \"days\": 3}) -> tool_calls");
  EXPECT_EQ(outcome.warnings, 0);
  expect(make(kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)"),
         {"«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»"},
         {"«tools»«call tool=\"stop\" index=\"1\"»«/call»«call "});
  expect(make(kTools + R"(,"tool_choice":"required")", false),
         {"«/response»«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»",
          "Sure.«/response»«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»"},
         {"«/response»«/message»", "Hello«.»"});
}

TEST(ChatGrammar, TheSchemasOfARequestShareOneLimit) {
  // Ballast that costs nothing but its length.
  const auto schema = [](size_t bytes) {
    return R"({"type":"object","properties":{"a":{"type":"integer"}},"description":")" + std::string(bytes, 'x') + "\"}";
  };
  const auto tools = [&](const std::vector<size_t>& sizes) {
    std::string out = R"("tools":[)";
    for (size_t i = 0; i < sizes.size(); ++i) {
      out += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}","strict":true,"parameters":{}}}}})", i > 0 ? "," : "", i,
                         schema(sizes[i]));
    }
    return out + "]";
  };
  constexpr size_t kMiB = size_t{1} << 20;
  EXPECT_EQ(make(tools({3 * kMiB})).error, "");
  EXPECT_EQ(make(tools({kMiB, kMiB, kMiB})).error, "");
  EXPECT_THAT(make(tools({5 * kMiB})).error, testing::StartsWith("tools[0].function.parameters: the schemas of the request"));
  EXPECT_THAT(make(tools({2 * kMiB, kMiB, 3 * kMiB / 2})).error,
              testing::StartsWith("tools[2].function.parameters: the schemas of the request"));
  const std::string format = R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)";
  EXPECT_EQ(make(format + schema(3 * kMiB) + "}}").error, "");
  EXPECT_THAT(make(format + schema(5 * kMiB) + "}}").error,
              testing::StartsWith("response_format.json_schema.schema: the schemas of the request"));
  // Which of the two comes last is not the client's business; that both count is.
  EXPECT_THAT(make(tools({2 * kMiB}) + "," + format + schema(5 * kMiB / 2) + "}}").error,
              testing::HasSubstr("the schemas of the request"));
  // What is not enforced is not compiled.
  EXPECT_EQ(make(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema(5 * kMiB) + "}}]").error, "");
}

TEST(ChatGrammar, NamedTool) {
  const Chat chat = make(kTools + R"(,"tool_choice":{"type":"function","function":{"name":"stop"}})");
  expect(chat, {"«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»"}, {"«tools»«call tool=\"tide_at\" "});
}

TEST(ChatGrammar, StrictToolsWakeAtTheSection) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"a","strict":true,"parameters":{"type":"object","properties":{"n":{"type":"integer"}},
      "required":["n"],"additionalProperties":false}}},{"type":"function","function":{"name":"b","parameters":{"not":{}}}}])";
  const Chat chat = make(tools);
  expect(chat,
         {"anything", "x«/think»«response»Hello «|media_pad|».«/response»«/message»",
          "«/think»«tools»«call tool=\"a\" index=\"1\"»«argument key=\"n\" type=\"number\"»3«/argument»«/call»«/tools»",
          "«/think»«tools»«call tool=\"b\" index=\"1\"»«argument key=\"any\" type=\"object\"»{\"x\": "
          "1}«/argument»«/call»«/tools»"},
         {"«/think»«tools»«call tool=\"a\" index=\"1\"»«/call»", "«tools»«call tool=\"c\" ",
          "«tools»«call tool=\"a\" index=\"1\"»«argument key=\"n\" type=\"string\"»"});
  Constraint constraint(chat.grammar, {test::kByteEnd});
  std::vector<uint32_t> mask(mask_words(test::byte_vocabulary().vocab_size()), 7);
  EXPECT_FALSE(constraint.fill_mask(mask));
  EXPECT_EQ(mask[0], 7U);
  EXPECT_EQ(
      make(
          R"("tools":[{"type":"function","function":{"name":"a","strict":true,"parameters":{"properties":{"q":{"not":{}}}}}}])")
          .error,
      "tools[0].function.parameters.properties.q.not: is not supported");
}

TEST(ChatGrammar, ToolsOrResponse) {
  const Chat chat =
      make(kTools + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"boolean"}}})");
  expect(
      chat,
      {"«/think»«response»true«/response»«/message»", "«/think»«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»",
       "«/think»«response»«/response»«tools»«call tool=\"stop\" index=\"1\"»«/call»«/tools»",
       "«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"free\" type=\"boolean\"»true«/argument»«/call»«/tools»"},
      {"«/think»«response»hi", "«/think»«response»true«/response»«tools»", "«/think»«response»«/response»«/message»"});
}

TEST(ChatGrammar, ContinuedMessage) {
  const ChatFormat format = test::short_format();
  const auto grammar = [&](const char* given) {
    const auto request =
        parse_chat_request(
            fmt::format(
                R"({{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":"{}","partial":true}}],"response_format":
        {{"type":"json_schema","json_schema":{{"name":"n","schema":{{"enum":["abc","abd"]}}}}}}}})",
                given))
            .value();
    const auto prompt = format.render(request).value();
    return Grammar::for_chat(format, test::byte_vocabulary(), test::byte_trie(), request, prompt);
  };
  const auto good = grammar("\\\"ab");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(test::feed_bytes(*good, "c\""), "");
  EXPECT_NE(test::feed_bytes(*good, "e"), "");
  EXPECT_EQ(grammar("\\\"x").error().message, "messages[1].content: does not begin a text that the constraint allows");
}

// Random calls under the mask: no repair by the parser, and every call is one of the declared tools.
TEST(ChatGrammar, RandomWalksParseWithoutRepair) {
  const Chat chat = make(kTools + R"(,"tool_choice":"required")");
  const int64_t vocab = test::byte_vocabulary().vocab_size();
  int ended = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Rng rng(seed, 11);
    Constraint constraint(chat.grammar, {test::kByteEnd});
    std::vector<int32_t> ids;
    bool done = false;
    for (uint64_t step = 0; step < 3000 && !done; ++step) {
      const auto mask = test::mask_of(constraint, vocab);
      std::vector<int32_t> allowed, special;
      for (int32_t id = 0; id < vocab; ++id) {
        if (test::bit(mask, id)) (id >= 256 ? special : allowed).push_back(id);
      }
      const bool structure = !special.empty() && (allowed.empty() || rng.bits(3 * step) % 4 == 0);
      const auto& from = structure ? special : allowed;
      ASSERT_FALSE(from.empty());
      ids.push_back(from[rng.bits(3 * step + 1) % from.size()]);
      ASSERT_TRUE(constraint.accept(ids.back()));
      done = ids.back() == test::kByteEnd;
    }
    if (!done) continue;
    ++ended;
    const test::Outcome outcome = test::run_output(
        OutputParser(test::short_format(), test::byte_vocabulary(), parser_options(chat.request, chat.prompt)), ids,
        StopCause::stop);
    EXPECT_FALSE(outcome.message.calls.empty());
    for (const OutputCall& call : outcome.message.calls) {
      EXPECT_TRUE(call.name == "tide_at" || call.name == "stop") << call.name;
      EXPECT_TRUE(parse_json(call.arguments).ok()) << call.arguments;
      EXPECT_EQ(call.name == "tide_at", call.arguments.find("\"port\": \"") != std::string::npos) << call.arguments;
    }
  }
  EXPECT_GT(ended, 20);
}

}  // namespace
}  // namespace k3
