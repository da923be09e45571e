// The parts of the load generator that need no server: addresses, event streams, frames, prompts, workloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "k3/format/json/json_tree.h"
#include "k3/server/loadgen/load_run.h"
#include "k3/server/loadgen/openai_stream.h"
#include "k3/server/loadgen/sse_parser.h"

namespace k3::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Url, Forms) {
  const auto form = [](std::string_view text) {
    const auto url = parse_url(text);
    return url.ok() ? url->authority() + url->target("/models") : "error: " + url.error().message;
  };
  EXPECT_EQ(form("localhost:8000"), "localhost:8000/v1/models");
  EXPECT_EQ(form("http://host"), "host:80/v1/models");
  EXPECT_EQ(form("http://host:81/v1/"), "host:81/v1/models");
  EXPECT_EQ(form("http://host/a/b"), "host:80/a/b/v1/models");
  EXPECT_EQ(form("http://[::1]:8000/v1"), "[::1]:8000/v1/models");
  for (const char* bad : {"", "http://", "ftp://x", "host:", "host:0", "host:99999", "host:8x", "http://a b", "[::1",
                          "[::1]8", "user@host", "http://h/?q"}) {
    EXPECT_THAT(form(bad), testing::StartsWith("error: ")) << bad;
  }
  EXPECT_EQ(parse_url("https://x").error().code, Code::unsupported);
}

std::vector<std::string> events(std::string_view bytes, size_t first, size_t second) {
  SseParser parser;
  std::vector<std::string> out;
  const auto keep = [&](std::string_view data) { out.emplace_back(data); };
  EXPECT_TRUE(parser.push(bytes.substr(0, first), keep).ok());
  EXPECT_TRUE(parser.push(bytes.substr(first, second - first), keep).ok());
  EXPECT_TRUE(parser.push(bytes.substr(second), keep).ok());
  return out;
}

TEST(SseParser, EveryCutGivesTheSameEvents) {
  const std::string stream =
      "\xEF\xBB\xBF"
      "data: {\"a\":\"\xC3\xA9\"}\n\n: ping\n\ndata:no blank\r\n\r\nevent: x\rdata: two\rdata:  lines\r\rid: "
      "7\n\ndata\n\ndata: [DONE]\n\ndata: cut";
  const std::vector<std::string> expected = {"{\"a\":\"\xC3\xA9\"}", "no blank", "two\n lines", "", "[DONE]"};
  for (size_t i = 0; i <= stream.size(); ++i) {
    for (size_t k = i; k <= stream.size(); ++k) ASSERT_EQ(events(stream, i, k), expected) << i << " " << k;
  }
}

TEST(SseParser, EndlessEventsAreRefused) {
  SseParser parser;
  const std::string bytes(1 << 20, 'x');
  Status status;
  for (int i = 0; i < 70 && status.ok(); ++i) status = parser.push(bytes, [](std::string_view) {});
  EXPECT_FALSE(status.ok());
  // Nothing of it is kept: the next event has its place.
  std::vector<std::string> out;
  EXPECT_TRUE(parser.push("\n\ndata: x\n\n", [&](std::string_view data) { out.emplace_back(data); }).ok());
  EXPECT_THAT(out, ElementsAre("x"));
}

