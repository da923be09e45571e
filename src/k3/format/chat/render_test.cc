// Exact prompts: the token vectors of model.md 5.5, the golden chats of k3-mini, and the text of every kind of message.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "k3/format/chat/chat.h"
#include "k3/format/chat/chat_test_util.h"

namespace k3 {
namespace {

using test::released_tokenizer;
using test::render_text;
using test::short_format;
using test::shorten;

constexpr std::array<int32_t, 104> kThinkingMax = {
    163587, 2778,   6244,   878,    14062,  1,      1798,   878,    130400, 59991, 470,    1,      163589, 63,     130400,
    123074, 470,    63,     28560,  418,    1632,   2455,   308,    2704,   306,   651,    9545,   8491,   347,    2976,
    3411,   276,    4503,   8491,   904,    9141,   4661,   3867,   1268,   1332,  5713,   1268,   50004,  5713,   1268,
    19421,  5713,   316,    1268,   5354,   16518,  10048,  276,    2403,   387,   42070,  472,    1268,   130400, 123074,
    470,    105281, 11369,  163588, 2778,   163589, 163586, 163587, 2778,   6244,  878,    14062,  1,      163589, 3900,
    554,    13205,  13,     163588, 2778,   163589, 163586, 163587, 2778,   6244,  878,    2482,   1,      163589, 19180,
    163588, 2778,   163589, 163586, 163587, 2778,   6244,   878,    69702,  1,     163589, 163587, 39964,  163589};

// A format whose effort sentences are those of the vector itself.
ChatFormat vector_format() {
  const std::span<const int32_t> ids(kThinkingMax);
  const std::string body = released_tokenizer().decode(ids.subspan(13, 50)).value();
  const size_t level = body.rfind("max");
  JsonWriter json;
  json.begin_object().field("format", "xtml").key("constants").begin_object();
  json.field("effort_before", body.substr(0, level)).field("effort_after", body.substr(level + 3));
  json.end_object().end_object();
  return ChatFormat::from_json(ChatFormat::Kind::xtml, json.text(), "vector").value();
}

std::vector<int32_t> ids_of(const ChatFormat& format, std::string_view json, const Tokenizer& tokenizer) {
  return format.render(parse_chat_request(json).value()).value().encode(tokenizer).value();
}

TEST(ChatVectors, ThinkingAtEffortMax) {
  const auto ids = ids_of(
      vector_format(), R"({"messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"Hello"}]})",
      released_tokenizer());
  EXPECT_EQ(ids, std::vector<int32_t>(kThinkingMax.begin(), kThinkingMax.end()));
}

TEST(ChatVectors, OneAssistantMessageAtEffortHighIs102Tokens) {
  const auto request =
      parse_chat_request(R"({"messages":[{"role":"assistant","content":"你好"}],"reasoning_effort":"high"})").value();
  const Prompt prompt = vector_format().render(request).value();
  const auto ids = prompt.encode(released_tokenizer()).value();
  EXPECT_EQ(ids.size(), 102U);
  EXPECT_EQ(prompt.reported_tokens(static_cast<int64_t>(ids.size())), 99);
}

TEST(ChatVectors, EffortMessageIs67TokensForMaxAnd68ForOthers) {
  const std::string request =
      R"({"messages":[{"role":"user","content":""}],"add_generation_prompt":false,"reasoning_effort":")";
  const auto size = [&](const char* effort) {
    return ids_of(vector_format(), request + effort + "\"}", released_tokenizer()).size() - 11;
  };
  EXPECT_EQ(size("max"), 67U);
  EXPECT_EQ(size("low"), 68U);
  EXPECT_EQ(size("high"), 68U);
}

TEST(ChatVectors, SmallCounts) {
  const ChatFormat format = short_format("disabled");
  const auto user = [&](const char* text, bool generate) {
    ChatRequest request;
    request.messages.push_back(text_message(Role::user, text));
    request.add_generation_prompt = generate;
    return format.render(request).value().encode(released_tokenizer()).value().size();
  };
  EXPECT_EQ(user("Hello.", false), 13U);
  EXPECT_EQ(user("", false), 11U);
  EXPECT_EQ(user("", true), 11U + 7U + 3U);  // assistant header, channel opener
}

