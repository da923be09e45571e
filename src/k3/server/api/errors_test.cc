// Every row of the error table, every rule of every field, before and after parsing.
#include "k3/server/api/errors.h"

#include "k3/base/utf8.h"
#include "k3/server/api/scripted_service_test.h"

namespace k3::server {
namespace {

using test::HttpAnswer;
using test::HttpClient;
using test::Json;
using test::ServiceTest;
using testing::HasSubstr;

class Errors : public ServiceTest {
 protected:
  void SetUp() override { say("«/think»«response»ok«.»"); }

  // The error object of an answer, after checking that it has the shape of one.
  static Json error_of(const HttpAnswer& answer, int status) {
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_TRUE(is_utf8(answer.body));
    const Json body = Json::parse(answer.body, nullptr, false);
    EXPECT_TRUE(body.is_object() && body.contains("error")) << answer.body;
    if (!body.is_object() || !body.contains("error")) return Json::object();
    const Json& error = body["error"];
    EXPECT_TRUE(error["message"].is_string() && !error["message"].get<std::string>().empty());
    EXPECT_TRUE(error["type"].is_string() && !error["type"].get<std::string>().empty());
    EXPECT_TRUE(error["param"].is_string() || error["param"].is_null());
    EXPECT_TRUE(error["code"].is_string() || error["code"].is_null());
    EXPECT_FALSE(answer.header("x-request-id").empty());
    return error;
  }
};

struct FieldCase {
  const char* fields;
  const char* param;
};

TEST_F(Errors, WhatAMessageQuotesIsShortened) {
  start();
  std::string role;
  for (int i = 0; i < 100000; ++i) role += "\xC3\xA9";
  const HttpAnswer answer = post("/v1/chat/completions", R"({"model":"tiny","messages":[{"role":")" + role + R"("}]})");
  EXPECT_LT(answer.body.size(), 2200u);
  const Json error = error_of(answer, 400);
  const std::string message = error["message"];
  EXPECT_EQ(error["param"], "messages[0].role");
  EXPECT_TRUE(message.starts_with("messages[0].role: '\xC3\xA9")) << message;
  EXPECT_TRUE(message.ends_with("is not one of system, user, assistant, tool")) << message;
  EXPECT_EQ(message.find("\xEF\xBF\xBD"), std::string::npos) << message;  // no character is cut
}

TEST_F(Errors, FieldsOfChatRequests) {
  for (
      const FieldCase& c : std::vector<FieldCase>{
          {R"("max_tokens":0)", "max_tokens"},
          {R"("max_completion_tokens":-1)", "max_completion_tokens"},
          {R"("max_tokens":"5")", "max_tokens"},
          {R"("max_tokens":1.5)", "max_tokens"},
          {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
          {R"("stream":"yes")", "stream"},
          {R"("stream_options":{"include_usage":true})", "stream_options"},
          {R"("stream":true,"stream_options":3)", "stream_options"},
          {R"("temperature":-0.1)", "temperature"},
          {R"("temperature":2.1)", "temperature"},
          {R"("temperature":"hot")", "temperature"},
          {R"("top_p":0)", "top_p"},
          {R"("top_p":1.1)", "top_p"},
          {R"("top_k":-2)", "top_k"},
          {R"("min_p":2)", "min_p"},
          {R"("presence_penalty":2.5)", "presence_penalty"},
          {R"("frequency_penalty":-2.5)", "frequency_penalty"},
          {R"("n":0)", "n"},
          {R"("n":1000)", "n"},
          {R"("seed":"x")", "seed"},
          {R"("stop":["a","b","c","d","e"])", "stop"},
          {R"("stop":"")", "stop"},
          {R"("stop":["a",""])", "stop"},
          {R"("stop":[1])", "stop[0]"},
          {R"("stop":7)", "stop"},
          {R"("stop_token_ids":[999999])", "stop_token_ids[0]"},
          {R"("logit_bias":{"999999":1})", "logit_bias"},
          {R"("logit_bias":{"x":1})", "logit_bias"},
          {R"("logit_bias":{"-1":1})", "logit_bias"},
          {R"("logit_bias":{"5":101})", "logit_bias"},
          {R"("logit_bias":[])", "logit_bias"},
          {R"("top_logprobs":3)", "top_logprobs"},
          {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
          {R"("logprobs":3)", "logprobs"},
          {R"("parallel_tool_calls":1)", "parallel_tool_calls"},
          {R"("reasoning_effort":"enormous")", "reasoning_effort"},
          {R"("reasoning_effort":3)", "reasoning_effort"},
          {R"("thinking":{"type":"perhaps"})", "thinking.type"},
          {R"("response_format":{"type":"xml"})", "response_format.type"},
          {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
          {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})", "response_format.json_schema.name"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"","schema":{}}})",
           "response_format.json_schema.name"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})", "response_format.json_schema.schema"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":[]}})",
           "response_format.json_schema.schema"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":1}})",
           "response_format.json_schema.strict"},
          {R"("tools":[{"type":"web"}])", "tools[0].type"},
          {R"("tools":[{"type":"function","function":{"name":"1a"}}])", "tools[0].function.name"},
          {R"("tools":[{"type":"function","function":{"name":"a@b"}}])", "tools[0].function.name"},
          {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
          {R"("tool_choice":"required")", "tool_choice"},
          {R"("tools":[],"tool_choice":"required")", "tool_choice"},
          {R"("tool_choice":"maybe")", "tool_choice"},
          {R"("tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":{"type":"function","function":{"name":"b"}})",
           "tool_choice.function.name"},
          {R"("continue_final_message":true)", "messages[0]"},
          {R"("add_generation_prompt":3)", "add_generation_prompt"}}) {
    const Json error = error_of(post("/v1/chat/completions", chat(c.fields)), 400);
    EXPECT_EQ(error["type"], "invalid_request_error") << c.fields;
    EXPECT_EQ(error["param"], c.param) << c.fields << "\n" << error;
  }
  const std::string longest(256, 'a');
  const auto named = [](const std::string& name) {
    return fmt::format(R"("tools":[{{"type":"function","function":{{"name":"{}"}}}}])", name);
  };
  EXPECT_EQ(post("/v1/chat/completions", chat(named(longest))).status, 200);
  EXPECT_EQ(error_of(post("/v1/chat/completions", chat(named(longest + "a"))), 400)["code"], "invalid_tool_name");
}

