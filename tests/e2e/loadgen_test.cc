// k3 loadgen as a user runs it, against a scripted server.
#include "k3/base/report/xml_test_util.h"
#include "k3/format/json/json_tree.h"
#include "k3/server/loadgen/fake_server_test_util.h"
#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using server::test::FakeConnection;
using server::test::FakeRequest;
using server::test::FakeServer;
using server::test::stream_completion;
using testing::HasSubstr;

// Counts prompts as a real server would, and finds those it has seen.
void answer(FakeConnection& c, const FakeRequest& r) {
  const auto body = parse_json(r.body);
  const JsonNode* prompt = body.ok() ? body->find("prompt") : nullptr;
  if (prompt == nullptr) return c.answer(400, R"({"error":{"message":"no prompt"}})");
  const auto tokens = static_cast<int64_t>(prompt->items.size());
  stream_completion(c, std::stoll(std::string(body->find("max_tokens")->raw)), tokens, tokens / 2);
}

const std::string kTrace =
    R"({"timestamp":0,"input_length":600,"output_length":9,"hash_ids":[1,2],"session":0,"turn":0,"turn_end":609,"think_ms":0})"
    "\n"
    R"({"timestamp":5,"input_length":700,"output_length":2,"hash_ids":[1,3],"session":1,"turn":0,"turn_end":702,"think_ms":0})"
    "\n"
    R"({"timestamp":9,"input_length":900,"output_length":30,"hash_ids":[1,4],"session":0,"turn":1,"turn_end":930,"think_ms":10})"
    "\n";

TEST(Loadgen, PrintsATable) {
  FakeServer server(answer);
  const std::string out =
      k3_ok({"loadgen", server.url(), "-n", "6", "--input", "20", "--output", "5", "--users", "3"});
  EXPECT_THAT(out, HasSubstr("6 of 6 requests succeeded"));
  for (const char* word :
       {"TTFT", "TPOT", "end to end", "p50", "p90", "p95", "p99", "from the cache", "tokens/s", "hit rate 50 %"}) {
    EXPECT_THAT(out, HasSubstr(word));
  }
}

TEST(Loadgen, ReplaysATraceAsJsonAndHtml) {
  FakeServer server(answer);
  const Scratch scratch;
  put_file(scratch.path("t.jsonl"), kTrace);
  const std::string out = k3_ok({"loadgen", server.url(), "--trace", scratch.path("t.jsonl"), "--scale", "0.25",
                                 "--max-output", "4", "--sequential", "--json", "--html", scratch.path("page.html")});
  const auto root = parse_json(out);
  ASSERT_TRUE(root.ok()) << out;
  const auto& requests = root->find("requests")->items;
  ASSERT_EQ(requests.size(), 3u);
  const char* lengths[] = {"150", "175", "225"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests[i].find("index")->raw, std::to_string(i));
    EXPECT_EQ(requests[i].find("prompt_tokens")->raw, lengths[i]);
    EXPECT_EQ(requests[i].find("input_tokens")->raw, lengths[i]);
  }
  EXPECT_EQ(requests[2].find("output_tokens")->raw, "4");
  EXPECT_EQ(requests[2].find("turn")->raw, "1");
  // Equal ids of the trace went out as equal tokens: the first block of 512 has 128 of them.
  const auto sent = server.requests();
  const JsonNode a = parse_json(sent[0].body).value(), b = parse_json(sent[1].body).value();
  const auto& x = a.find("prompt")->items;
  const auto& y = b.find("prompt")->items;
  const auto same =
      std::mismatch(x.begin(), x.end(), y.begin(), [](const auto& p, const auto& q) { return p.raw == q.raw; });
  EXPECT_EQ(same.first - x.begin(), 128);
  const std::string html = file_text(scratch.path("page.html"));
  EXPECT_EQ(k3::test::xml_problem(html.substr(html.find('\n') + 1)), "");
  EXPECT_THAT(html, HasSubstr("Prompt tokens by turn of the session"));
}