TEST(OpenAiStream, Frames) {
  const auto part = [](std::string_view json) { return parse_answer_part(json).value(); };
  EXPECT_TRUE(part("[DONE]").done);
  EXPECT_FALSE(part(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").text);
  EXPECT_TRUE(part(R"({"choices":[{"delta":{"content":"x"}}]})").text);
  EXPECT_TRUE(part(R"({"choices":[{"delta":{"reasoning_content":"x"}}]})").text);
  EXPECT_FALSE(part(R"({"choices":[{"delta":{"reasoning_content":""}}]})").text);
  EXPECT_TRUE(part(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})").text);
  EXPECT_TRUE(part(R"({"choices":[{"text":"","finish_reason":null}]})").progress);
  EXPECT_FALSE(part(R"({"choices":[{"text":"","finish_reason":"stop"}]})").progress);
  EXPECT_TRUE(part(R"({"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]})").text);
  const AnswerPart end = part(
      R"({"choices":[{"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":31,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}]})");
  EXPECT_EQ(end.finish_reason, "stop");
  EXPECT_EQ(end.prompt_tokens, 31);
  EXPECT_EQ(end.cached_tokens, 4);
  const AnswerPart usage =
      part(R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":null}})");
  EXPECT_EQ(usage.completion_tokens, 2);
  EXPECT_EQ(usage.cached_tokens, -1);
  EXPECT_EQ(part(R"({"usage":{"prompt_tokens":-3,"completion_tokens":"x"}})").prompt_tokens, -1);
  EXPECT_EQ(part(R"({"error":{"message":"bad"}})").error, "bad");
  for (const char* bad : {"", "{", "[1]", "null", "\xff"}) EXPECT_FALSE(parse_answer_part(bad).ok()) << bad;
}

TEST(OpenAiStream, ErrorMessages) {
  EXPECT_EQ(error_message(R"({"error":{"message":"m","type":"t"}})"), "m");
  EXPECT_EQ(error_message(R"({"error":"text"})"), "text");
  EXPECT_EQ(error_message(R"({"detail":"fast"})"), "fast");
  EXPECT_EQ(error_message("<html>\nno</html>"), "<html> no</html>");
  EXPECT_EQ(error_message(""), "an empty answer");
}

std::vector<int64_t> ids_of(const Prompt& prompt, int64_t vocab) {
  std::string json;
  append_token_ids(json, prompt, vocab);
  std::vector<int64_t> out;
  const JsonNode root = parse_json(json).value();
  for (const JsonNode& item : root.items) out.push_back(std::stoll(std::string(item.raw)));
  return out;
}

TEST(Prompt, EqualIdsGiveEqualTokens) {
  const Prompt a = {{5, 100}, {6, 50}}, b = {{5, 100}, {7, 60}};
  const auto x = ids_of(a, 300), y = ids_of(b, 300);
  ASSERT_EQ(x.size(), 150u);
  ASSERT_EQ(y.size(), 160u);
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + 100, y.begin()));
  EXPECT_FALSE(std::equal(x.begin() + 100, x.end(), y.begin() + 100));
  const std::set<int64_t> values(x.begin(), x.end());
  EXPECT_GE(*values.begin(), 0);
  EXPECT_LT(*values.rbegin(), 300);
  EXPECT_GT(values.size(), 80u);
  EXPECT_TRUE(ids_of({}, 10).empty());
  const std::string words = prompt_words(a);
  EXPECT_EQ(std::count(words.begin(), words.end(), ' '), 149);
  EXPECT_EQ(words.substr(0, 200), prompt_words(b).substr(0, 200));
}

Result<std::vector<PlannedRequest>> from_trace(const std::string& text, const TraceWorkload& options) {
  K3_TRY_ASSIGN(TraceReader reader, TraceReader::of_text(text, "t"));
  return workload_from_trace(reader, options);
}

TEST(Workload, ScaleIsAFiniteFactorAboveZero) {
  const std::string trace = R"({"timestamp":0,"input_length":3,"output_length":1,"hash_ids":[7]})";
  for (const double scale : {0.0, -1.0, 1e300, std::numeric_limits<double>::infinity(), std::nan("")}) {
    TraceWorkload options;
    options.scale = scale;
    EXPECT_EQ(from_trace(trace, options).error().code, Code::invalid_argument) << scale;
  }
}

TEST(Workload, ScaledTracesKeepTheirSharedPrefixes) {
  const std::string trace =
      R"({"timestamp":2000,"input_length":1300,"output_length":100,"hash_ids":[1,2,3],"session":4,"turn":0,"turn_end":1400,"think_ms":0})"
      "\n"
      R"({"timestamp":3000,"input_length":1601,"output_length":3,"hash_ids":[1,2,8,9],"session":5,"turn":0,"turn_end":1604,"think_ms":250})"
      "\n"
      R"({"timestamp":4000,"input_length":3,"output_length":0,"hash_ids":[7],"session":6})";
  TraceWorkload options;
  options.scale = 0.25;
  options.max_output = 16;
  const auto requests = from_trace(trace, options);
  ASSERT_TRUE(requests.ok()) << requests.error().message;
  ASSERT_EQ(requests->size(), 3u);
  const PlannedRequest& a = (*requests)[0];
  const PlannedRequest& b = (*requests)[1];
  EXPECT_EQ(a.at_s, 0);
  EXPECT_EQ(b.at_s, 1);
  EXPECT_EQ(a.input_tokens, 325);
  EXPECT_EQ(a.output_tokens, 16);
  EXPECT_EQ(b.output_tokens, 1);
  EXPECT_DOUBLE_EQ(b.think_s, 0.25);
  EXPECT_FALSE(a.not_before_at);
  for (const PlannedRequest& request : *requests) EXPECT_EQ(prompt_tokens(request.prompt), request.input_tokens);
  EXPECT_EQ(a.prompt[0].tokens, 128);
  EXPECT_EQ(a.prompt[2].tokens, 69);
  EXPECT_EQ(b.prompt[3].id, 9u);
  const auto x = ids_of(a.prompt, 4096), y = ids_of(b.prompt, 4096);
  EXPECT_EQ(std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin(), 256);
  EXPECT_EQ((*requests)[2].input_tokens, 1);
  EXPECT_TRUE((*requests)[2].not_before_at);
}