TEST_F(Errors, LegalFieldsThatLookOdd) {
  for (const char* fields :
       {R"("max_tokens":1)", R"("temperature":0)", R"("temperature":2)", R"("top_k":-1)", R"("stop":null)",
        R"("logprobs":true,"top_logprobs":0)", R"("tools":[])", R"("reasoning_effort":"minimal")",
        R"("reasoning_effort":"medium")", R"("reasoning_effort":"xhigh")", R"("reasoning_effort":"none")",
        R"("thinking":{"type":"adaptive","keep":"none"})", R"("seed":-5)", R"("max_tokens":5.0)",
        R"("response_format":{"type":"text"})", R"("some_private_field":{"a":[1]})", R"("user":"u","store":true)"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat(fields)).status, 200) << fields;
  }
}

TEST_F(Errors, BodiesThatAreNoRequests) {
  for (const char* body : {"", "{", "[]", "\"x\"", "null", "{\"model\":\"tiny\",\"model\":\"tiny\",\"messages\":[]}",
                           "{} trailing", "{\"model\":\"\xff\"}", "{\"a\":\"\\ud800\"}"}) {
    EXPECT_EQ(error_of(post("/v1/chat/completions", body), 400)["code"], "invalid_json") << body;
  }
  std::string deep(100'000, '[');
  error_of(post("/v1/chat/completions", deep), 400);
  EXPECT_EQ(error_of(post("/v1/chat/completions", R"({"messages":[]})"), 400)["param"], "model");
  EXPECT_EQ(error_of(post("/v1/chat/completions", R"({"model":"tiny"})"), 400)["param"], "messages");
  EXPECT_EQ(error_of(post("/v1/chat/completions", R"({"model":"tiny","messages":[]})"), 400)["param"], "messages");
  EXPECT_EQ(error_of(post("/v1/chat/completions", R"({"model":7,"messages":[]})"), 400)["param"], "model");
}

TEST_F(Errors, MessagesAreCheckedWithTheirPath) {
  const auto with = [&](std::string_view messages) {
    return error_of(post("/v1/chat/completions", fmt::format(R"({{"model":"tiny","messages":{}}})", messages)), 400);
  };
  EXPECT_EQ(with(R"([{"role":"user"}])")["param"], "messages[0].content");
  EXPECT_EQ(with(R"([{"role":"robot","content":"x"}])")["param"], "messages[0].role");
  EXPECT_EQ(with(R"([{"role":"tool","content":"x"}])")["param"], "messages[0].tool_call_id");
  EXPECT_EQ(with(R"([{"role":"user","content":[{"type":"hologram"}]}])")["param"], "messages[0].content[0].type");
  EXPECT_EQ(
      with(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%%%"}}]}])")["code"],
      "invalid_image");
  EXPECT_EQ(
      with(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://example.org/a.png"}}]}])")["code"],
      "invalid_image");
  EXPECT_EQ(
      with(
          R"([{"role":"user","content":"a","tools":[]}, {"role":"user","tools":[{"type":"function","function":{"name":"f"}}],"content":""}])")
          ["param"],
      "messages[0].tools");
  EXPECT_EQ(with(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])")["param"],
            "messages[0].tool_calls[0].function.arguments");
}

TEST_F(Errors, TheContextIsTooShort) {
  const std::string text(5000, 'x');
  const Json error = error_of(
      post("/v1/chat/completions", fmt::format(R"({{"model":"tiny","messages":[{{"role":"user","content":"{}"}}]}})", text)),
      400);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("4096"));
  EXPECT_EQ(error_of(post("/v1/completions", fmt::format(R"({{"model":"tiny","prompt":"{}"}})", text)), 400)["code"],
            "context_length_exceeded");
}

TEST_F(Errors, Authentication) {
  start([](Context& context) { context.options.api_keys = {"first-key", "second-key"}; });
  for (const char* headers : {"", "Authorization: Bearer wrong\r\n", "Authorization: first-key\r\n",
                              "x-api-key: first-ke\r\n", "x-api-key: \r\n"}) {
    EXPECT_EQ(error_of(post("/v1/chat/completions", chat(), headers), 401)["type"], "authentication_error") << headers;
  }
  for (const char* headers :
       {"Authorization: Bearer first-key\r\n", "authorization: bearer second-key\r\n", "x-api-key: first-key\r\n"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat(), headers).status, 200) << headers;
  }
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(get("/").status, 200);
  const Json body = Json::parse(post("/v1/messages", "{}").body);
  EXPECT_EQ(body["type"], "error");
  EXPECT_EQ(body["error"]["type"], "authentication_error");
}