TEST(Loadgen, WarmUpIsNotCounted) {
  FakeServer server(answer);
  const std::string out = k3_ok({"loadgen", server.url(), "-n", "3", "--warmup", "2", "--output", "2"});
  EXPECT_THAT(out, HasSubstr("3 of 3 requests"));
  EXPECT_EQ(server.requests().size(), 5u);
}

TEST(Loadgen, AnInterruptPrintsWhatIsDone) {
  FakeServer server([](FakeConnection& c, const FakeRequest& r) { r.number < 2 ? answer(c, r) : c.pause(1); });
  Process process(k3_spawn({"loadgen", server.url(), "-n", "100"}));
  while (server.requests().size() < 3) process.pause(0.02);
  process.send(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 of 3 requests succeeded"));
  EXPECT_THAT(outcome.out, HasSubstr("(interrupted)"));
  EXPECT_THAT(outcome.err, HasSubstr("97 of 100 requests were not sent"));
}

TEST(Loadgen, FailuresAreCountedAndExplained) {
  FakeServer server([](FakeConnection& c, const FakeRequest& r) {
    r.number == 1 ? answer(c, r) : c.answer(503, R"({"error":{"message":"draining"}})");
  });
  const Outcome some = k3({"loadgen", server.url(), "-n", "3"});
  EXPECT_EQ(some.code, 0);
  EXPECT_THAT(some.out, HasSubstr("failed: 2 x HTTP 503; the first: draining"));
  const Outcome all = k3({"loadgen", server.url(), "-n", "3"});
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.err, HasSubstr("no request succeeded; HTTP 503: draining"));
}

TEST(Loadgen, KeysComeFromAFile) {
  FakeServer server(answer);
  const Scratch scratch;
  put_file(scratch.path("key"), "sk-abc\nsecond line\n");
  k3_ok({"loadgen", server.url(), "-n", "1", "--api-key-file", scratch.path("key")});
  EXPECT_THAT(server.requests()[0].head, HasSubstr("Bearer sk-abc\r\n"));
  put_file(scratch.path("key"), "");
  EXPECT_EQ(k3({"loadgen", server.url(), "--api-key-file", scratch.path("key")}).code, 2);
}

struct Refusal {
  std::vector<std::string> arguments;
  int code;
  std::string says;
};

TEST(Loadgen, WrongUseIsRefusedBeforeAnythingIsSent) {
  FakeServer server(answer);
  const Scratch scratch;
  put_file(scratch.path("bad.jsonl"), kTrace + "{\"timestamp\":10}\n");
  const std::string url = server.url();
  const std::vector<Refusal> table = {
      {{"loadgen", "https://localhost"}, 5, "no TLS here"},
      {{"loadgen", "ftp://x"}, 2, "only http:// is known"},
      {{"loadgen"}, 2, "URL is required"},
      {{"loadgen", "127.0.0.1:1"}, 1, "is the server running"},
      {{"loadgen", url, "--trace", scratch.path("none")}, 3, "none"},
      {{"loadgen", url, "--trace", scratch.path("bad.jsonl")}, 2, "bad.jsonl:4: input_length: missing"},
      {{"loadgen", url, "--trace", scratch.path("bad.jsonl"), "--turns", "2"}, 2, "belong to synthetic load"},
      {{"loadgen", url, "--scale", "0.5"}, 2, "belong to --trace"},
      {{"loadgen", url, "--input", "normal:3"}, 2, "lognormal:MEDIAN:SIGMA"},
      {{"loadgen", url, "--users", "2", "--rate", "3"}, 2, "excludes"},
      {{"loadgen", url, "--body", "[]"}, 2, "--body: an array where an object belongs"},
      {{"loadgen", url, "--body", R"({"stream":false})"}, 2, "'stream' is set by the program"},
      {{"loadgen", url, "--model", "other"}, 3, "serves no model 'other'; it has fake"},
  };
  for (const Refusal& refusal : table) {
    const Outcome outcome = k3(refusal.arguments);
    EXPECT_EQ(outcome.code, refusal.code) << refusal.says << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(refusal.says));
  }
  EXPECT_TRUE(server.requests().empty());
}

}  // namespace
}  // namespace k3::e2e
