// Text completions, Anthropic messages, Responses, tokens, models, slots, metrics, the page.
#include "k3/server/api/scripted_service_test.h"

namespace k3::server {
namespace {

using test::HttpAnswer;
using test::HttpClient;
using test::Json;
using test::ServiceTest;
using testing::ElementsAre;
using testing::HasSubstr;

// "event: NAME" and its data, of dialects whose events have names.
struct Event {
  std::string name;
  Json data;
};

std::vector<Event> named_events(std::string_view body) {
  std::vector<Event> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n"), line = body.find('\n');
    EXPECT_TRUE(body.starts_with("event: "));
    EXPECT_EQ(body.substr(line + 1, 6), "data: ");
    if (end == std::string_view::npos) break;
    out.push_back({std::string(body.substr(7, line - 7)), Json::parse(body.substr(line + 7, end - line - 7))});
    EXPECT_EQ(out.back().data["type"], out.back().name);
    body.remove_prefix(end + 2);
  }
  return out;
}

class Dialects : public ServiceTest {
 protected:
  Json ok(const HttpAnswer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    return Json::parse(answer.body);
  }
  // Raw text: every byte a token, no markers.
  void say_text(std::string_view text, EndReason end = EndReason::length) {
    const std::vector<int32_t> ids = tokenizer_.encode(text).value();
    engine_.script = [ids, end](const Request&) {
      return test::Script{.choices = {ids}, .end = end, .fault = {}, .refusal = {}};
    };
  }
};

// ---- text completions ----

TEST_F(Dialects, TextCompletion) {
  say_text("once upon");
  const Json answer = ok(post("/v1/completions", R"({"model":"tiny","prompt":"It was","max_tokens":100})"));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "once upon");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 7);  // [BOS] and six letters
  ok(post("/v1/completions", R"({"model":"tiny","prompt":"a"})"));
  EXPECT_EQ(engine_.last().max_tokens, 16);
  EXPECT_EQ(engine_.last().stop_ids.front(), tokenizer_.special("[EOS]"));
}

TEST_F(Dialects, TextPromptsOfEveryShape) {
  say_text("x");
  ok(post("/v1/completions", R"({"model":"tiny","prompt":[65,66]})"));
  EXPECT_THAT(engine_.last().prompt, ElementsAre(65, 66));
  const Json answer = ok(post("/v1/completions", R"({"model":"tiny","prompt":["a","b"],"n":2})"));
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["choices"][3]["index"], 3);
  ok(post("/v1/completions", R"({"model":"tiny","prompt":[[65],[66]],"add_special_tokens":false})"));
  ok(post("/v1/completions", R"({"model":"tiny","prompt":"<|open|>"})"));
  EXPECT_EQ(engine_.last().prompt.size(), 9u);
  ok(post("/v1/completions", R"({"model":"tiny","prompt":"<|open|>","parse_special":true,"add_special_tokens":false})"));
  EXPECT_THAT(engine_.last().prompt, ElementsAre(259));
  for (const char* fields : {R"("prompt":"")", R"("prompt":[])", R"("prompt":[[]])", R"("prompt":7)", R"("prompt":[99999])",
                             R"("prompt":"a","suffix":"b")", R"("prompt":"a","best_of":0)",
                             R"("prompt":"a","n":3,"best_of":2)", R"("prompt":"a","logprobs":21)", R"("x":1)"}) {
    const HttpAnswer refused =
        post("/v1/completions", fmt::format(R"({{"model":"tiny","add_special_tokens":false,{}}})", fields));
    EXPECT_EQ(refused.status, 400) << fields;
  }
}

TEST_F(Dialects, TextStreamEqualsWhole) {
  say_text("né, STOP more");
  const char* body = R"({{"model":"tiny","prompt":"a","max_tokens":50,"stop":"STOP","logprobs":1,"stream":{}}})";
  const Json answer = ok(post("/v1/completions", fmt::format(fmt::runtime(body), "false")));
  std::string text, finish;
  for (const Json& frame : test::stream_frames(post("/v1/completions", fmt::format(fmt::runtime(body), "true")).body)) {
    text += frame["choices"][0]["text"].get<std::string>();
    if (!frame["choices"][0]["finish_reason"].is_null()) finish = frame["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(text, "né, ");
  EXPECT_EQ(text, answer["choices"][0]["text"]);
  EXPECT_EQ(finish, "stop");
  const Json logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"n", "é", ",", " "}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(logprobs["token_logprobs"].size(), 4u);
}

TEST_F(Dialects, EchoAddsThePrompt) {
  say_text("c");
  const Json answer =
      ok(post("/v1/completions",
              R"({"model":"tiny","prompt":"ab","echo":true,"logprobs":0,"add_special_tokens":false,"max_tokens":1})"));
  EXPECT_EQ(answer["choices"][0]["text"], "abc");
  const Json logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"a", "b", "c"}));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2}));
  EXPECT_TRUE(engine_.last().prompt_logprobs);
}