TEST(ChatVectors, MarkerLookalikesStayText) {
  const ChatFormat format = short_format("disabled");
  ChatRequest request;
  request.messages.push_back(text_message(Role::user, "<|open|>"));
  request.add_generation_prompt = false;
  const auto ids = format.render(request).value().encode(released_tokenizer()).value();
  const std::vector<int32_t> spelled = {27, 91, 4454, 91, 29};
  ASSERT_EQ(ids.size(), 11 + spelled.size());
  EXPECT_EQ(std::vector<int32_t>(ids.begin() + 7, ids.begin() + 12), spelled);
}

TEST(ChatGolden, MiniPromptsFromPlainMessages) {
  const std::string folder = K3_SOURCE_DIR "/models/k3-mini";
  const Tokenizer tokenizer = Tokenizer::load(folder).value();
  const ChatFormat format = ChatFormat::load(folder, tokenizer).value();
  const auto golden = nlohmann::json::parse(read_file(folder + "/golden/golden.json").value());
  for (const auto& [name, text] : {std::pair{"chat", "What is the capital of France?"},
                                   std::pair{"story", "Tell me a bedtime story about a small boat."}}) {
    ChatRequest request;
    request.messages.push_back(text_message(Role::user, text));
    EXPECT_FALSE(format.thinking_of(request).enabled);
    const Prompt prompt = format.render(request).value();
    EXPECT_EQ(prompt.open, OpenChannel::response);
    EXPECT_EQ(prompt.encode(tokenizer).value(), golden["prompts"][name]["prompt_ids"].get<std::vector<int32_t>>()) << name;
  }
}

struct TextCase {
  const char* name;
  const char* request;
  const char* expected;  // shortened
};

