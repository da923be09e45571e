// Token accounting with the released vocabulary (api.md 13): what usage says, seen through the server.
#include <cstdlib>

#include "k3/server/api/scripted_service_test.h"

namespace k3::server {
namespace {

using test::Json;
using test::released_tokenizer;

// The effort message at level max, as the ids of a published vector.
constexpr int32_t kEffortMax[] = {63,   130400, 123074, 470,   63,   28560, 418,    1632,   2455, 308,    2704, 306,   651,
                                  9545, 8491,   347,    2976,  3411, 276,   4503,   8491,   904,  9141,   4661, 3867,  1268,
                                  1332, 5713,   1268,   50004, 5713, 1268,  19421,  5713,   316,  1268,   5354, 16518, 10048,
                                  276,  2403,   387,    42070, 472,  1268,  130400, 123074, 470,  105281, 11369};

ChatFormat effort_format() {
  const std::string body = released_tokenizer().decode(kEffortMax).value();
  const size_t level = body.rfind("max");
  JsonWriter json;
  json.begin_object().field("format", "xtml").key("constants").begin_object();
  json.field("effort_before", body.substr(0, level)).field("effort_after", body.substr(level + 3));
  json.end_object().end_object();
  return ChatFormat::from_json(ChatFormat::Kind::xtml, json.text(), "vector").value();
}

class Accounting : public test::ServiceTest {
 protected:
  void start_with(ChatFormat format) {
    format_ = std::move(format);
    engine_.script = [](const Request&) { return test::Script{.choices = {{163586}}, .fault = {}, .refusal = {}}; };
    start([](Context& context) {
      context.tokenizer = &released_tokenizer();
      context.card.vocab = released_tokenizer().vocab_size();
      context.stop_ids = {163586};
    });
  }
  Json usage(std::string_view messages, std::string_view fields = "") {
    const test::HttpAnswer answer =
        post("/v1/chat/completions", fmt::format(R"({{"model":"tiny","messages":{}{}}})", messages, fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body)["usage"];
  }
  int64_t prompt(std::string_view messages, std::string_view fields = "") {
    return usage(messages, fields)["prompt_tokens"];
  }
};

constexpr const char* kOff = R"(,"thinking":{"type":"disabled"})";
constexpr int64_t kHeader = 7;  // of the assistant's message; its channel opener is pending

TEST_F(Accounting, SmallMessages) {
  start_with(effort_format());
  EXPECT_EQ(prompt(R"([{"role":"user","content":"Hello."}])", kOff), 13 + kHeader);
  EXPECT_EQ(prompt(R"([{"role":"user","content":""}])", kOff), 11 + kHeader);
}

TEST_F(Accounting, TheAssistantMessageOfTwoCharacters) {
  start_with(effort_format());
  const Json u = usage(R"([{"role":"assistant","content":"你好"}])", R"(,"reasoning_effort":"high")");
  EXPECT_EQ(u["prompt_tokens"], 99);
  EXPECT_EQ(u["prompt_tokens_details"]["rendered_tokens"], 102);
}

TEST_F(Accounting, TheVectorOf104Ids) {
  start_with(effort_format());
  const char* messages = R"([{"role":"system","content":"You are helpful."},{"role":"user","content":"Hello"}])";
  EXPECT_EQ(prompt(messages), 101);
  EXPECT_EQ(engine_.last().prompt.size(), 104u);
  EXPECT_EQ(engine_.last().prompt.back(), 163589);
  const Json ids = Json::parse(post("/tokenize", fmt::format(R"({{"messages":{}}})", messages)).body);
  EXPECT_EQ(ids["count"], 104);
}

TEST_F(Accounting, EffortMessages) {
  start_with(effort_format());
  const char* messages = R"([{"role":"user","content":""}])";
  EXPECT_EQ(prompt(messages, R"(,"reasoning_effort":"max")"), 67 + 11 + kHeader);
  EXPECT_EQ(prompt(messages, R"(,"reasoning_effort":"low")"), 68 + 11 + kHeader);
}

// The fixed sentences belong to the checkpoint; a folder that holds its encoder is named by K3_RELEASED_CHECKPOINT.
TEST_F(Accounting, MessagesWithReleasedSentences) {
  const char* folder = std::getenv("K3_RELEASED_CHECKPOINT");
  if (folder == nullptr)
    GTEST_SKIP() << "needs encoding_k3.py of the released checkpoint: set K3_RELEASED_CHECKPOINT to its folder";
  start_with(ChatFormat::load(folder, released_tokenizer()).value());
  const char* messages = R"([{"role":"user","content":""}])";
  const int64_t plain = prompt(messages, kOff);
  const std::string tools = std::string(kOff) + R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const int64_t with_tools = prompt(messages, tools);
  EXPECT_EQ(prompt(messages, tools + R"(,"tool_choice":"none")") - with_tools, 38);
  EXPECT_EQ(prompt(messages, R"(,"reasoning_effort":"max")") - plain, 67);
  const auto rendered = [&](std::string_view fields) {
    return Json::parse(post("/tokenize", fmt::format(R"({{"messages":{}{}}})", messages, fields)).body)["count"]
        .get<int64_t>();
  };
  EXPECT_EQ(rendered(tools + R"(,"tool_choice":"required")") - rendered(tools), 36);
  EXPECT_EQ(rendered(std::string(kOff) + R"(,"response_format":{"type":"json_object"})") - rendered(kOff), 47);
}

}  // namespace
}  // namespace k3::server