TEST_F(Dialects, StreamedEchoHasTheLogprobsOfThePrompt) {
  say_text("c");
  const char* body =
      R"({{"model":"tiny","prompt":["abc","de"],"n":2,"echo":true,"logprobs":1,"add_special_tokens":false,"max_tokens":1,"stream":{}}})";
  const Json answer = ok(post("/v1/completions", fmt::format(fmt::runtime(body), "false")));
  std::vector<std::string> texts(4);
  std::vector<Json> logprobs(4);
  for (const Json& frame : test::stream_frames(post("/v1/completions", fmt::format(fmt::runtime(body), "true")).body)) {
    const Json& choice = frame["choices"][0];
    const size_t c = choice["index"];
    texts[c] += choice["text"].get<std::string>();
    if (choice["logprobs"].is_null()) continue;
    for (const auto& [key, list] : choice["logprobs"].items()) {
      for (const Json& value : list) logprobs[c][key].push_back(value);
    }
  }
  for (size_t c = 0; c < 4; ++c) {
    EXPECT_EQ(texts[c], answer["choices"][c]["text"]);
    EXPECT_EQ(logprobs[c], answer["choices"][c]["logprobs"]);
  }
  EXPECT_EQ(logprobs[0]["token_logprobs"][2], -0.5);
}

// ---- tokens ----

TEST_F(Dialects, Tokens) {
  const Json vllm = ok(post("/tokenize", R"({"prompt":"é<|open|>"})"));
  EXPECT_EQ(vllm["count"], 10);
  EXPECT_EQ(vllm["max_model_len"], 4096);
  EXPECT_EQ(ok(post("/tokenize", R"({"content":"ab"})"))["tokens"], Json({97, 98}));
  EXPECT_EQ(ok(post("/tokenize", R"({"content":"a<|open|>","parse_special":true})"))["tokens"], Json({97, 259}));
  EXPECT_EQ(ok(post("/tokenize", R"({"content":"a","add_special_tokens":true})"))["tokens"], Json({256, 97}));
  const Json pieces = ok(post("/tokenize", R"({"content":"aé","with_pieces":true})"))["tokens"];
  EXPECT_EQ(pieces[0]["piece"], "a");
  EXPECT_EQ(pieces[1]["piece"], Json({0xc3}));
  const Json text = ok(post("/detokenize", R"({"tokens":[97,195,169]})"));
  EXPECT_EQ(text["prompt"], "aé");
  EXPECT_EQ(text["content"], "aé");
  EXPECT_EQ(ok(post("/detokenize", R"({"tokens":[195]})"))["content"], "\xef\xbf\xbd");
  EXPECT_EQ(ok(post("/detokenize", R"({"tokens":[195,97],"as_bytes":true})"))["content"], "w2E=");
  for (const char* bad : {R"({"tokens":[-1]})", R"({"tokens":[100000]})", R"({"tokens":"a"})", R"({})"})
    EXPECT_EQ(post("/detokenize", bad).status, 400);
  for (const char* bad : {R"({})", R"({"prompt":5})", R"({"content":"a","with_pieces":"x"})"})
    EXPECT_EQ(post("/tokenize", bad).status, 400);
  const std::string round = "Zwölf Boxkämpfer 你好 \\u0000 😀\\n";
  const Json ids = ok(post("/tokenize", fmt::format(R"({{"content":"{}"}})", round)))["tokens"];
  const Json back = ok(post("/detokenize", Json({{"tokens", ids}}).dump()));
  EXPECT_EQ(back["content"], Json::parse("\"" + round + "\""));
}

