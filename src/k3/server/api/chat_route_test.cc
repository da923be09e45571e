// Chat completions over HTTP: framing, accounting, options.
#include "k3/server/api/scripted_service_test.h"

namespace k3::server {
namespace {

using test::HttpAnswer;
using test::HttpClient;
using test::Json;
using test::ServiceTest;
using testing::ElementsAre;
using testing::HasSubstr;

class ChatRoute : public ServiceTest {
 protected:
  std::vector<Json> stream(std::string_view fields = "") {
    const HttpAnswer answer =
        post("/v1/chat/completions", chat("\"stream\":true" + std::string(fields.empty() ? "" : ",") + std::string(fields)));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(answer.complete);
    return test::stream_frames(answer.body);
  }
  Json whole(std::string_view fields = "") {
    const HttpAnswer answer = post("/v1/chat/completions", chat(fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  }
};

// A frame without what differs from run to run.
std::string brief(Json frame) {
  for (const char* key : {"id", "object", "created", "model"}) frame.erase(key);
  return frame.dump();
}

TEST_F(ChatRoute, TheFramesOfAStream) {
  say("Two plus«/think»«response»4«/response»«/message»«.»");
  std::vector<std::string> frames;
  for (const Json& frame : stream()) {
    EXPECT_EQ(frame["object"], "chat.completion.chunk");
    EXPECT_THAT(frame["id"].get<std::string>(), testing::MatchesRegex("chatcmpl-[0-9a-f]+"));
    EXPECT_EQ(frame["id"].get<std::string>().size(), std::string("chatcmpl-").size() + 24);
    EXPECT_EQ(frame["model"], "tiny");
    frames.push_back(brief(frame));
  }
  ASSERT_EQ(frames.size(), 12u);
  EXPECT_EQ(frames[0], R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})");
  EXPECT_EQ(frames[1], R"({"choices":[{"index":0,"delta":{"reasoning_content":"T"},"finish_reason":null}]})");
  EXPECT_EQ(frames[9], R"({"choices":[{"index":0,"delta":{"reasoning_content":""},"finish_reason":null}]})");
  EXPECT_EQ(frames[10], R"({"choices":[{"index":0,"delta":{"content":"4"},"finish_reason":null}]})");
  const Json end = Json::parse(frames[11])["choices"][0];
  EXPECT_EQ(end["delta"], Json::object());
  EXPECT_EQ(end["finish_reason"], "stop");
  EXPECT_EQ(end["usage"]["completion_tokens_details"]["reasoning_tokens"], 8);
  EXPECT_EQ(end["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(ChatRoute, TheIdBeginsWithTheTime) {
  say("x");
  const Json answer = whole();
  const std::string id = answer["id"];
  EXPECT_EQ(std::stoll(id.substr(9, 8), nullptr, 16), answer["created"].get<int64_t>());
}

TEST_F(ChatRoute, UsageLeavesOutThePendingTokens) {
  engine_.script = [this](const Request& request) {
    test::Script script;
    script.choices = {test::output_ids(tokenizer_, "a«/think»«response»b«.»")};
    script.cached_tokens = static_cast<int64_t>(request.prompt.size()) - 1;  // more than what is reported as the prompt
    return script;
  };
  const HttpAnswer answer = post("/v1/chat/completions", chat());
  const Json usage = Json::parse(answer.body)["usage"];
  const int64_t prompt = usage["prompt_tokens"];
  EXPECT_EQ(prompt, static_cast<int64_t>(engine_.last().prompt.size()) - 3);
  EXPECT_EQ(usage["prompt_tokens_details"]["rendered_tokens"], prompt + 3);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], prompt);
  EXPECT_EQ(usage["total_tokens"], prompt + usage["completion_tokens"].get<int64_t>());
  EXPECT_EQ(answer.header("x-msh-usage-prompt-tokens"), std::to_string(prompt));
  EXPECT_EQ(answer.header("x-msh-usage-cached-tokens"), std::to_string(prompt));
  const HttpAnswer streamed = post("/v1/chat/completions", chat("\"stream\":true"));
  EXPECT_EQ(streamed.header("x-msh-usage-prompt-tokens"), std::to_string(prompt));
  EXPECT_EQ(streamed.header("content-type"), "text/event-stream; charset=utf-8");
}

TEST_F(ChatRoute, SummaryOnlyWhenAsked) {
  say("a«/think»«response»b«.»");
  const auto plain = stream();
  for (const Json& frame : plain) EXPECT_FALSE(frame.contains("usage"));
  const auto asked = stream(R"("stream_options":{"include_usage":true})");
  EXPECT_EQ(asked.size(), plain.size() + 1);
  EXPECT_EQ(asked.back()["choices"], Json::array());
  EXPECT_EQ(asked.back()["usage"], asked[asked.size() - 2]["choices"][0]["usage"]);
}

TEST_F(ChatRoute, ContinuousUsageGrowsAndFreezes) {
  say("abc«/think»«response»de«.»");
  const auto frames = stream(R"("stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  int64_t before = 0, frozen = -1;
  for (const Json& frame : frames) {
    ASSERT_TRUE(frame.contains("usage")) << frame;
    const int64_t now = frame["usage"]["completion_tokens_details"]["reasoning_tokens"];
    EXPECT_GE(now, before);
    before = now;
    if (frame["choices"].empty()) continue;
    const Json& delta = frame["choices"][0]["delta"];
    if (delta.contains("reasoning_content")) {
      EXPECT_GT(now, 0);
    }
    if (delta.contains("reasoning_content") && delta["reasoning_content"] == "") frozen = now;
    if (frozen >= 0) {
      EXPECT_EQ(now, frozen);
    }
  }
  EXPECT_EQ(frozen, 3);
}

TEST_F(ChatRoute, InternalContentNamesTheTokens) {
  say("ab«/think»«response»c«/response»«tools»«call tool=\"f\"»«argument key=\"k\" "
      "type=\"number\"»1«/argument»«/call»«/tools»«.»");
  const auto frames =
      stream(R"("stream_options":{"include_internal_content":true},"tools":[{"type":"function","function":{"name":"f"}}])");
  std::vector<int32_t> joined;
  for (size_t i = 1; i + 1 < frames.size(); ++i) {
    const Json& delta = frames[i]["choices"][0]["delta"];
    ASSERT_TRUE(delta.contains("internal_content")) << frames[i];
    ASSERT_FALSE(delta["internal_content"]["token_ids"].empty());
    for (const int32_t id : delta["internal_content"]["token_ids"]) {
      if (joined.empty() || joined.back() != id || tokenizer_.bytes(id) != ">") joined.push_back(id);
    }
  }
  EXPECT_FALSE(frames[0]["choices"][0]["delta"].contains("internal_content"));
  EXPECT_EQ(joined.front(), 'a');
}

TEST_F(ChatRoute, StopStringsEndContentOnly) {
  say("END«/think»«response»one ENtwo ENDthree«.»");
  const Json answer = whole(R"("stop":["END","zzz"])");
  EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "END");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "one ENtwo ");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const auto frames = stream(R"("stop":"END")");
  EXPECT_EQ(test::reassemble(frames, 0, true)["message"], answer["choices"][0]["message"]);
  EXPECT_TRUE(test::eventually([&] { return log().size() == 2; }));
  EXPECT_THAT(log().back(), HasSubstr("finish stop"));
}

TEST_F(ChatRoute, HeldBackTextComesWhenItIsNoStop) {
  say("«/think»«response»tail EN", EndReason::length);
  const Json answer = whole(R"("stop":"END")");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "tail EN");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatRoute, CutWhileThinking) {
  say("never done", EndReason::length);
  const Json answer = whole();
  EXPECT_EQ(answer["choices"][0]["message"]["content"], nullptr);
  EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "never done");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatRoute, WithoutThinkingThereIsNoReasoning) {
  say("hello«/response»«/message»«.»");
  const Json answer = whole(R"("thinking":{"type":"disabled"})");
  EXPECT_FALSE(answer["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "hello");
  for (const Json& frame : stream(R"("thinking":{"type":"disabled"})"))
    EXPECT_EQ(frame.dump().find("reasoning_content"), std::string::npos);
}

TEST_F(ChatRoute, EveryChoiceIsAWholeSequence) {
  engine_.script = [this](const Request&) {
    test::Script script;
    script.choices = {test::output_ids(tokenizer_, "a«/think»«response»one«.»"),
                      test::output_ids(tokenizer_, "bb«/think»«response»second«.»")};
    return script;
  };
  const Json answer = whole(R"("n":2)");
  ASSERT_EQ(answer["choices"].size(), 2u);
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "second");
  const auto frames = stream(R"("n":2,"stream_options":{"include_usage":true})");
  for (int64_t c = 0; c < 2; ++c) {
    const Json got = test::reassemble(frames, c, true);
    EXPECT_EQ(got["message"], answer["choices"][static_cast<size_t>(c)]["message"]);
  }
  EXPECT_EQ(frames.back()["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
  EXPECT_EQ(engine_.last().choices, 2);
}

TEST_F(ChatRoute, ToolCalls) {
  say("x«/think»«response»«/response»«tools»«call tool=\"tide_at\" index=\"1\"»«argument key=\"port\" "
      "type=\"string\"»Brest«/argument»"
      "«argument key=\"days\" type=\"number\"»2«/argument»«/call»«/tools»«/message»«.»");
  const char* fields = R"("tools":[{"type":"function","function":{"name":"tide_at"}}])";
  const Json choice = whole(fields)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"], "tide_at_0");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"port": "Brest", "days": 2})");
  const auto frames = stream(fields);
  const Json got = test::reassemble(frames, 0, true);
  EXPECT_EQ(got["message"], choice["message"]);
  // A string argument arrives as it is written.
  size_t letters = 0;
  for (const Json& frame : frames) letters += frame.dump().find(R"("arguments":"r")") != std::string::npos ? 1 : 0;
  EXPECT_EQ(letters, 1u);
}

TEST_F(ChatRoute, OneCallWhenParallelCallsAreOff) {
  say("«/think»«response»«/response»«tools»«call tool=\"a\"»«/call»«call tool=\"b\"»«/call»«/tools»«.»");
  const char* fields = R"("parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"a"}}])";
  const Json choice = whole(fields)["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST_F(ChatRoute, Logprobs) {
  say("q«/think»«response»é!«.»");  // é is two tokens of one code point
  const Json answer = whole(R"("logprobs":true,"top_logprobs":3)");
  const Json entries = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 2u) << entries;
  EXPECT_EQ(entries[0]["token"], "é");
  EXPECT_EQ(entries[0]["bytes"], Json({0xc3, 0xa9}));
  EXPECT_DOUBLE_EQ(entries[0]["logprob"].get<double>(), -0.5);  // both tokens together
  EXPECT_EQ(entries[1]["token"], "!");
  EXPECT_DOUBLE_EQ(entries[1]["logprob"].get<double>(), -0.25);
  ASSERT_EQ(entries[1]["top_logprobs"].size(), 3u);
  EXPECT_EQ(entries[1]["top_logprobs"][1]["logprob"], -9999.0);
  EXPECT_EQ(whole()["choices"][0]["logprobs"], nullptr);
  EXPECT_TRUE(whole(R"("logprobs":true)")["choices"][0]["logprobs"]["content"][0]["top_logprobs"].empty());
  const auto frames = stream(R"("logprobs":true,"top_logprobs":3)");
  EXPECT_EQ(test::reassemble(frames, 0, true)["logprobs"], entries);
  EXPECT_FALSE(frames[0]["choices"][0].contains("logprobs"));
}

