// The load generator against a scripted server: times, usage, chunk borders, failures, pacing, interruption, the report.
#include "k3/server/loadgen/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "k3/base/report/xml_test_util.h"
#include "k3/format/json/json_tree.h"
#include "k3/server/loadgen/fake_server_test_util.h"
#include "k3/server/loadgen/load_report.h"

namespace k3::server {
namespace {

using test::FakeConnection;
using test::FakeRequest;
using test::FakeServer;
using test::stream_completion;
using testing::HasSubstr;

std::vector<PlannedRequest> lone_requests(int64_t count, int64_t output = 4) {
  std::vector<PlannedRequest> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].prompt = {{i, 20}};
    out[i].input_tokens = 20;
    out[i].output_tokens = output;
  }
  return out;
}

LoadOptions options_for(const FakeServer& server, Pacing pacing = Pacing::sequential) {
  LoadOptions options;
  options.url = parse_url(server.url()).value();
  options.timeouts = {5, 20};
  options.model = "fake";
  options.pacing = pacing;
  return options;
}

LoadResult run(const std::vector<PlannedRequest>& requests, const LoadOptions& options) {
  const std::atomic<bool> stop{false};
  auto result = run_load(requests, options, stop, {});
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *std::move(result) : LoadResult{};
}

// One request, answered by the script.
RequestResult one(const FakeServer::Script& script, const std::function<void(LoadOptions&)>& change = {}) {
  FakeServer server(script);
  LoadOptions options = options_for(server);
  if (change) change(options);
  LoadResult result = run(lone_requests(1), options);
  EXPECT_EQ(result.requests.size(), 1u);
  return result.requests.empty() ? RequestResult{} : result.requests[0];
}

TEST(LoadRun, MeasuresAStream) {
  const RequestResult r = one([](FakeConnection& c, const FakeRequest&) {
    c.pause(0.05);
    stream_completion(c, 4, 20, 16, 0.02);
  });
  ASSERT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.prompt_tokens, 20);
  EXPECT_EQ(r.cached_tokens, 16);
  EXPECT_EQ(r.output_tokens, 4);
  EXPECT_EQ(r.frames, 4);
  EXPECT_EQ(r.finish_reason, "length");
  EXPECT_GE(r.ttft_s(), 0.07);  // pauses are at least as long as they are asked to be
  EXPECT_GE(r.tpot_s(), 0.019);
  EXPECT_GE(r.e2e_s(), r.ttft_s() + 0.06);
}

TEST(LoadRun, ChunkBordersDoNotMatter) {
  const std::string events =
      "data: {\"choices\":[{\"text\":\"\xC3\xA9\",\"finish_reason\":null}]}\n\n"
      "data: "
      "{\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}]}"
      "\r\n\r\ndata: [DONE]\n\n";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{50}, events.size()}) {
    const RequestResult r = one([&](FakeConnection& c, const FakeRequest&) {
      c.begin_stream();
      for (size_t at = 0; at < events.size(); at += piece) c.chunk(std::string_view(events).substr(at, piece));
      c.end_stream();
    });
    EXPECT_TRUE(r.ok()) << piece << " " << r.error;
    EXPECT_EQ(r.frames, 2);
    EXPECT_EQ(r.output_tokens, 2);
    EXPECT_EQ(r.cached_tokens, -1);
  }
}

TEST(LoadRun, CachedTokensFromTheHeader) {
  const RequestResult r = one([](FakeConnection& c, const FakeRequest&) {
    c.begin_stream("X-Msh-Usage-Prompt-Tokens: 20\r\nX-Msh-Usage-Cached-Tokens: 12\r\n");
    c.event(R"({"choices":[{"text":"a","finish_reason":"stop"}]})");
    c.end_stream();
  });
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.cached_tokens, 12);
  EXPECT_EQ(r.prompt_tokens, 20);
  EXPECT_EQ(r.output_tokens, 1);  // no usage: frames are counted
}

TEST(LoadRun, AnswersThatAreNoStream) {
  const RequestResult r = one([](FakeConnection& c, const FakeRequest&) {
    c.answer(200,
             R"({"choices":[{"text":"abc","finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":3}})");
  });
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.output_tokens, 3);
  EXPECT_EQ(r.ttft_s(), r.e2e_s());
}