TEST_F(Dialects, TheTemplate) {
  const Json answer = ok(post("/apply-template", chat()));
  EXPECT_THAT(answer["prompt"].get<std::string>(),
              HasSubstr("<|open|>message role=\"user\"<|sep|>hi<|close|>message<|sep|>"));
  EXPECT_EQ(answer["tokens"], ok(post("/tokenize", chat()))["tokens"]);
}

// ---- what is served ----

TEST_F(Dialects, ModelsAndVersion) {
  const Json list = ok(get("/v1/models"));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(list["data"][0]["architecture"]["output_modalities"], Json({"text"}));
  EXPECT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(ok(get("/v1/models/k3"))["id"], "k3");
  EXPECT_EQ(ok(get("/models"))["data"].size(), 2u);
  EXPECT_TRUE(ok(get("/version")).contains("version"));
  const Json props = ok(get("/props"));
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_EQ(props["capacity"][0]["sequences"], 8);
}

TEST_F(Dialects, Slots) {
  engine_.stats.slots = {{0, SlotState::decode, "req-1", 100, 90, 64, 10}, {1, SlotState::idle, "", 50, 0, 0, 0}};
  const Json slots = ok(get("/slots"));
  EXPECT_EQ(slots[0]["state"], "decode");
  EXPECT_EQ(slots[0]["is_processing"], true);
  EXPECT_EQ(slots[1]["tokens"], 50);
  const Json saved = ok(post("/slots/1?action=save", R"({"filename":"a.bin"})"));
  EXPECT_EQ(saved["id_slot"], 1);
  EXPECT_EQ(saved["n_tokens"], 12);
  EXPECT_EQ(ok(post("/slots/0?action=fork", "{}"))["id_slot"], 1);
  EXPECT_EQ(ok(post("/slots/0?action=erase", ""))["action"], "erase");
}

TEST_F(Dialects, Metrics) {
  start([](Context& context) {
    context.options.vllm_metrics = true;
    context.options.developer = true;
  });
  engine_.stats.requests_done = 10;
  engine_.stats.requests_failed = 1;
  engine_.stats.requests_cancelled = 3;
  engine_.stats.requests_rejected = 2;
  engine_.stats.cache.prompt_tokens = 100;
  engine_.stats.cache.matched_tokens = 30;
  engine_.stats.cache.hit_tokens = 20;
  engine_.stats.resumed_prompt_tokens = 50;
  engine_.stats.resumed_tokens = 40;
  engine_.stats.cache.pages = 10;
  engine_.stats.cache.pages_running_mla = 2;
  engine_.stats.cache.pages_running_kda = 5;
  engine_.stats.ttft = {{0.1, 1}, {1, 2, 3}, 9};
  const std::string text = get("/metrics").body;
  for (const char* line : {"k3:requests_total{end=\"done\"} 6\n", "k3:requests_total{end=\"failed\"} 1\n",
                           "k3:requests_total{end=\"cancelled\"} 3\n", "k3:requests_total{end=\"rejected\"} 2\n",
                           "k3:prefix_query_tokens_total 150\n", "k3:prefix_matched_tokens_total 70\n",
                           "k3:prefix_hit_tokens_total 60\n",
                           "vllm:prefix_cache_queries_total{model_name=\"tiny\"} 150\n",
                           "vllm:prefix_cache_hits_total{model_name=\"tiny\"} 60\n",
                           "k3:requests_cancelled_total 3\n", "k3:pages{use=\"running_kda\"} 5\n",
                           "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.7\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"1\"} 3\n",
                           "k3:time_to_first_token_seconds_count 6\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "prefix_cache_queries_total", "prefix_cache_hits_total",
        "prompt_tokens_total", "generation_tokens_total", "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_success_total", "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total"}) {
    EXPECT_THAT(text, HasSubstr(std::string("vllm:") + name));
  }
  ok(post("/reset_prefix_cache", "{}"));
  EXPECT_EQ(engine_.resets, 1);
}

TEST_F(Dialects, OwnMetricsAlone) { EXPECT_EQ(get("/metrics").body.find("vllm:"), std::string::npos); }

TEST_F(Dialects, ThePage) {
  const HttpAnswer page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.body, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page.header("content-security-policy"), HasSubstr("default-src 'self'"));
  EXPECT_EQ(get("/index.html").body, page.body);
}

// ---- Anthropic ----

std::string anthropic(std::string_view fields = "") {
  return fmt::format(R"({{"model":"tiny","max_tokens":200,"messages":[{{"role":"user","content":"hi"}}]{}{}}})",
                     fields.empty() ? "" : ",", fields);
}