TEST_F(ChatRoute, LogprobsOfRemovedTextGoWithIt) {
  say("«/think»«response»ab END c«.»");
  const Json answer = whole(R"("logprobs":true,"stop":"END")");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ab ");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["content"].size(), 3u);
}

TEST_F(ChatRoute, WhatReachesTheEngine) {
  say("x");
  whole(R"("temperature":0.5,"top_p":0.5,"top_k":7,"min_p":0.1,"seed":42,"presence_penalty":1,"frequency_penalty":-1,
      "repetition_penalty":1.1,"max_tokens":9,"max_completion_tokens":5,"min_tokens":2,"n":3,"logit_bias":{"65":-100,"66":2.5},
      "stop_token_ids":[70],"ignore_eos":true,"cache_salt":"tenant","id_slot":1)");
  const Request r = engine_.last();
  EXPECT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_EQ(r.sampling.top_p, 0.5F);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.min_p, 0.1F);
  EXPECT_EQ(r.sampling.seed, 42u);
  EXPECT_EQ(r.sampling.presence_penalty, 1);
  EXPECT_EQ(r.sampling.frequency_penalty, -1);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_EQ(r.choices, 3);
  EXPECT_THAT(r.sampling.logit_bias, ElementsAre(testing::Pair(65, -100), testing::Pair(66, 2.5F)));
  EXPECT_THAT(r.stop_ids, ElementsAre(258, 70));
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.cache_salt, "tenant");
  EXPECT_EQ(r.slot, 1);
  whole();
  EXPECT_EQ(engine_.last().max_tokens, 0);
  EXPECT_EQ(engine_.last().sampling.top_p, 0.95F);  // the checkpoint's
}

