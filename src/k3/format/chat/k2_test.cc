// The K2-style format: prompt text and output parsing (unverified against the checkpoint's own template).
#include <gtest/gtest.h>

#include "k3/format/chat/output/output_test_util.h"

namespace k3 {
namespace {

using test::summary;

ChatFormat k2() { return ChatFormat::from_json(ChatFormat::Kind::k2, R"({"format":"k2"})", "k2").value(); }

TEST(K2Format, IsMarkedUnverifiedAndHasNoThinking) {
  EXPECT_FALSE(k2().verified());
  EXPECT_TRUE(test::short_format().verified());
  EXPECT_FALSE(
      k2().thinking_of(*parse_chat_request(R"({"messages":[{"role":"user","content":""}],"reasoning_effort":"max"})"))
          .enabled);
}

TEST(K2Format, Prompt) {
  const auto text = test::render_text(k2(), R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
    {"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":"{\"x\": 1}"}}]},
    {"role":"tool","tool_call_id":"functions.f:0","content":"r"}],"tools":[{"type":"function","function":{"name":"f"}}]})");
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text,
            "<|im_system|>tool_declare<|im_middle|>[{\"function\":{\"name\":\"f\"},\"type\":\"function\"}]<|im_end|>"
            "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>user<|im_middle|>u<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>a<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
            "<|im_system|>tool<|im_middle|>r<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

TEST(K2Format, RefusesWhatItHasNoFormFor) {
  const auto text =
      test::render_text(k2(), R"({"messages":[{"role":"user","content":""}],"response_format":{"type":"json_object"}})");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::unsupported);
}

TEST(K2Format, Output) {
  const Tokenizer tokenizer = test::byte_tokenizer(test::kK2Specials);
  const auto run = [&](const char* output, StopCause cause = StopCause::stop, ParserOptions options = {}) {
    return summary(
        test::run_output(OutputParser(k2(), tokenizer, options), test::output_ids(tokenizer, output), cause).message);
  };
  EXPECT_EQ(run("hello«|im_end|»"), "r= c=hello -> stop");
  EXPECT_EQ(run("hello", StopCause::length), "r= c=hello -> length");
  const char* call =
      "«|tool_calls_section_begin|»«|tool_call_begin|» functions.f:3 «|tool_call_argument_begin|»{\"a\": 1}«|tool_call_end|»"
      "«|tool_call_begin|»g«|tool_call_argument_begin|»«|tool_call_end|»«|tool_calls_section_end|»x«|im_end|»";
  EXPECT_EQ(run(call), "r= c=null f#functions.f:3({\"a\": 1}) g#functions.g:1({}) -> tool_calls");
  EXPECT_EQ(run(call, StopCause::stop, {.strict_tools = true, .tools = {"g"}}),
            "r= c=null g#functions.g:0({}) -> tool_calls");
  EXPECT_EQ(run("«|tool_calls_section_begin|»«|tool_call_begin|»f«|tool_call_argument_begin|»{\"a", StopCause::length),
            "r= c=null f#functions.f:0({\"a) -> length");
  EXPECT_EQ(run("«|tool_calls_section_begin|»«|tool_call_begin|»«|tool_call_argument_begin|»{}«|im_end|»"), "r= c= -> stop");
}

TEST(K2Format, ClosingEndsTheMessage) {
  const Tokenizer tokenizer = test::byte_tokenizer(test::kK2Specials);
  const auto ids = test::output_ids(tokenizer,
                                    "a«|tool_calls_section_begin|»«|tool_call_begin|»f«|tool_call_argument_begin|»{}«|tool_"
                                    "call_end|»«|tool_calls_section_end|»«|im_end|»");
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    OutputParser parser(k2(), tokenizer, {});
    std::vector<ChatEvent> events;
    for (size_t i = 0; i < cut; ++i) parser.push(ids[i], events);
    const auto closing = parser.closing().encode(tokenizer).value();
    EXPECT_EQ(closing.empty(), cut == ids.size());
    for (const int32_t id : closing) parser.push(id, events);
    EXPECT_TRUE(parser.ended()) << cut;
  }
}

}  // namespace
}  // namespace k3