TEST_F(Dialects, AnthropicMessage) {
  say("hello«/response»«/message»«.»");
  const Json answer = ok(post("/v1/messages", anthropic()));
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["content"], Json::parse(R"([{"type":"text","text":"hello"}])"));
  EXPECT_EQ(answer["stop_reason"], "end_turn");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  EXPECT_GT(answer["usage"]["input_tokens"].get<int64_t>(), 0);
  EXPECT_EQ(ok(post("/v1/messages/count_tokens", anthropic()))["input_tokens"], answer["usage"]["input_tokens"]);
}

TEST_F(Dialects, AnthropicStreamWithThinkingAndTools) {
  say("hm«/think»«response»let me see«/response»«tools»«call tool=\"f\"»«argument key=\"k\" "
      "type=\"string\"»v«/argument»«/call»«/tools»«.»");
  const std::string fields =
      R"("thinking":{"type":"enabled","budget_tokens":2048},"tools":[{"name":"f","input_schema":{"type":"object"}}])";
  const Json answer = ok(post("/v1/messages", anthropic(fields)));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  ASSERT_EQ(answer["content"].size(), 3u);
  EXPECT_EQ(answer["content"][0]["thinking"], "hm");
  EXPECT_EQ(answer["content"][2]["input"], Json::parse(R"({"k":"v"})"));
  const auto events = named_events(post("/v1/messages", anthropic(fields + R"(,"stream":true)")).body);
  std::vector<Json> blocks;
  for (const Event& event : events) {
    if (event.name == "content_block_start") {
      EXPECT_EQ(event.data["index"], blocks.size());
      blocks.push_back(event.data["content_block"]);
      if (blocks.back()["type"] == "tool_use") blocks.back()["input"] = "";
    } else if (event.name == "content_block_delta") {
      const Json& delta = event.data["delta"];
      for (const auto& [from, to] :
           {std::pair{"thinking", "thinking"}, {"text", "text"}, {"partial_json", "input"}, {"signature", "signature"}}) {
        if (delta.contains(from)) blocks.back()[to] = blocks.back()[to].get<std::string>() + delta[from].get<std::string>();
      }
    }
  }
  ASSERT_EQ(blocks.size(), 3u);
  blocks[2]["input"] = Json::parse(blocks[2]["input"].get<std::string>());
  EXPECT_EQ(Json(blocks), answer["content"]);
  EXPECT_EQ(events.front().name, "message_start");
  EXPECT_EQ(events.back().name, "message_stop");
  EXPECT_EQ(events[events.size() - 2].data["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[events.size() - 2].data["usage"], answer["usage"]);
}

TEST_F(Dialects, AnthropicStopsAndEmptyAnswers) {
  say("one STOP two«.»");
  const Json stopped = ok(post("/v1/messages", anthropic(R"("stop_sequences":["STOP"])")));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "STOP");
  say("one STOP two«.»");
  EXPECT_EQ(ok(post("/v1/messages", anthropic(R"("stop_sequences":["v","w","x","y","z","STOP"])")))["stop_sequence"], "STOP");
  const HttpAnswer wrong = post("/v1/messages", anthropic(R"("stop_sequences":["a",3])"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, testing::HasSubstr("stop_sequences[1]: must be a string"));
  say("«.»");
  EXPECT_EQ(ok(post("/v1/messages", anthropic()))["content"], Json::parse(R"([{"type":"text","text":""}])"));
  const auto events = named_events(post("/v1/messages", anthropic(R"("stream":true)")).body);
  EXPECT_EQ(events[2].data["content_block"]["type"], "text");
}

TEST_F(Dialects, AnthropicConversation) {
  say("x");
  ok(post(
      "/v1/messages",
      R"({"model":"tiny","max_tokens":9,"system":[{"type":"text","text":"be brief"}],"thinking":{"type":"enabled","budget_tokens":50000},
    "messages":[{"role":"user","content":"q"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"why","signature":"s"},{"type":"text","text":"a"},{"type":"tool_use","id":"t1","name":"f","input":{"k":[1]}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"}]},{"type":"text","text":"and?"}]}]})"));
  std::string prompt;
  for (const int32_t id : engine_.last().prompt) prompt += tokenizer_.bytes(id);
  EXPECT_EQ(
      test::shorten(prompt),
      "{message role=\"system\" type=\"thinking-effort\"}E(max){/message}{.}{message role=\"system\"}be brief{/message}{.}"
      "{message role=\"user\"}q{/message}{.}{message role=\"assistant\"}{think}why{/think}{response}a{/response}{tools}"
      "{call tool=\"f\" index=\"1\"}{argument key=\"k\" type=\"array\"}[1]{/argument}{/call}{/tools}{/message}{.}"
      "{message role=\"tool\" tool=\"f\" index=\"1\"}r{/message}{.}{message role=\"user\"}and?{/message}{.}"
      "{message role=\"assistant\"}{think}");
}

TEST_F(Dialects, AnthropicErrors) {
  for (const char* body :
       {"{", R"({"model":"tiny","messages":[{"role":"user","content":"x"}]})",
        R"({"model":"tiny","max_tokens":5,"messages":[]})",
        R"({"model":"tiny","max_tokens":5,"messages":[{"role":"system","content":"x"}]})",
        R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":[{"type":"hologram"}]}]})"}) {
    const HttpAnswer answer = post("/v1/messages", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(Json::parse(answer.body)["type"], "error");
    EXPECT_EQ(Json::parse(answer.body)["error"]["type"], "invalid_request_error");
  }
  EXPECT_EQ(Json::parse(post("/v1/messages", R"({"model":"no","max_tokens":5,"messages":[{"role":"user","content":"x"}]})")
                            .body)["error"]["type"],
            "not_found_error");
}

// ---- silence ----

TEST_F(Dialects, SilentStreamsArePingedWhenAsked) {
  start([](Context& context) { context.options.ping_seconds = 0.02; });
  const std::vector<int32_t> ids = test::output_ids(tokenizer_, "«/think»«response»ok«.»");
  engine_.script = [ids](const Request&) {
    test::Script script{.choices = {ids}, .fault = {}, .refusal = {}};
    script.hold_tokens = true;
    return script;
  };
  HttpClient anthropic_client(service_->port()), chat_client(service_->port());
  const auto ask = [&](HttpClient& client, std::string_view path, std::string_view body) {
    client.send(
        fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                    path, body.size(), body));
  };
  ask(anthropic_client, "/v1/messages", anthropic(R"("stream":true)"));
  ask(chat_client, "/v1/chat/completions", chat(R"("stream":true)"));
  for (int i = 0; i < 3; ++i) {  // the first belongs to the beginning of the stream
    EXPECT_NE(anthropic_client.read_until("event: ping\ndata: {\"type\":\"ping\"}\n\n"), "");
  }
  EXPECT_NE(chat_client.read_until(": ping\n\n"), "");
  EXPECT_NE(chat_client.read_until(": ping\n\n"), "");
  engine_.release();
  EXPECT_THAT(anthropic_client.read_until("message_stop\"}\n\n"), HasSubstr("\"text\":\"k\""));
  EXPECT_THAT(chat_client.read_until("[DONE]\n\n"), HasSubstr("\"content\":\"k\""));
}

// ---- Responses ----

TEST_F(Dialects, Response) {
  say("hm«/think»«response»hello«/response»«tools»«call tool=\"f\"»«argument key=\"k\" "
      "type=\"number\"»1«/argument»«/call»«/tools»«.»");
  const std::string fields =
      R"("model":"tiny","input":"hi","instructions":"be brief","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}])";
  const Json answer = ok(post("/v1/responses", "{" + fields + "}"));
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  ASSERT_EQ(answer["output"].size(), 3u);
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "hello");
  EXPECT_EQ(answer["output"][2]["arguments"], R"({"k": 1})");
  EXPECT_EQ(answer["output"][2]["call_id"], "f_0");
  const auto events = named_events(post("/v1/responses", "{" + fields + R"(,"stream":true})").body);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].data["sequence_number"], i);
  EXPECT_EQ(events.front().name, "response.created");
  EXPECT_EQ(events.back().name, "response.completed");
  Json got = events.back().data["response"];
  ASSERT_EQ(got["output"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    Json item = got["output"][i], expected = answer["output"][i];
    item.erase("id");
    expected.erase("id");
    EXPECT_EQ(item, expected);
  }
  EXPECT_EQ(got["usage"], answer["usage"]);
}