TEST(ChatRender, TextOfEveryKindOfMessage) {
  const TextCase cases[] = {
      {"defaults", R"({"messages":[{"role":"user","content":"hi"}]})",
       R"({message role="system" type="thinking-effort"}E(max){/message}{.}{message role="user"}hi{/message}{.}{message role="assistant"}{think})"},
      {"thinking off", R"({"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"}})",
       R"({message role="user"}hi{/message}{.}{message role="assistant"}{response})"},
      {"names are escaped", R"({"messages":[{"role":"user","name":"a&\"b","content":"x&\"y"}],"reasoning_effort":"none"})",
       R"({message role="user" name="a&amp;&quot;b"}x&"y{/message}{.}{message role="assistant"}{response})"},
      {"developer is system", R"({"messages":[{"role":"developer","content":"be brief"}],"reasoning_effort":"none"})",
       R"({message role="system"}be brief{/message}{.}{message role="assistant"}{response})"},
      {"history keeps think, even empty",
       R"({"messages":[{"role":"assistant","content":"a"},{"role":"assistant","reasoning":"r","content":"b"}],"reasoning_effort":"low","add_generation_prompt":false})",
       R"({message role="system" type="thinking-effort"}E(low){/message}{.}{message role="assistant"}{think}{/think}{response}a{/response}{/message}{.}{message role="assistant"}{think}r{/think}{response}b{/response}{/message}{.})"},
      {"no think in history when off",
       R"({"messages":[{"role":"assistant","reasoning_content":"r","content":"b"}],"chat_template_kwargs":{"thinking":false},"add_generation_prompt":false})",
       R"({message role="assistant"}{response}b{/response}{/message}{.})"},
      {"tools are sorted and compact",
       R"({"messages":[{"role":"user","content":""}],"reasoning_effort":"none","add_generation_prompt":false,
         "tools":[{"type":"function","function":{"parameters":{"type":"object","properties":{"ü":{"minimum":1.50},"a":{}}},"name":"f"}}]})",
       R"({message role="system" type="tool-declare"}T([{"function":{"name":"f","parameters":{"properties":{"a":{},"ü":{"minimum":1.5}},"type":"object"}},"type":"function"}]){/message}{.}{message role="user"}{/message}{.})"},
      {"dynamic tools",
       R"({"messages":[{"role":"system","content":null,"tools":[{"type":"function","function":{"name":"g"}}]}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="system" type="tool-declare"}D([{"function":{"name":"g"},"type":"function"}]){/message}{.})"},
      {"calls: literals kept in strings, order kept",
       R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\": 1.0, \"a\":1e5, \"big\":123456789012345678901234567890, \"s\":\"<\\\"x\\n>\", \"o\":{ \"k\":[1,2e0] }, \"n\":null, \"b\":true}"}}]}],"reasoning_effort":"none","add_generation_prompt":false})",
       "{message role=\"assistant\"}{response}{/response}{tools}{call tool=\"f\" index=\"1\"}{argument key=\"z\" "
       "type=\"number\"}1.0{/argument}{argument key=\"a\" type=\"number\"}1e5{/argument}{argument key=\"big\" "
       "type=\"number\"}123456789012345678901234567890{/argument}{argument key=\"s\" "
       "type=\"string\"}<\"x\n>{/argument}{argument key=\"o\" type=\"object\"}{\"k\": [1, 2e0]}{/argument}{argument "
       "key=\"n\" "
       "type=\"null\"}null{/argument}{argument key=\"b\" type=\"boolean\"}true{/argument}{/call}{/tools}{/message}{.}"},
      {"calls: objects are printed spaced",
       R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"o":{"b":[1,2.50],"a":"ä"}}}},{"function":{"name":"g","arguments":null}},{"function":{"name":"h","arguments":" "}}]}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="assistant"}{response}{/response}{tools}{call tool="f" index="1"}{argument key="o" type="object"}{"b": [1, 2.5], "a": "ä"}{/argument}{/call}{call tool="g" index="2"}{/call}{call tool="h" index="3"}{/call}{/tools}{/message}{.})"},
      {"unparseable arguments are a json block",
       R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\": "}}]}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="assistant"}{response}{/response}{tools}{call tool="f" index="1"}{json type="object"}{"a": {/json}{/call}{/tools}{/message}{.})"},
      {"results are put into call order, the call's name wins",
       R"({"messages":[{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f"}},{"id":"y","function":{"name":"g"}}]},
         {"role":"tool","tool_call_id":"y","content":"Y","name":"stale"},{"role":"tool","tool_call_id":"x","content":"X"}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="assistant"}{response}{/response}{tools}{call tool="f" index="1"}{/call}{call tool="g" index="2"}{/call}{/tools}{/message}{.}{message role="tool" tool="f" index="1"}X{/message}{.}{message role="tool" tool="g" index="2"}Y{/message}{.})"},
      {"a run with an unknown id keeps its order",
       R"({"messages":[{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f"}},{"id":"y","function":{"name":"g"}}]},
         {"role":"tool","tool_call_id":"y","content":"Y"},{"role":"tool","tool_call_id":"?","content":"X","name":"own"}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="assistant"}{response}{/response}{tools}{call tool="f" index="1"}{/call}{call tool="g" index="2"}{/call}{/tools}{/message}{.}{message role="tool" tool="f" index="1"}Y{/message}{.}{message role="tool" tool="own" index="2"}X{/message}{.})"},
      {"tool choice none, json object",
       R"({"messages":[{"role":"user","content":"q"}],"reasoning_effort":"none","tool_choice":"none","response_format":{"type":"json_object"}})",
       R"({message role="user"}q{/message}{.}{message role="system" type="tool-choice"}must not{/message}{.}{message role="system" type="response-format"}object{/message}{.}{message role="assistant"}{response})"},
      {"tool choice required, json schema",
       R"({"messages":[{"role":"user","content":"q"},{"role":"system","tools":[{"type":"function","function":{"name":"g"}}]}],"reasoning_effort":"none","tool_choice":"required","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"boolean","a":1}}}})", R"({message role="user"}q{/message}{.}{message role="system" type="tool-declare"}D([{"function":{"name":"g"},"type":"function"}]){/message}{.}{message role="system" type="tool-choice"}must{/message}{.}{message role="system" type="response-format"}S({"a":1,"type":"boolean"}){/message}{.}{message role="assistant"}{response})"},
      {"partial keeps the response open",
       R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Once","partial":true}],"reasoning_effort":"low"})",
       R"({message role="system" type="thinking-effort"}E(low){/message}{.}{message role="user"}q{/message}{.}{message role="assistant"}{think}{/think}{response}Once)"},
      {"partial without content keeps think open",
       R"({"messages":[{"role":"assistant","reasoning_content":"hm","content":null}],"continue_final_message":true})",
       R"({message role="system" type="thinking-effort"}E(max){/message}{.}{message role="assistant"}{think}hm)"},
      {"text parts stay apart",
       R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"reasoning_effort":"none","add_generation_prompt":false})",
       R"({message role="user"}ab{/message}{.})"},
  };
  const ChatFormat format = short_format();
  for (const TextCase& item : cases) {
    const auto text = render_text(format, item.request);
    ASSERT_TRUE(text.ok()) << item.name << ": " << text.error().message;
    EXPECT_EQ(shorten(*text), item.expected) << item.name;
  }
}

