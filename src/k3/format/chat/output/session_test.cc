// A session that keeps the model's state: prompt, generated ids, what closes the turn, the next turn. Joined, they are the
// prompt of the whole history.
#include <gtest/gtest.h>

#include "k3/format/chat/output/output_test_util.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

void append(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

ChatRequest history(std::string_view reasoning_effort) {
  std::string json = R"({"messages":[
    {"role":"system","content":"S"},{"role":"user","content":"first"},
    {"role":"assistant","reasoning_content":"hm é","content":"so 🙂","tool_calls":[{"id":"f_0","type":"function","function":{"name":"f","arguments":"{\"a\": \"x\", \"n\": 1}"}}]},
    {"role":"tool","tool_call_id":"f_0","content":"42"},{"role":"user","content":"next"}],
    "tools":[{"type":"function","function":{"name":"f"}}],"reasoning_effort":")";
  return parse_chat_request(json.append(reasoning_effort) + "\"}").value();
}

class SessionTest : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_ = test::byte_tokenizer(test::kXtmlSpecials);
  const ChatFormat format_ = test::short_format();

  Ids encode(const ChatRequest& request, int64_t first = 0) const {
    return format_.render(request, first)->encode(tokenizer_).value();
  }
  static ChatRequest before_answer(const ChatRequest& all) {
    ChatRequest first = all;
    first.messages.resize(2);
    return first;
  }
  // The ids that a model would generate for messages[2].
  Ids answer(const ChatRequest& all) const {
    ChatRequest until = all;
    until.messages.resize(3);
    until.add_generation_prompt = false;
    const Ids ids = encode(until);
    const size_t prompt = encode(before_answer(all)).size();
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
  }
  OutputParser parser(const ChatRequest& first) const {
    return OutputParser(format_, tokenizer_, parser_options(first, format_.render(first).value()));
  }
};

TEST_P(SessionTest, PiecesJoinToTheWholePrompt) {
  const ChatRequest all = history(GetParam());
  const ChatRequest first = before_answer(all);
  const Ids generated = answer(all), whole = encode(all);
  // The model may stop at the tools close, before or after the message's: the closing supplies what is missing.
  for (size_t missing = 0; missing <= 10; ++missing) {
    const size_t count = generated.size() - missing;
    OutputParser output = parser(first);
    std::vector<ChatEvent> events;
    for (size_t i = 0; i < count; ++i) output.push(generated[i], events);
    Ids joined = encode(first);
    append(joined, Ids(generated.begin(), generated.begin() + static_cast<std::ptrdiff_t>(count)));
    append(joined, output.closing().encode(tokenizer_).value());
    append(joined, encode(all, 3));
    EXPECT_EQ(tokenizer_.decode(joined).value(), tokenizer_.decode(whole).value()) << missing << " ids missing";
    EXPECT_EQ(joined, whole);
  }
}

TEST_P(SessionTest, AnInterruptedTextIsAHistoryMessage) {
  const ChatRequest all = history(GetParam());
  const ChatRequest first = before_answer(all);
  const Ids generated = answer(all);
  // From the tools section on, an interrupted turn has calls or an empty call list, which a history message cannot say.
  const Ids tools = test::output_ids(tokenizer_, "«tools»");
  const auto end = std::search(generated.begin(), generated.end(), tools.begin(), tools.end()) - generated.begin();
  ASSERT_GT(end, 10);
  for (size_t count = 0; count <= static_cast<size_t>(end); ++count) {
    OutputParser output = parser(first);
    std::vector<ChatEvent> events;
    for (size_t i = 0; i < count; ++i) output.push(generated[i], events);
    Ids joined = encode(first);
    append(joined, Ids(generated.begin(), generated.begin() + static_cast<std::ptrdiff_t>(count)));
    append(joined, output.closing().encode(tokenizer_).value());
    append(joined, encode(all, 4));

    output.finish(StopCause::cancelled, events);
    MessageAssembler assembler;
    assembler.add(events);
    const AssistantMessage message = assembler.message();
    const bool cut_text =
        message.reasoning.ends_with("\xEF\xBF\xBD") || message.content.value_or("").ends_with("\xEF\xBF\xBD");
    const bool blank_reasoning = message.reasoning.find_first_not_of(' ') == std::string::npos && !message.reasoning.empty();
    if (cut_text || blank_reasoning) continue;
    ChatRequest told = first;
    ChatMessage turn = text_message(Role::assistant, message.content.value_or(""));
    turn.reasoning = message.reasoning;
    told.messages.push_back(turn);
    told.messages.push_back(all.messages[4]);
    EXPECT_EQ(tokenizer_.decode(joined).value(), tokenizer_.decode(encode(told)).value()) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Thinking, SessionTest, testing::Values("none", "low"));

}  // namespace
}  // namespace k3