TEST_F(ChatRoute, TurnsEndWhereTheirMessagesEnd) {
  say("x");
  post(
      "/v1/chat/completions",
      R"({"model":"tiny","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]})");
  const Request r = engine_.last();
  ASSERT_EQ(r.turn_ends.size(), 4u);  // effort message, user, assistant, user
  for (const int64_t end : r.turn_ends) EXPECT_EQ(r.prompt[static_cast<size_t>(end) - 1], 258);
}

TEST_F(ChatRoute, KimiPolicy) {
  start([](Context& context) { context.options.param_policy = ParamPolicy::kimi; });
  say("x");
  for (const char* wrong : {R"("temperature":1.1)", R"("temperature":2.0)", R"("temperature":-0.1)", R"("top_p":0.8)",
                            R"("presence_penalty":0.5)", R"("frequency_penalty":0.5)", R"("n":2)"}) {
    const HttpAnswer answer = post("/v1/chat/completions", chat(wrong));
    EXPECT_EQ(answer.status, 400) << wrong;
    const std::string name = std::string(wrong).substr(1, std::string(wrong).find('"', 1) - 1);
    EXPECT_EQ(Json::parse(answer.body)["error"]["param"], name) << answer.body;
  }
  for (const char* right : {R"("temperature":0.6)", R"("temperature":0.0)", R"("temperature":1.0)", R"("top_p":0.95)",
                            R"("top_p":1.0)", R"("presence_penalty":0)", R"("n":1)", R"("stop":["1","2","3","4","5"])"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat(right)).status, 200) << right;
    EXPECT_EQ(engine_.last().sampling.top_p, 0.95F);
  }
  EXPECT_EQ(post("/v1/chat/completions", chat(fmt::format(R"("stop":"{}")", std::string(33, 'x')))).status, 400);
}