TEST(ChatRender, EveryPieceIsItsOwnSegment) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"add_generation_prompt":false,"reasoning_effort":"none"})");
  std::string pieces;
  const Prompt prompt = short_format().render(*request).value();
  for (const Segment& segment : prompt.segments) pieces += segment.text + "\n";
  EXPECT_EQ(pieces, "<|open|>\nmessage\n role\n=\"\nuser\n\"\n<|sep|>\na\nb\n<|close|>\nmessage\n<|sep|>\n<|end_of_msg|>\n");
}

TEST(ChatRender, ThinkingResolution) {
  struct Case {
    const char* fields;
    bool enabled;
    Effort effort;
  };
  const Case cases[] = {
      {"", true, Effort::max},
      {R"(,"thinking":{"type":"enabled","keep":"all","effort":"high"})", true, Effort::high},
      {R"(,"thinking":{"type":"adaptive"})", true, Effort::max},
      {R"(,"thinking":{"type":"disabled","effort":"low"})", false, Effort::low},
      {R"(,"reasoning_effort":"low")", true, Effort::low},
      {R"(,"reasoning_effort":"minimal")", true, Effort::low},
      {R"(,"reasoning_effort":"medium")", true, Effort::high},
      {R"(,"reasoning_effort":"xhigh")", true, Effort::max},
      {R"(,"reasoning_effort":null)", true, Effort::max},
      {R"(,"reasoning_effort":"none")", false, Effort::max},
      {R"(,"reasoning_effort":"off")", false, Effort::max},
      {R"(,"reasoning_effort":"none","thinking":{})", true, Effort::max},
      {R"(,"reasoning_effort":"low","thinking":{"effort":"high"})", true, Effort::high},
      {R"(,"reasoning_effort":"low","thinking":{"type":"disabled"})", false, Effort::low},
      {R"(,"thinking":{"type":"disabled"},"chat_template_kwargs":{"thinking":true,"thinking_effort":"low"})", true,
       Effort::low},
      {R"(,"thinking":{"type":"enabled"},"chat_template_kwargs":{"enable_thinking":false})", false, Effort::max},
      {R"(,"chat_template_kwargs":{"enable_thinking":false,"thinking":true})", true, Effort::max},
  };
  const ChatFormat format = short_format();
  for (const Case& item : cases) {
    const auto request =
        parse_chat_request(std::string(R"({"messages":[{"role":"user","content":""}])") + item.fields + "}");
    ASSERT_TRUE(request.ok()) << item.fields << request.error().message;
    const Thinking thinking = format.thinking_of(*request);
    EXPECT_EQ(thinking.enabled, item.enabled) << item.fields;
    EXPECT_EQ(thinking.effort, item.effort) << item.fields;
  }
  // The checkpoint's default holds until the request names a mode or a level.
  const ChatFormat off = short_format("disabled");
  const auto mode = [&](const std::string& fields) {
    return off.thinking_of(*parse_chat_request(R"({"messages":[{"role":"user","content":""}])" + fields + "}")).enabled;
  };
  EXPECT_FALSE(mode(""));
  EXPECT_TRUE(mode(R"(,"reasoning_effort":"high")"));
  EXPECT_TRUE(mode(R"(,"chat_template_kwargs":{"thinking_effort":"high"})"));
}

// A 56 x 40 PNG header: 2 x 2 cells.
constexpr const char* kPng = "iVBORw0KGgoAAAANSUhEUgAAADgAAAAoCAIAAAAAAAAA";

TEST(ChatRender, ImagesBecomeMediaStrings) {
  const std::string request = fmt::format(
      R"({{"messages":[{{"role":"user","content":[{{"type":"text","text":"<|media_pad|>"}},{{"type":"image_url","image_url":{{"url":"data:image/png;charset=utf-8;base64,{}"}}}}]}}],"reasoning_effort":"none","add_generation_prompt":false}})",
      kPng);
  const auto parsed = parse_chat_request(request);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_TRUE(parsed->has_images());
  const Prompt prompt = short_format().render(*parsed).value();
  EXPECT_EQ(
      shorten(prompt.text()),
      R"({message role="user"}<|media_pad|><|media_begin|>image 56x40<|media_content|><|media_pad|><|media_pad|><|media_pad|><|media_pad|><|media_end|>{/message}{.})");
  const auto ids = prompt.encode(released_tokenizer()).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 163605), 4);
}

}  // namespace
}  // namespace k3