TEST(LoadRun, StreamsToTheEndOfTheConnection) {
  const RequestResult r = one([](FakeConnection& c, const FakeRequest&) {
    c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");
    c.write("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    c.close();
  });
  EXPECT_TRUE(r.ok()) << r.error;
}

struct Failure {
  std::string name;
  FakeServer::Script script;
  Outcome outcome;
  std::string says;
};

TEST(LoadRun, FailuresAreNamed) {
  const std::string token = R"({"choices":[{"text":"a","finish_reason":null}]})";
  const std::vector<Failure> table = {
      {"error body", [](auto& c, auto&) { c.answer(400, R"({"error":{"message":"prompt: too long"}})"); },
       Outcome::http_error, "prompt: too long"},
      {"no body", [](auto& c, auto&) { c.answer(503, ""); }, Outcome::http_error, "an empty answer"},
      {"too many", [](auto& c, auto&) { c.answer(429, "slow down", "Retry-After: 1\r\n"); }, Outcome::http_error,
       "slow down"},
      {"closes at once", [](auto& c, auto&) { c.close(); }, Outcome::cut, "waiting for the answer"},
      {"resets", [](auto& c, auto&) { c.reset(); }, Outcome::cut, "closed the connection"},
      {"cut in a chunk", [&](auto& c, auto&) { c.begin_stream(), c.event(token), c.write("ff\r\ndata: {"), c.close(); },
       Outcome::cut, "reading the answer"},
      {"cut between chunks", [&](auto& c, auto&) { c.begin_stream(), c.event(token), c.close(); }, Outcome::cut,
       "reading the answer"},
      {"no end frame", [&](auto& c, auto&) { c.begin_stream(), c.event(token), c.end_stream(); }, Outcome::cut,
       "without a finish_reason"},
      {"no JSON", [&](auto& c, auto&) { c.begin_stream(), c.event("{nonsense"), c.event("[DONE]"), c.end_stream(); },
       Outcome::bad_answer, "no JSON object"},
      {"error frame",
       [&](auto& c, auto&) {
         c.begin_stream(), c.event(R"({"error":{"message":"out of pages"}})"), c.event("[DONE]"), c.end_stream();
       },
       Outcome::bad_answer, "out of pages"},
      {"gave up",
       [&](auto& c, auto&) {
         c.begin_stream(), c.event(token), c.event(R"({"choices":[{"text":"","finish_reason":"server_interrupted"}]})"),
             c.end_stream();
       },
       Outcome::bad_answer, "finish_reason server_interrupted"},
      {"no token", [&](auto& c, auto&) { c.begin_stream(), c.event("[DONE]"), c.end_stream(); }, Outcome::bad_answer,
       "without any token"},
      {"not HTTP", [](auto& c, auto&) { c.write("SSH-2.0-x\r\n\r\n"), c.close(); }, Outcome::broken,
       "waiting for the answer"},
      {"whole answer is no JSON", [](auto& c, auto&) { c.answer(200, "hello"); }, Outcome::bad_answer, "no JSON object"},
  };
  for (const Failure& failure : table) {
    const RequestResult r = one(failure.script);
    EXPECT_EQ(r.outcome, failure.outcome) << failure.name << ": " << r.error;
    EXPECT_THAT(r.error, HasSubstr(failure.says)) << failure.name;
  }
}

TEST(LoadRun, TimeOuts) {
  const auto short_time = [](LoadOptions& o) { o.timeouts.total_s = 0.2; };
  const RequestResult silent = one([](FakeConnection& c, const FakeRequest&) { c.pause(0.6); }, short_time);
  EXPECT_EQ(silent.outcome, Outcome::timed_out);
  EXPECT_THAT(silent.error, HasSubstr("waiting for the answer"));
  const RequestResult slow =
      one([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 10, 1, 0, 0.1); }, short_time);
  EXPECT_EQ(slow.outcome, Outcome::timed_out);
  EXPECT_THAT(slow.error, HasSubstr("reading the answer"));
}