TEST_F(ChatRoute, StrictToolsDropUndeclaredCalls) {
  start([](Context& context) { context.options.strict_tools = true; });
  say("«/think»«response»t«/response»«tools»«call tool=\"other\"»«/call»«/tools»«.»");
  const Json choice = whole(R"("tools":[{"type":"function","function":{"name":"f"}}])")["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ChatRoute, TheLogHoldsNumbersAndNoText) {
  say("secret«/think»«response»words«.»");
  post("/v1/chat/completions", R"({"model":"tiny","messages":[{"role":"user","content":"private"}]})",
       "x-request-id: abc-1\r\n");
  ASSERT_TRUE(test::eventually([&] { return !log().empty(); }));
  const std::string line = log().back();
  EXPECT_THAT(line, testing::StartsWith("abc-1 POST /v1/chat/completions 200 "));
  for (const char* word : {"prompt ", "cached 0", "matched 0", "limit none", "copied 0 B", "computed", "generated "})
    EXPECT_THAT(line, HasSubstr(word));
  for (const char* word : {"secret", "words", "private"}) EXPECT_THAT(line, testing::Not(HasSubstr(word)));
}

TEST_F(ChatRoute, ARequestThatFailsLeavesOneLine) {
  start();
  engine_.script = [](const Request&) {
    return test::Script{.choices = {{}}, .fault = fail(Code::internal, "broken"), .refusal = {}, .hold_tokens = false};
  };
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 500);
  ASSERT_TRUE(test::eventually([&] { return !log().empty() && service_->http_stats().exchanges == 0; }));
  EXPECT_EQ(log().size(), 1u) << testing::PrintToString(log());
}