TEST_F(Dialects, AResponseSaysAgainWhichToolsItWasGiven) {
  start([](Context& context) {
    context.compile_grammar = [](const ChatRequest&, const Prompt&) { return std::shared_ptr<const Grammar>(); };
  });
  say("«/think»«response»x«.»");
  const Json plain = ok(post("/v1/responses", R"({"model":"tiny","input":"hi"})"));
  EXPECT_EQ(plain["tools"], Json::array());
  EXPECT_EQ(plain["tool_choice"], "auto");
  EXPECT_EQ(plain["parallel_tool_calls"], true);
  const Json tools =
      Json::parse(R"([{"type":"function","name":"f","description":"line\nbreak","parameters":{"type":"object"}}])");
  const auto body = [&](const char* choice, bool stream) {
    return fmt::format(
        "{{\"model\":\"tiny\",\"input\":\"hi\",\"parallel_tool_calls\":false,\"stream\":{},\n "
        "\"tools\":{},\n\"tool_choice\":{}}}",
        stream, tools.dump(2), choice);
  };
  for (const char* choice : {"\"none\"", "{\"type\": \"function\",\n\"name\": \"f\"}"}) {
    const Json answer = ok(post("/v1/responses", body(choice, false)));
    EXPECT_EQ(answer["tools"], tools);
    EXPECT_EQ(answer["tool_choice"], Json::parse(choice));
    EXPECT_EQ(answer["parallel_tool_calls"], false);
    const auto events = named_events(post("/v1/responses", body(choice, true)).body);
    ASSERT_FALSE(events.empty());
    for (const Event& event : {events.front(), events.back()}) {
      for (const char* key : {"tools", "tool_choice", "parallel_tool_calls"}) {
        EXPECT_EQ(event.data["response"][key], answer[key]) << event.name;
      }
    }
  }
}