TEST(LoadRun, NothingListens) {
  LoadOptions options;
  {
    FakeServer server([](FakeConnection&, const FakeRequest&) {});
    options = options_for(server);
  }
  const LoadResult result = run(lone_requests(2), options);
  ASSERT_EQ(result.requests.size(), 2u);
  EXPECT_EQ(result.requests[1].outcome, Outcome::refused);
  EXPECT_THAT(result.requests[0].error, HasSubstr("nothing listens at 127.0.0.1:"));
  const auto model = ask_model(options.url, {1, 1}, "", "");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Code::unavailable);
  EXPECT_THAT(model.error().message, HasSubstr("is the server running"));
}

TEST(LoadRun, ConnectionsAreUsedAgainAndStaleOnesReplaced) {
  FakeServer keeps([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 2, 20, 0); });
  const LoadResult result = run(lone_requests(5), options_for(keeps));
  EXPECT_EQ(summarize(result).ok, 5);
  EXPECT_EQ(result.connections, 1);
  // This one closes each connection after its answer without saying so.
  FakeServer closes([](FakeConnection& c, const FakeRequest&) {
    stream_completion(c, 2, 20, 0);
    c.close();
  });
  EXPECT_EQ(summarize(run(lone_requests(5), options_for(closes))).ok, 5);
}

TEST(LoadRun, RetriesAfter429OnlyWhenAsked) {
  const auto busy_once = [](FakeConnection& c, const FakeRequest& r) {
    r.number == 0 ? c.answer(429, "busy", "Retry-After: 1\r\n") : stream_completion(c, 2, 20, 0);
  };
  EXPECT_EQ(one(busy_once).status, 429);
  const RequestResult r = one(busy_once, [](LoadOptions& o) { o.retry_429 = true; });
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.retries, 1);
  EXPECT_GE(r.ttft_s(), 1.0);  // waiting is part of what a user sees
}

TEST(LoadRun, SendsKeyModelAndExactIds) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 2, 20, 0); });
  LoadOptions options = options_for(server);
  options.api_key = "secret";
  run(lone_requests(1), options);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].method + requests[0].target, "POST/v1/completions");
  EXPECT_THAT(requests[0].head, HasSubstr("Authorization: Bearer secret\r\n"));
  EXPECT_THAT(requests[0].head, HasSubstr("Content-Type: application/json\r\n"));
  const JsonNode body = parse_json(requests[0].body).value();
  EXPECT_EQ(body.find("prompt")->items.size(), 20u);
  EXPECT_EQ(body.find("model")->text, "fake");
}

TEST(LoadRun, SequentialIsOneAtATimeInOrder) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 2, 20, 0, 0.002); });
  auto requests = lone_requests(8);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].output_tokens = static_cast<int64_t>(i) + 1, requests[i].think_s = 100;
  const LoadResult result = run(requests, options_for(server));
  EXPECT_EQ(server.most_at_once(), 1);
  ASSERT_EQ(result.requests.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(result.requests[i].index, static_cast<int64_t>(i));
}

TEST(LoadRun, UsersAreAClosedLoop) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 3, 20, 0, 0.02); });
  LoadOptions options = options_for(server, Pacing::users);
  options.users = 4;
  const LoadResult result = run(lone_requests(20), options);
  EXPECT_EQ(summarize(result).ok, 20);
  EXPECT_LE(server.most_at_once(), 4);
  EXPECT_EQ(summarize(result).peak_running, 4);
}

TEST(LoadRun, TurnsWaitForTheAnswerAndTheThinkTime) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 2, 20, 0, 0.03); });
  auto requests = lone_requests(4);
  for (size_t i = 0; i < 4; ++i) {
    requests[i].session = static_cast<int64_t>(i % 2);
    requests[i].turn = static_cast<int64_t>(i / 2);
    requests[i].think_s = i < 2 ? 0 : 0.2;
  }
  LoadOptions options = options_for(server, Pacing::trace);
  options.speed = 2;
  const LoadResult result = run(requests, options);
  ASSERT_EQ(summarize(result).ok, 4);
  std::map<int64_t, RequestResult> by_index;
  for (const RequestResult& r : result.requests) by_index[r.index] = r;
  for (const int64_t i : {0, 1}) EXPECT_GE(by_index[i + 2].start_s, by_index[i].end_s + 0.1);
}