// ---- ends that are none of the model's ----

TEST_F(ChatRoute, AClientThatLeavesCancels) {
  start();
  for (const bool streaming : {false, true}) {
    engine_.script = [](const Request&) {
      return test::Script{.choices = {{}}, .fault = {}, .refusal = {}, .hold_tokens = true};
    };
    const int64_t before = engine_.cancelled_count();
    HttpClient client(service_->port());
    const std::string body = chat(streaming ? "\"stream\":true" : "");
    client.send(
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    body.size(), body));
    if (streaming) {
      EXPECT_THAT(client.read_until("\n\n"), HasSubstr("assistant"));
    }
    ASSERT_TRUE(test::eventually([&] { return engine_.under_way() == 1; }));
    client.close();
    EXPECT_TRUE(test::eventually([&] { return engine_.cancelled_count() == before + 1 && engine_.under_way() == 0; }))
        << streaming;
    EXPECT_TRUE(test::eventually([&] { return !log().empty() && log().back().find(" 499 ") != std::string::npos; }));
  }
}

TEST_F(ChatRoute, QueuedRequestsOfAGoneClientNeverStart) {
  start();
  engine_.script = [](const Request&) {
    return test::Script{.choices = {{}}, .fault = {}, .refusal = {}, .hold_admission = true};
  };
  constexpr int kClients = 200;
  std::vector<std::unique_ptr<HttpClient>> clients;
  const std::string body = chat("\"stream\":true");
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<HttpClient>(service_->port()));
    clients.back()->send(
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    body.size(), body));
  }
  EXPECT_TRUE(test::eventually([&] { return engine_.under_way() == kClients; }));
  clients.clear();
  EXPECT_TRUE(test::eventually([&] { return engine_.under_way() == 0 && engine_.cancelled_count() == kClients; }));
  EXPECT_TRUE(test::eventually([&] { return service_->http_stats().exchanges == 0; }));
}

TEST_F(ChatRoute, AFaultBeforeTheFirstByteIsAnHttpError) {
  for (const char* fields : {"", "\"stream\":true"}) {
    engine_.script = [](const Request&) {
      return test::Script{.choices = {{}}, .fault = {}, .refusal = fail(Code::internal, "non-finite logits")};
    };
    const HttpAnswer answer = post("/v1/chat/completions", chat(fields));
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(answer.header("content-type"), "application/json");
    EXPECT_EQ(Json::parse(answer.body)["error"]["type"], "server_error");
  }
}