TEST_F(Dialects, ResponseConversationAndErrors) {
  say("x");
  const Json answer =
      ok(post("/v1/responses", R"({"model":"tiny","max_output_tokens":1,"reasoning":{"effort":"low"},"input":[
    {"role":"user","content":[{"type":"input_text","text":"q"}]},{"type":"reasoning","content":[{"type":"reasoning_text","text":"why"}]},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{\"k\":1}"},{"type":"function_call_output","call_id":"c","output":"r"}]})"));
  EXPECT_EQ(answer["status"], "incomplete");
  std::string prompt;
  for (const int32_t id : engine_.last().prompt) prompt += tokenizer_.bytes(id);
  EXPECT_THAT(test::shorten(prompt),
              HasSubstr("{message role=\"user\"}q{/message}{.}{message "
                        "role=\"assistant\"}{think}why{/think}{response}{/response}{tools}{call tool=\"f\""));
  EXPECT_THAT(test::shorten(prompt), HasSubstr("E(low)"));
  for (const char* fields :
       {R"("input":"x","previous_response_id":"r")", R"("input":[])", R"("input":"x","background":true)", R"("x":1)",
        R"("input":"x","tools":[{"type":"web_search"}])", R"("input":[{"type":"mystery"}])",
        R"("input":"x","conversation":"c")", R"("input":"x","instructions":5)", R"("input":"x","reasoning":"high")",
        R"("input":"x","text":"json")"}) {
    EXPECT_EQ(post("/v1/responses", fmt::format(R"({{"model":"tiny",{}}})", fields)).status, 400) << fields;
  }
  for (const auto& [item, param] : {std::pair(R"({"role":"user"})", "input[0].content"),
                                    std::pair(R"({"type":"function_call_output","call_id":"c"})", "input[0].output"),
                                    std::pair(R"({"type":"function_call","call_id":"c","name":"f","arguments":5})", "input[0].arguments"),
                                    std::pair(R"({"type":"mystery"})", "input[0].type")}) {
    const Json error =
        Json::parse(post("/v1/responses", fmt::format(R"({{"model":"tiny","input":[{}]}})", item)).body)["error"];
    EXPECT_EQ(error["param"], param) << error;
  }
  const std::string text(5000, 'x');
  const HttpAnswer full = post("/v1/responses", fmt::format(R"({{"model":"tiny","input":"{}"}})", text));
  EXPECT_EQ(Json::parse(full.body)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(Json::parse(full.body)["error"]["param"], "input");
}

}  // namespace
}  // namespace k3::server