TEST_F(Errors, RoutesModelsAndSlots) {
  EXPECT_EQ(error_of(get("/v1/nothing"), 404)["type"], "not_found_error");
  EXPECT_EQ(error_of(get("/v1/models/other"), 404)["code"], "model_not_found");
  EXPECT_EQ(
      error_of(post("/v1/chat/completions", R"({"model":"other","stream":true,"messages":[{"role":"user","content":"x"}]})"),
               404)["code"],
      "model_not_found");
  EXPECT_EQ(error_of(post("/slots/x?action=erase", "{}"), 404)["type"], "not_found_error");
  EXPECT_EQ(error_of(post("/slots/7?action=save", R"({"filename":"a"})"), 404)["type"], "not_found_error");
  EXPECT_EQ(error_of(post("/slots/1?action=dance", "{}"), 400)["param"], "action");
  EXPECT_EQ(error_of(post("/slots/1?action=save", R"({"filename":"../a"})"), 400)["param"], "filename");
  const Json unsupported = error_of(post("/slots/1?action=restore", R"({"filename":"a"})"), 501);
  EXPECT_EQ(unsupported["type"], "not_implemented");
  EXPECT_EQ(unsupported["param"], "filename");
}

TEST_F(Errors, MethodsLengthsAndTypes) {
  const HttpAnswer method = get("/v1/chat/completions");
  error_of(method, 405);
  EXPECT_EQ(method.header("allow"), "POST");
  error_of(post("/v1/models", "{}"), 405);
  start();
  const auto raw = [&](std::string_view text) {
    HttpClient client(service_->port());
    client.send(text);
    return client.read_answer();
  };
  error_of(raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n"), 411);
  error_of(raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Type: "
               "text/plain\r\n\r\n{}"),
           415);
  error_of(raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"), 415);
  error_of(raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
               "application/json\r\nContent-Encoding: gzip\r\n"
               "Content-Length: 2\r\n\r\n{}"),
           415);
  error_of(raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nContent-Type: "
               "application/json\r\n\r\n"),
           413);
  error_of(raw("NONSENSE\r\n\r\n"), 400);
}