TEST(Workload, EveryScaleGivesExactLengths) {
  std::string ids;
  for (int i = 0; i < 20; ++i) ids += (i > 0 ? "," : "") + std::to_string(i);
  for (const double scale : {1e-6, 0.001, 0.03, 0.1, 1.0 / 3, 0.7, 1.0, 1.5, 7.3}) {
    for (const int64_t length : {9729, 9730, 10239, 10240}) {
      TraceWorkload options;
      options.scale = scale;
      const auto requests = from_trace(
          fmt::format(R"({{"timestamp":0,"input_length":{},"output_length":5,"hash_ids":[{}]}})", length, ids), options);
      ASSERT_TRUE(requests.ok());
      const PlannedRequest& r = (*requests)[0];
      EXPECT_EQ(prompt_tokens(r.prompt), r.input_tokens) << scale << " " << length;
      EXPECT_GE(r.input_tokens, 1);
    }
  }
}

TEST(Workload, Filters) {
  std::string trace;
  for (int i = 0; i < 10; ++i) {
    trace +=
        fmt::format(R"({{"timestamp":{},"input_length":{},"output_length":1,"session":{}}})", i, 100 * (i + 1), i) + "\n";
  }
  TraceWorkload options;
  options.sessions = parse_sessions("2-5").value();
  EXPECT_EQ(from_trace(trace, options)->size(), 4u);
  options.max_input = 400;
  EXPECT_EQ(from_trace(trace, options)->size(), 2u);
  options.limit = 1;
  EXPECT_EQ(from_trace(trace, options)->size(), 1u);
  options.sessions = parse_sessions("77").value();
  EXPECT_THAT(from_trace(trace, options).error().message, HasSubstr("no record"));
  for (const char* bad : {"", "a", "1-", "-1", "3-2", "1-2-3"}) EXPECT_FALSE(parse_sessions(bad).ok()) << bad;
}

TEST(Workload, Lengths) {
  const Rng rng(3, 9);
  const auto fixed = LengthDistribution::parse("7").value();
  const auto uniform = LengthDistribution::parse("uniform:3:5").value();
  const auto lognormal = LengthDistribution::parse("lognormal:1000:0.5").value();
  std::set<int64_t> seen;
  std::vector<int64_t> values;
  for (uint64_t i = 0; i < 2001; ++i) {
    EXPECT_EQ(fixed.draw(rng, i), 7);
    seen.insert(uniform.draw(rng, i));
    values.push_back(lognormal.draw(rng, i));
  }
  EXPECT_THAT(std::vector<int64_t>(seen.begin(), seen.end()), ElementsAre(3, 4, 5));
  std::sort(values.begin(), values.end());
  EXPECT_NEAR(static_cast<double>(values[1000]), 1000, 60);
  EXPECT_NEAR(std::log(static_cast<double>(values[1682]) / 1000), 0.5, 0.05);  // one sigma up: 84.1 %
  for (const char* bad : {"", "0", "-3", "x", "uniform:1", "uniform:5:3", "uniform:0:3", "lognormal:10:11",
                          "lognormal:1:2:3", "nan", "fixed:3"}) {
    EXPECT_FALSE(LengthDistribution::parse(bad).ok()) << bad;
  }
}

TEST(Workload, SyntheticTurnsGrowAndShare) {
  SyntheticWorkload options;
  options.requests = 6;
  options.turns = 3;
  options.shared_prefix_tokens = 40;
  options.input = LengthDistribution::parse("10").value();
  options.output = LengthDistribution::parse("5").value();
  options.think_s = 2;
  const auto requests = synthetic_workload(options);
  ASSERT_EQ(requests.size(), 6u);
  EXPECT_EQ(requests[0].input_tokens, 50);
  EXPECT_EQ(requests[1].input_tokens, 65);
  EXPECT_EQ(requests[2].input_tokens, 80);
  EXPECT_EQ(requests[3].input_tokens, 50);
  EXPECT_EQ(requests[3].session, 1);
  EXPECT_EQ(requests[2].think_s, 2);
  EXPECT_EQ(requests[3].think_s, 0);
  const auto first = ids_of(requests[0].prompt, 500), second = ids_of(requests[1].prompt, 500),
             other = ids_of(requests[3].prompt, 500);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 40, other.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 40, first.end(), other.begin() + 40));
  options.seed = 1;
  EXPECT_NE(ids_of(synthetic_workload(options)[0].prompt, 500), first);
}

TEST(Workload, BodiesAreStrictJson) {
  PlannedRequest request;
  request.prompt = {{1, 3}};
  request.output_tokens = 9;
  LoadOptions options;
  options.model = "a\"b";
  options.extra_body = "\"top_k\":1";
  for (const bool chat : {false, true}) {
    options.chat = chat;
    const std::string body = request_body(request, options);
    const auto root = parse_json(body);
    ASSERT_TRUE(root.ok()) << body;
    EXPECT_EQ(root->find("model")->text, "a\"b");
    EXPECT_EQ(root->find("max_tokens")->raw, "9");
    EXPECT_TRUE(root->find("stream")->flag);
    EXPECT_EQ(root->find("top_k")->raw, "1");
    EXPECT_EQ(root->find("prompt") != nullptr, !chat);
    EXPECT_EQ(root->find("messages") != nullptr, chat);
  }
}

}  // namespace
}  // namespace k3::server