TEST_F(ChatRoute, AFaultInTheMiddleEndsTheStreamWithAReason) {
  engine_.script = [this](const Request&) {
    return test::Script{.choices = {test::output_ids(tokenizer_, "a«/think»«response»b")},
                        .fault = fail(Code::internal, "non-finite logits"),
                        .refusal = {}};
  };
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 500);
  const HttpAnswer answer = post("/v1/chat/completions", chat("\"stream\":true"));
  const auto data = test::stream_data(answer.body);
  const Json end = Json::parse(data.back());
  EXPECT_EQ(end["choices"][0]["finish_reason"], "unexpected_state");
  EXPECT_FALSE(end.contains("error"));
}

TEST_F(ChatRoute, AServerThatStopsSaysSo) {
  for (const auto& [reason, text] :
       {std::pair{EndReason::interrupted, "server_interrupted"}, std::pair{EndReason::deadline, "engine_overloaded"}}) {
    say("a", reason);
    const HttpAnswer plain = post("/v1/chat/completions", chat());
    EXPECT_EQ(plain.status, 503) << plain.body;
    EXPECT_EQ(Json::parse(plain.body)["error"]["type"], "unavailable_error");
    const HttpAnswer streamed = post("/v1/chat/completions", chat("\"stream\":true"));
    const Json end = Json::parse(test::stream_data(streamed.body).back());
    EXPECT_EQ(end["choices"][0]["finish_reason"], text);
  }
}

TEST_F(ChatRoute, DrainingRefusesNewWorkAndFinishesTheOld) {
  start();
  engine_.script = [this](const Request&) {
    return test::Script{.choices = {test::output_ids(tokenizer_, "a«/think»«response»b«.»")},
                        .fault = {},
                        .refusal = {},
                        .hold_tokens = true};
  };
  HttpClient old(service_->port()), fresh(service_->port());
  const std::string body = chat("\"stream\":true");
  const std::string text = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n\r\n{}",
      body.size(), body);
  old.send(text);
  old.read_until("\n\n");
  fresh.send(text.substr(0, 10));  // under way before the drain
  service_->drain();
  EXPECT_TRUE(engine_.drained_);
  EXPECT_FALSE(service_->drained());
  fresh.send(text.substr(10));
  const HttpAnswer refused = fresh.read_answer();
  if (refused.status != 0) {
    EXPECT_EQ(refused.status, 503);
  }  // 0: closed as idle before its first byte was seen
  engine_.release();
  EXPECT_THAT(old.read_until("[DONE]"), HasSubstr("[DONE]"));
  EXPECT_TRUE(test::eventually([&] { return service_->drained(); }));
}

TEST_F(ChatRoute, StoppingAtOnceEndsWhatIsUnderWay) {
  start();
  for (const bool streaming : {true, false}) {
    engine_.script = [](const Request&) {
      return test::Script{.choices = {{}}, .fault = {}, .refusal = {}, .hold_tokens = true};
    };
    HttpClient client(service_->port());
    const std::string body = chat(streaming ? "\"stream\":true" : "");
    client.send(
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    body.size(), body));
    ASSERT_TRUE(test::eventually([&] { return engine_.under_way() == 1; }));
    if (streaming) client.read_until("\r\n\r\n"), client.buffer().clear();
    service_->interrupt();
    if (streaming) {
      EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("server_interrupted"));
    } else {
      EXPECT_EQ(client.read_answer().status, 503);
    }
    EXPECT_TRUE(test::eventually([&] { return engine_.under_way() == 0; }));
  }
}

TEST_F(ChatRoute, ASlowReaderIsCutOffAndCancelled) {
  start({}, [](http::Options& http) {
    http.limits.output_bytes = 50'000;
    http.limits.send_buffer_bytes = 4096;
  });
  say("«/think»«response»" + std::string(20'000, 'x'));
  HttpClient client(service_->port(), 4096);
  const std::string body = chat("\"stream\":true");
  client.send(
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  EXPECT_TRUE(
      test::eventually([&] { return service_->http_stats().cut_off == 1 && service_->http_stats().exchanges == 0; }));
  say("fine«/think»«response»ok«.»");
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 200);
}

}  // namespace
}  // namespace k3::server