TEST_F(Errors, AFullQueueSaysWhenToComeBack) {
  engine_.script = [](const Request&) {
    return test::Script{.choices = {{}}, .fault = {}, .refusal = fail(Code::exhausted, "full")};
  };
  const HttpAnswer answer = post("/v1/chat/completions", chat("\"stream\":true"));
  EXPECT_EQ(error_of(answer, 429)["type"], "rate_limit_error");
  EXPECT_EQ(answer.header("retry-after"), "3");
}

TEST_F(Errors, WhatIsNotThere) {
  EXPECT_EQ(error_of(post("/v1/embeddings", "{}"), 501)["type"], "not_implemented");
  const char* audio = R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]})";
  EXPECT_EQ(error_of(post("/v1/chat/completions", audio), 501)["param"], "messages[0].content[0].type");
  // A PNG of one pixel: well formed, but vision does not run yet.
  const char* image =
      R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}]}]})";
  EXPECT_EQ(error_of(post("/v1/chat/completions", image), 501)["param"], "messages[0].content[0]");
  EXPECT_EQ(error_of(post("/v1/chat/completions", chat(R"("response_format":{"type":"json_object"})")), 501)["type"],
            "not_implemented");
  error_of(post("/reset_prefix_cache", "{}"), 404);
}

TEST_F(Errors, AGrammarThatCannotBeHonoured) {
  start([](Context& context) {
    context.compile_grammar = [](const ChatRequest& request, const Prompt&) -> Result<std::shared_ptr<const Grammar>> {
      if (request.response_format.kind == ResponseFormat::Kind::text) return std::shared_ptr<const Grammar>();
      return fail(Code::invalid_argument,
                  "response_format.json_schema.schema.properties.a.not: the keyword 'not' cannot be honoured");
    };
  });
  const Json error =
      error_of(post("/v1/chat/completions",
                    chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}})")),
               400);
  EXPECT_EQ(error["param"], "response_format.json_schema.schema.properties.a.not");
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 200);
}

TEST_F(Errors, TextsAreValidWhateverTheyQuote) {
  const Json error = error_of(post("/v1/chat/completions", chat(R"("reasoning_effort":"\u0000\u001f é 你")")), 400);
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("你"));
  EXPECT_EQ(error_json(bad_request("", "bytes \xff\xfe")),
            R"({"error":{"message":"bytes ��","type":"invalid_request_error","param":null,"code":"invalid_value"}})");
}