TEST(LoadRun, TheTracesClockAndItsSpeed) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 1, 20, 0); });
  auto requests = lone_requests(3);
  for (size_t i = 0; i < 3; ++i) requests[i].at_s = static_cast<double>(i);
  LoadOptions options = options_for(server, Pacing::trace);
  options.speed = 10;
  const LoadResult result = run(requests, options);
  for (const RequestResult& r : result.requests) {
    EXPECT_NEAR(r.planned_s, 0.1 * static_cast<double>(r.index), 1e-9);
    EXPECT_GE(r.start_s, r.planned_s);
  }
  options.duration_s = 0.15;
  const LoadResult part = run(requests, options);
  EXPECT_EQ(part.requests.size(), 2u);
  EXPECT_EQ(part.planned, 3);
}

TEST(LoadRun, AWaitBeyondTheClockIsNotOverAtOnce) {
  std::atomic<bool> stop{false};
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 1, 20, 0); });
  auto requests = lone_requests(2);
  requests[1].at_s = 1e9;  // the most that a trace may say
  LoadOptions options = options_for(server, Pacing::trace);
  options.speed = 0.001;
  // Between 0.3 and 0.4 s: ticks are 50 ms apart.
  const auto result = run_load(requests, options, stop, [&, ticks = 0](int64_t) mutable { stop = ++ticks > 6; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->requests.size(), 1u);
  EXPECT_TRUE(result->interrupted);
}

TEST(LoadRun, PoissonArrivalsHaveTheirRate) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 1, 20, 0); });
  LoadOptions options = options_for(server, Pacing::poisson);
  options.rate_per_s = 1000;
  const LoadResult result = run(lone_requests(200), options);
  double last = 0;
  for (const RequestResult& r : result.requests) last = std::max(last, r.planned_s);
  EXPECT_NEAR(last, 0.2, 0.06);  // 4 sigma of a sum of 200 exponential times
}

TEST(LoadRun, AnInterruptKeepsWhatIsDone) {
  std::atomic<bool> stop{false};
  FakeServer server([&](FakeConnection& c, const FakeRequest& r) {
    if (r.number < 3) return stream_completion(c, 2, 20, 0);
    if (r.number == 3) return c.answer(429, "busy", "Retry-After: 30\r\n");
    stop = true;
    c.pause(0.3);
    c.close();
  });
  LoadOptions options = options_for(server, Pacing::users);
  options.users = 2;
  options.retry_429 = true;
  const auto result = run_load(lone_requests(50), options, stop, {});
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->interrupted);
  const LoadSummary s = summarize(*result);
  EXPECT_EQ(s.ok, 3);
  EXPECT_EQ(s.cancelled, 2);
  EXPECT_EQ(s.failed, 0);
  EXPECT_EQ(s.planned, 50);
}

TEST(LoadRun, ManyStreamsAtOnce) {
  FakeServer server([](FakeConnection& c, const FakeRequest&) { stream_completion(c, 20, 20, 5, 0.01); });
  LoadOptions options = options_for(server, Pacing::users);
  options.users = 64;
  const LoadResult result = run(lone_requests(192, 20), options);
  const LoadSummary s = summarize(result);
  EXPECT_EQ(s.ok, 192);
  EXPECT_EQ(s.output_tokens, 192 * 20);
  EXPECT_EQ(s.gap_s.count, 192 * 19);
  EXPECT_DOUBLE_EQ(s.hit_rate(), 0.25);
  EXPECT_LE(result.connections, 64);
}