TEST_F(Errors, TheTableFromCodeToStatus) {
  for (const auto& [code, status, type] :
       std::vector<std::tuple<Code, int, std::string>>{{Code::invalid_argument, 400, "invalid_request_error"},
                                                       {Code::not_found, 404, "not_found_error"},
                                                       {Code::corrupt, 400, "invalid_request_error"},
                                                       {Code::exhausted, 400, "invalid_request_error"},
                                                       {Code::deadline, 503, "unavailable_error"},
                                                       {Code::unavailable, 503, "unavailable_error"},
                                                       {Code::device_lost, 500, "server_error"},
                                                       {Code::unsupported, 501, "not_implemented"},
                                                       {Code::internal, 500, "server_error"}}) {
    const ApiError error = api_error(fail(code, "x"));
    EXPECT_EQ(error.status, status);
    EXPECT_EQ(error.type, type);
  }
}

TEST_F(Errors, HealthSeesAWedge) {
  EXPECT_EQ(get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(get("/health?deep=1").status, 200);
  engine_.script = [](const Request&) { return test::Script{.choices = {{}}, .fault = {}, .refusal = {}}; };
  EXPECT_EQ(get("/health?deep=1").status, 503);  // not a token
  engine_.stats.last_step_age_seconds = 1e6;
  EXPECT_EQ(error_of(get("/health"), 503)["type"], "unavailable_error");
}

TEST_F(Errors, Cors) {
  start([](Context& context) { context.options.cors = "localhost"; });
  const auto from = [&](std::string_view origin) {
    return get("/v1/models", fmt::format("Origin: {}\r\n", origin)).header("access-control-allow-origin");
  };
  EXPECT_EQ(from("http://localhost:3000"), "http://localhost:3000");
  EXPECT_EQ(from("http://127.0.0.1"), "http://127.0.0.1");
  EXPECT_EQ(from("http://localhost.example.org"), "");
  EXPECT_EQ(from("https://example.org"), "");
  HttpClient client(service_->port());
  const HttpAnswer preflight = client.ask("OPTIONS", "/v1/chat/completions", {},
                                          "Origin: http://localhost\r\nAccess-Control-Request-Headers: authorization\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization");
  EXPECT_THAT(preflight.header("access-control-allow-methods"), HasSubstr("POST"));
}

// What HTTP itself refuses: a page must be able to read why, and a client to parse it.
TEST_F(Errors, RefusalsBeforeTheGateHaveItsHeadersAndTheEnvelopeOfTheirPath) {
  start([](Context& context) { context.options.cors = "localhost"; },
        [](http::Options& http) {
          http.limits.body_bytes = 1000;
          http.limits.header_bytes = 4096;
          http.limits.head_seconds = http.limits.body_seconds = 0.2;
        });
  const std::string origin = "Host: localhost\r\nOrigin: http://localhost:3000\r\n";
  const std::string json = "Content-Type: application/json\r\n";
  const struct { std::string rest; int status; } table[] = {
      {json + "Content-Length: 1001\r\n\r\n", 413},
      {json + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x'), 413},
      {json + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {json + "Transfer-Encoding: xchunked\r\n\r\n", 400},
      {"Content-Length: -1\r\n\r\n", 400},
      {"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"x-long: " + std::string(5000, 'y') + "\r\n\r\n", 431},
      {json + "Content-Length: 5\r\n\r\nab", 408},  // the rest never comes
  };
  for (const auto& row : table) {
    for (const std::string path : {"/v1/messages", "/messages/count_tokens", "/v1/chat/completions"}) {
      HttpClient client(service_->port());
      client.send("POST " + path + " HTTP/1.1\r\n" + origin + row.rest);
      const HttpAnswer answer = client.read_answer();
      SCOPED_TRACE(fmt::format("{} {}", path, answer.body));
      EXPECT_EQ(answer.status, row.status);
      EXPECT_EQ(answer.header("access-control-allow-origin"), "http://localhost:3000");
      const Json body = Json::parse(answer.body);
      EXPECT_EQ(body.value("type", ""), path.find("messages") != std::string::npos ? "error" : "");
      EXPECT_TRUE(body["error"]["message"].is_string());
    }
  }
  // Nothing of it is known: no page's request, and the common envelope.
  HttpClient nonsense(service_->port());
  nonsense.send("NONSENSE\r\n\r\n");
  const HttpAnswer answer = nonsense.read_answer();
  EXPECT_EQ(answer.header("access-control-allow-origin"), "");
  EXPECT_FALSE(Json::parse(answer.body).contains("type"));
}

TEST_F(Errors, WithoutCorsOthersAreNotLetIn) {
  EXPECT_EQ(get("/v1/models", "Origin: http://localhost\r\n").header("access-control-allow-origin"), "");
}

HttpAnswer ask_host(uint16_t port, std::string_view host, std::string_view path = "/v1/models") {
  HttpClient client(port);
  client.send(
      fmt::format("GET {} HTTP/1.1\r\n{}{}{}\r\n", path, host.empty() ? "" : "Host: ", host, host.empty() ? "" : "\r\n"));
  return client.read_answer();
}

TEST_F(Errors, OnALoopbackAddressForeignNamesInHostAreRefused) {
  start();
  for (const char* host : {"localhost", "LocalHost:8080", "app.localhost:1", "localhost.", "127.0.0.1", "192.168.1.7:8080",
                           "[::1]", "[fe80::1]:8080", ""}) {
    EXPECT_EQ(ask_host(service_->port(), host).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost",
                           "127.0.0.1.evil.example", "1.2.3", "[::1].evil.example", "[evil]", "[::1", "::1", ":8080"}) {
    for (const char* path : {"/v1/models", "/", "/metrics", "/health"}) {
      const Json error = error_of(ask_host(service_->port(), host, path), 403);
      EXPECT_EQ(error["type"], "permission_error");
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("Host header"));
    }
  }
  EXPECT_THAT(ask_host(service_->port(), "evil.example:80").body, HasSubstr("--allowed-host evil.example\""));
  EXPECT_EQ(Json::parse(ask_host(service_->port(), "evil.example", "/v1/messages").body)["type"], "error");
  HttpClient old(service_->port());
  old.send("GET /v1/models HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_answer().status, 200);
}

TEST_F(Errors, HostsThatTheOperatorAllows) {
  start([](Context& context) { context.options.allowed_hosts = {"llm.Example.org", "box"}; });
  for (const char* host : {"llm.example.org", "LLM.example.org:443", "box", "localhost"}) {
    EXPECT_EQ(ask_host(service_->port(), host).status, 200) << host;
  }
  EXPECT_EQ(ask_host(service_->port(), "a.llm.example.org").status, 403);
}

TEST_F(Errors, OnOtherAddressesTheHostIsCheckedOnDemandOnly) {
  start({}, [](http::Options& o) { o.host = "0.0.0.0"; });
  EXPECT_EQ(ask_host(service_->port(), "evil.example").status, 200);
  start([](Context& context) { context.options.allowed_hosts = {"box"}; }, [](http::Options& o) { o.host = "0.0.0.0"; });
  EXPECT_EQ(ask_host(service_->port(), "evil.example").status, 403);
  EXPECT_EQ(ask_host(service_->port(), "box").status, 200);
}

TEST_F(Errors, NestedFieldsOfSchemasDoNotLookLikePaths) {
  EXPECT_EQ(api_error(fail(Code::internal, "read file: x")).param, "");
  EXPECT_EQ(api_error(fail(Code::invalid_argument, "tools[1].function.name: bad")).param, "tools[1].function.name");
}

}  // namespace
}  // namespace k3::server