TEST(AskModel, FindsTheModel) {
  FakeServer server([](FakeConnection&, const FakeRequest&) {},
                    R"({"object":"list","data":[{"id":"a"},{"id":"b","meta":{"n_vocab":99},"max_model_len":7}]})");
  const Url url = parse_url(server.url()).value();
  EXPECT_EQ(ask_model(url, {1, 5}, "", "")->id, "a");
  const auto b = ask_model(url, {1, 5}, "", "b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->n_vocab, 99);
  EXPECT_EQ(b->max_model_len, 7);
  EXPECT_THAT(ask_model(url, {1, 5}, "", "c").error().message, HasSubstr("serves no model 'c'; it has a, b"));
  FakeServer other([](FakeConnection&, const FakeRequest&) {}, "<html>");
  EXPECT_THAT(ask_model(parse_url(other.url()).value(), {1, 5}, "", "").error().message, HasSubstr("no list of models"));
}

TEST(LoadReport, JsonAndHtmlHoldTheRun) {
  FakeServer server([](FakeConnection& c, const FakeRequest& r) {
    r.number % 5 == 4 ? c.answer(503, R"({"error":{"message":"draining <now>"}})") : stream_completion(c, 3, 20, 8);
  });
  auto requests = lone_requests(10);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].session = 0, requests[i].turn = static_cast<int64_t>(i);
  const LoadResult result = run(requests, options_for(server));
  const LoadSummary summary = summarize(result);
  EXPECT_EQ(summary.ok, 8);
  ASSERT_EQ(summary.errors.size(), 1u);
  EXPECT_EQ(summary.errors[0].kind, "HTTP 503");
  EXPECT_EQ(summary.errors[0].count, 2);
  const Settings settings = {{"model", "fake"}};
  const std::string text = load_json(result, summary, settings);
  const auto root = parse_json(text);
  ASSERT_TRUE(root.ok()) << root.error().message;
  EXPECT_EQ(root->find("requests")->items.size(), 10u);
  EXPECT_EQ(root->find("summary")->find("hit_rate")->raw, "0.4");
  EXPECT_EQ(root->find("summary")->find("ttft_s")->find("count")->raw, "8");
  EXPECT_EQ(root->find("errors")->items[0].find("first")->text, "draining <now>");
  const std::string html = load_html(result, summary, settings, "Load");
  EXPECT_EQ(k3::test::xml_problem(html.substr(html.find('\n') + 1)), "");
  for (const char* part : {"Requests under way", "waiting for the first token", "from the cache",
                           "Time to first token over time", ">failed<", "less than half cached", "TPOT of a request",
                           "gap between two frames", "Prompt tokens by turn", "draining &lt;now&gt;", "HTTP 503", "40 %"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(LoadReport, NothingMeasuredIsStillAPage) {
  LoadResult result;
  const LoadSummary summary = summarize(result);
  EXPECT_EQ(summary.sent, 0);
  const std::string html = load_html(result, summary, {}, "Load");
  EXPECT_EQ(k3::test::xml_problem(html.substr(html.find('\n') + 1)), "");
  EXPECT_THAT(html, HasSubstr("no data"));
  EXPECT_TRUE(parse_json(load_json(result, summary, {})).ok());
}

TEST(LoadSummary, SpreadsEqualANaiveComputation) {
  LoadResult result;
  std::vector<double> ttft;
  const Rng rng(5, 5);
  for (uint64_t i = 0; i < 101; ++i) {
    RequestResult r;
    r.outcome = Outcome::ok;
    r.start_s = static_cast<double>(i);
    const double wait = rng.uniform(i);
    ttft.push_back(wait);
    r.first_token_s = r.start_s + wait;
    r.last_token_s = r.first_token_s + 3;
    r.end_s = r.last_token_s + 1;
    r.output_tokens = 4;
    r.frames = 3;
    result.requests.push_back(r);
  }
  std::sort(ttft.begin(), ttft.end());
  const LoadSummary s = summarize(result);
  EXPECT_NEAR(s.ttft_s.p50, ttft[50], 1e-9);
  EXPECT_NEAR(s.ttft_s.p90, ttft[90], 1e-9);
  EXPECT_NEAR(s.ttft_s.p95, ttft[95], 1e-9);
  EXPECT_NEAR(s.ttft_s.p99, ttft[99], 1e-9);
  EXPECT_NEAR(s.tpot_s.p50, 1, 1e-9);
  EXPECT_NEAR(s.e2e_s.max, ttft.back() + 4, 1e-9);
}

}  // namespace
}  // namespace k3::server
