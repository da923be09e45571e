// k3 sim as a user runs it.
#include "k3/base/report/xml_test_util.h"
#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kAgents = source_path("tests/data/traces/agent_sessions_a.jsonl.zst");
const std::string kConversation = source_path("tests/data/traces/mooncake_conversation.jsonl.zst");

using Arguments = std::vector<std::string>;

Arguments with(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// K3 on 16 H200 of one layout, unless a test is about the choice.
Arguments k3_sim(const std::string& trace, const Arguments& more = {}) {
  return with({"sim", "k3", trace, "--hw", "h200", "--gpus", "16", "--tp", "8", "--pp", "2", "--dp", "1", "--dcp", "1",
               "--kcp", "1", "--moe", "tp"},
              more);
}

json simulated(const Arguments& arguments) { return json::parse(k3_ok(with(arguments, {"--json", "-"}))); }

// All end once; what is skipped and what is computed is what was asked.
void expect_all_done(const json& root) {
  const json& s = root.at("summary");
  EXPECT_EQ(s.at("done"), s.at("requests"));
  EXPECT_EQ(s.at("prompt_tokens"), s.at("input_tokens"));
  int64_t cached = 0, generated = 0;
  for (const json& r : root.at("requests")) {
    cached += r.at("cached_tokens").get<int64_t>();
    generated += r.at("output_tokens").get<int64_t>();
    EXPECT_LE(r.at("arrival_s"), r.at("admitted_s"));
    EXPECT_LE(r.at("admitted_s"), r.at("first_token_s"));
    EXPECT_LE(r.at("first_token_s"), r.at("end_s"));
    EXPECT_LE(r.at("cached_tokens"), r.at("matched_tokens"));
    EXPECT_LT(r.at("matched_tokens"), r.at("input_tokens"));
    if (r.at("preemptions") == 0 && r.at("restarts") == 0) {
      EXPECT_EQ(r.at("computed_tokens").get<int64_t>() + r.at("cached_tokens").get<int64_t>(),
                r.at("input_tokens").get<int64_t>());
    }
  }
  EXPECT_EQ(s.at("cached_tokens"), cached);
  EXPECT_EQ(s.at("generated_tokens"), generated);
}

TEST(Sim, ARequestAloneTakesWhatThePlanSays) {
  const json sim = simulated(k3_sim("synthetic", {"-n", "1", "--input", "8192", "--output", "129"}));
  const Arguments plan = {"plan",  "k3", "--hw",  "h200", "--gpus",  "16",   "--tp",     "8",   "--pp",    "2", "--dcp", "1",
                          "--kcp", "1",  "--moe", "tp",   "--input", "8192", "--output", "129", "--users", "1", "--json"};
  const json point = json::parse(k3_ok(plan)).at("answer").at("point");
  EXPECT_NEAR(sim.at("summary").at("ttft_s").at("p50").get<double>(), point.at("ttft_p50_seconds").get<double>(), 1e-9);
  // The mean history of its steps is half a token from the plan's: far below a hundredth of a percent.
  EXPECT_NEAR(sim.at("summary").at("tpot_s").at("p50").get<double>() / point.at("tpot_p50_seconds").get<double>(), 1, 1e-5);
}

TEST(Sim, ReadsEveryTrace) {
  const Scratch scratch;
  put_file(
      scratch.path("azure.csv"),
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n");
  put_file(scratch.path("burst.csv"),
           "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
           "Type\n5,a,1,ChatGPT,472,18,490,Conversation "
           "log\n45,a,1,ChatGPT,1087,230,1317,Conversation log\n");
  put_file(scratch.path("mooncake.jsonl"), R"({"timestamp":0,"input_length":1025,"output_length":7,"hash_ids":[4,5,9]})"
                                           "\n");
  for (const char* name : {"azure.csv", "burst.csv", "mooncake.jsonl"}) {
    SCOPED_TRACE(name);
    expect_all_done(simulated(k3_sim(scratch.path(name))));
  }
  expect_all_done(simulated(k3_sim(kConversation, {"--limit", "300"})));
  expect_all_done(simulated(k3_sim(kAgents, {"--sessions", "0-11"})));
}

TEST(Sim, PacesRequests) {
  const Arguments few = {"-n", "24", "--input", "uniform:1000:4000", "--output", "lognormal:60:0.5", "--turns", "3"};
  for (const Arguments& pace :
       std::vector<Arguments>{{"--users", "4"}, {"--users", "2", "--think-ms", "2000"}, {"--rate", "2"}, {"--sequential"}}) {
    SCOPED_TRACE(pace.front());
    const json root = simulated(with(k3_sim("synthetic", few), pace));
    expect_all_done(root);
    // Each turn begins with all before it.
    EXPECT_GT(root.at("summary").at("hit_ratio"), 0.4);
  }
  const json cut = simulated(with(k3_sim("synthetic", few), {"--rate", "2", "--duration", "2"}));
  EXPECT_GT(cut.at("summary").at("not_sent"), 0);
}

TEST(Sim, TheRuleIsTheGoldenOne) {
  const json golden =
      json::parse(file_text(source_path("tests/data/traces/prefix_golden.json"))).at("agent_sessions_a.jsonl");
  for (const char* policy : {"end", "every", "end+second+32768"}) {
    SCOPED_TRACE(policy);
    const json s = simulated(k3_sim(kAgents, {"--rule", "--policy", policy})).at("summary");
    EXPECT_EQ(s.at("cached_tokens"), golden.at(policy).at("hit_tokens"));
    EXPECT_EQ(s.at("matched_tokens"), golden.at(policy).at("mla_hit_tokens"));
    EXPECT_EQ(s.at("checkpoints"), golden.at(policy).at("checkpoints"));
  }
}

TEST(Sim, ComparesPolicies) {
  const json root =
      simulated(k3_sim(kAgents, {"--limit", "200", "--unbounded", "--no-keep-idle", "--policies", "every,end,end+8192"}));
  const json& p = root.at("policies");
  ASSERT_EQ(p.size(), 3u);
  EXPECT_EQ(p[0].at("policy"), "every");
  EXPECT_GT(p[0].at("summary").at("checkpoint_bytes"), p[1].at("summary").at("checkpoint_bytes"));
  EXPECT_GE(p[0].at("summary").at("cached_tokens"), p[2].at("summary").at("cached_tokens"));
  EXPECT_GE(p[2].at("summary").at("cached_tokens"), p[1].at("summary").at("cached_tokens"));
}

TEST(Sim, PrefillAndDecodeApart) {
  const json root = simulated(k3_sim(kAgents, {"--limit", "150", "--prefill", "2", "--decode", "1"}));
  expect_all_done(root);
  const json slow = simulated(
      k3_sim("synthetic", {"-n", "1", "--output", "3", "--prefill", "1", "--decode", "1", "--transfer-gbps", "1"}));
  const json quick = simulated(
      k3_sim("synthetic", {"-n", "1", "--output", "3", "--prefill", "1", "--decode", "1", "--transfer-gbps", "1000"}));
  // 69 states in FP32 with their windows, and 8192 tokens of 24 x 576 values in BF16: 0.676 GB.
  const double bytes = 69 * (1572864 * 4 + 110592 * 2.0) + 8192 * 24 * 576 * 2.0;
  const auto end = [](const json& r) { return r.at("requests")[0].at("end_s").get<double>(); };
  EXPECT_NEAR(end(slow) - end(quick), bytes / 1e9 * (1 - 1e-3), 1e-6);
  EXPECT_EQ(slow.at("summary").at("ttft_s").at("p50"), quick.at("summary").at("ttft_s").at("p50"));
}

TEST(Sim, DecodeEnginesMayBeOthers) {
  const Arguments alike = k3_sim("synthetic", {"-n", "2", "--output", "60", "--prefill", "1", "--decode", "1"});
  const json root = simulated(with(alike, {"--decode-with", "--hw gb300 --gpus 8 --tp 8 --moe tp"}));
  expect_all_done(root);
  const std::string machine = root.at("settings").at("machine");
  EXPECT_THAT(machine, HasSubstr("16 x H200-SXM, TP8 PP2; decode: 8 x GB300-NVL72, TP8"));
  const auto p50 = [](const json& r, const char* what) { return r.at("summary").at(what).at("p50").get<double>(); };
  EXPECT_NEAR(p50(root, "ttft_s"), p50(simulated(alike), "ttft_s"), 1e-9);
  EXPECT_LT(p50(root, "tpot_s"), p50(simulated(alike), "tpot_s"));
}

TEST(Sim, TiersBringPrefixesBack) {
  const Arguments small = k3_sim(kAgents, {"--limit", "150", "--pool-bytes", "1GB", "--no-keep-idle"});
  const json without = simulated(small), with_host = simulated(with(small, {"--host-bytes", "100GB"}));
  expect_all_done(with_host);
  EXPECT_EQ(without.at("summary").at("fetched_bytes"), 0);
  EXPECT_GT(with_host.at("summary").at("fetched_bytes"), 0);
  EXPECT_GT(with_host.at("summary").at("cached_tokens"), without.at("summary").at("cached_tokens"));
  const json remote = simulated(with(small, {"--remote-bytes", "100GB", "--remote-ms", "5"}));
  EXPECT_GT(remote.at("summary").at("fetched_bytes"), 0);
}

TEST(Sim, SpeculationMakesStepsFewer) {
  const Arguments one = k3_sim("synthetic", {"-n", "4", "--output", "400"});
  const json plain = simulated(one);
  for (const char* acceptance : {"0.7", "1.84,2.45,2.87"}) {
    const json drafted = simulated(with(one, {"--draft", "3", "--acceptance", acceptance}));
    EXPECT_EQ(drafted.at("summary").at("generated_tokens"), 1600);
    EXPECT_LT(drafted.at("summary").at("steps").get<double>(), 0.6 * plain.at("summary").at("steps").get<double>());
  }
}

TEST(Sim, FailuresLoseNoRequest) {
  const Arguments fleet = k3_sim(kAgents, {"--limit", "300", "--replicas", "3"});
  const json root = simulated(with(fleet, {"--fail", "1@20+30", "--fail", "0@40"}));
  expect_all_done(root);
  EXPECT_GT(root.at("summary").at("restarts"), 0);
  EXPECT_GT(root.at("summary").at("lost_tokens"), 0);
  EXPECT_EQ(root.at("summary").at("generated_tokens"), simulated(fleet).at("summary").at("generated_tokens"));
}

TEST(Sim, WhatNoReplicaIsLeftForIsLost) {
  const Scratch scratch;
  const Arguments run = k3_sim("synthetic", {"-n", "40", "--rate", "1", "--output", "20", "--fail", "0@20"});
  const Outcome text = k3(with(run, {"--csv", scratch.path("run.csv")}));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("lost: the failure at 20 s left no replica"));
  const json root = simulated(run);
  const auto lost = root.at("summary").at("lost").get<size_t>();
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(root.at("summary").at("not_sent"), 0);
  EXPECT_THAT(text.out, HasSubstr(", " + std::to_string(lost) + " lost"));
  EXPECT_EQ(count_of(file_text(scratch.path("run.csv")), ",lost,"), lost);
}

TEST(Sim, SessionsKeepTheirReplica) {
  const Arguments fleet = k3_sim(kAgents, {"--limit", "300", "--replicas", "4"});
  const json root = simulated(fleet);
  std::map<int64_t, int64_t> home;
  for (const json& r : root.at("requests")) {
    const auto [at, first] = home.try_emplace(r.at("session").get<int64_t>(), r.at("replica").get<int64_t>());
    EXPECT_EQ(at->second, r.at("replica"));
  }
  const json spread = simulated(with(fleet, {"--routing", "round-robin"}));
  EXPECT_GE(root.at("summary").at("cached_tokens"), spread.at("summary").at("cached_tokens"));
}

TEST(Sim, BudgetsHoldLongPromptsBack) {
  const json root =
      simulated(k3_sim(kConversation, {"--limit", "200", "--speed", "4", "--budget", "8192:2", "--budget", "200000:8"}));
  expect_all_done(root);
}

TEST(Sim, AnySeedAndThreadsGiveOneResult) {
  const Arguments fleet =
      k3_sim("synthetic", {"-n", "60", "--turns", "3", "--rate", "3", "--replicas", "3", "--output", "50"});
  const std::string one = k3_ok(with(fleet, {"-t", "1", "--json", "-"}));
  EXPECT_EQ(k3_ok(with(fleet, {"-t", "2", "--json", "-"})), one);
  EXPECT_NE(k3_ok(with(fleet, {"-t", "1", "--seed", "5", "--json", "-"})), one);
}

TEST(Sim, MeasuredStepsOfASmallModel) {
  const Scratch scratch;
  put_file(
      scratch.path("clock.json"),
      R"({"points":[{"decode_rows":1,"decode_history_tokens":100,"seconds":0.01},{"decode_rows":8,"decode_history_tokens":800,"seconds":0.03},
    {"prompts":1,"new_tokens":512,"key_pairs":131072,"seconds":0.5},{"prompts":1,"new_tokens":64,"key_pairs":2048,"seconds":0.08}]})");
  put_file(
      scratch.path("run.json"),
      R"({"requests":[{"index":0,"input_tokens":300,"start_s":1,"first_token_s":2,"end_s":3},{"index":1,"input_tokens":400,"start_s":5,"end_s":6}]})");
  put_file(scratch.path("t.jsonl"), R"({"timestamp":0,"input_length":300,"output_length":8,"hash_ids":[1]}
{"timestamp":10,"input_length":400,"output_length":8,"hash_ids":[1]}
)");
  const Arguments mini = {"sim", kMini, scratch.path("t.jsonl"), "--clock", scratch.path("clock.json")};
  const json root = simulated(with(mini, {"--recorded", scratch.path("run.json")}));
  expect_all_done(root);
  EXPECT_THAT(root.at("settings").at("clock").get<std::string>(), HasSubstr("4 points for a curve of"));
  EXPECT_EQ(root.at("requests")[0].at("arrival_s"), 1);
  EXPECT_EQ(root.at("requests")[1].at("arrival_s"), 5);
  put_file(scratch.path("half.json"), R"({"requests":[{"index":1,"input_tokens":400,"start_s":0}]})");
  const Outcome half = k3(with(mini, {"--recorded", scratch.path("half.json")}));
  EXPECT_EQ(half.code, 0) << half.err;
  EXPECT_THAT(half.err, HasSubstr("half.json: 1 of the 2 requests are not in it"));
  put_file(scratch.path("none.json"), R"({"requests":[]})");
  EXPECT_THAT(k3(with(mini, {"--recorded-order", scratch.path("none.json")})).err,
              HasSubstr("no request was answered; the recording starts none of the trace"));
  const json ordered = simulated(with(mini, {"--recorded-order", scratch.path("run.json"), "--step-overhead-ms", "2"}));
  EXPECT_EQ(ordered.at("requests")[1].at("cached_tokens"), root.at("requests")[1].at("cached_tokens"));
  EXPECT_GE(ordered.at("requests")[1].at("arrival_s"), ordered.at("requests")[0].at("end_s"));
  // As on a GPU: a prompt of 700 tokens is one step, and a request that decodes waits for it.
  put_file(scratch.path("two.jsonl"), R"({"timestamp":0,"input_length":64,"output_length":40,"hash_ids":[1]}
{"timestamp":200,"input_length":700,"output_length":2,"hash_ids":[2,3]}
)");
  const Arguments two = {"sim", kMini, scratch.path("two.jsonl"), "--clock", scratch.path("clock.json")};
  const json shared = simulated(two), apart = simulated(with(two, {"--apart"}));
  EXPECT_THAT(shared.at("settings").dump(), Not(HasSubstr("take turns")));
  EXPECT_THAT(apart.at("settings").dump(), HasSubstr("prompts and decodes take turns"));
  EXPECT_THAT(apart.at("settings").dump(), HasSubstr("steps of 2048 tokens"));
  EXPECT_NE(apart.at("requests")[1].at("first_token_s"), shared.at("requests")[1].at("first_token_s"));
}

// What the real server skips of each prompt, the simulator skips, with room for everything and in a pool that has to evict.
TEST(Sim, HitsAreThoseOfTheServer) {
  const Scratch scratch;
  put_file(scratch.path("clock.json"),
           R"({"points":[{"decode_rows":1,"seconds":0.01},{"prompts":1,"new_tokens":64,"seconds":0.08}]})");
  const std::string trace = source_path("bench/serve/agent_sessions_0_11.jsonl");
  const Arguments cut = {"--scale", "0.05", "--max-output", "4", "--limit", "40"};
  for (const Arguments& pool : std::vector<Arguments>{{}, {"--pool-bytes", "30MiB"}}) {
    SCOPED_TRACE(pool.empty() ? "ample" : pool.back());
    Process server(k3_spawn(with({"serve", kMini, "--port", "0", "-t", "1", "--ctx", "8192", "--max-running", "8"}, pool)));
    ASSERT_TRUE(server.wait_err("listening on http://127.0.0.1:") && server.wait_err("\n")) << server.err();
    std::smatch port;
    ASSERT_TRUE(std::regex_search(server.err(), port, std::regex("127.0.0.1:([0-9]+)")));
    const std::string run =
        k3_ok(with({"loadgen", "http://127.0.0.1:" + port[1].str(), "--trace", trace, "--sequential", "--json"}, cut));
    server.send(SIGTERM);
    put_file(scratch.path("run.json"), run);
    const Arguments sim = {"sim",
                           kMini,
                           trace,
                           "--made-up-answers",
                           "--clock",
                           scratch.path("clock.json"),
                           "--ctx",
                           "8192",
                           "--max-running",
                           "8",
                           "--recorded-order",
                           scratch.path("run.json")};
    const json root = simulated(with(with(sim, cut), pool));
    int64_t evicted =
        root.at("summary").at("evicted_pages").get<int64_t>() + root.at("summary").at("evicted_checkpoints").get<int64_t>();
    EXPECT_EQ(evicted > 0, !pool.empty());
    for (const json& r : json::parse(run).at("requests")) {
      const auto index = r.at("index").get<size_t>();
      EXPECT_EQ(r.at("cached_tokens"), root.at("requests").at(index).at("cached_tokens")) << "request " << index;
    }
    EXPECT_GT(root.at("summary").at("hit_ratio"), 0);
  }
}

// What nobody can fill costs the program nothing.
TEST(Sim, AbsurdPoolsAreLikeAmpleOnes) {
  const Arguments few = k3_sim("synthetic", {"-n", "4", "--turns", "2", "--output", "20"});
  const json ample = simulated(few).at("requests");
  EXPECT_EQ(simulated(with(few, {"--pool-bytes", "900TB", "--host-bytes", "900TB"})).at("requests"), ample);
}

TEST(Sim, WritesPagesAndTables) {
  const Scratch scratch;
  const Arguments run = k3_sim(kAgents, {"--limit", "120"});
  k3_ok(with({"sim", "k3", kAgents, "--limit", "120", "--hw", "gb300", "--gpus", "16"},
             {"--name", "a <b> & c", "--loads", "1,4", "--json", scratch.path("other.json")}));
  const std::string out = k3_ok(with(run, {"--policies", "end,serve", "--loads", "0.5,1,2", "--slo-ttft", "2", "--slo-tpot",
                                           "50", "--against", scratch.path("other.json"), "--plots", scratch.path("plots"),
                                           "--html", scratch.path("run.html"), "--csv", scratch.path("run.csv")}));
  for (const char* word : {"TTFT", "TPOT", "waiting", "skipped", "cut by", "checkpoints", "objective", "speed 0.5", "this run", "the other", "120 of 120"})
    EXPECT_THAT(out, HasSubstr(word));
  const std::string html = file_text(scratch.path("run.html"));
  EXPECT_EQ(k3::test::xml_problem(html.substr(html.find('\n') + 1)), "");
  for (const char* word : {"Throughput against the speed of a user", "TPOT within", "Checkpoint policies", "Requests",
                           "The pool", "Prompt tokens from the cache", "Evictions", "Two scenarios", "What cut the prefixes",
                           "cut by", "a &lt;b&gt; &amp; c"}) {
    EXPECT_THAT(html, HasSubstr(word));
  }
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  for (const char* plot : {"ttft", "tpot", "requests", "pool", "hits", "evictions", "load", "policies"}) {
    EXPECT_EQ(k3::test::xml_problem(file_text(scratch.path("plots/" + std::string(plot) + ".svg"))), "") << plot;
  }
  const std::string csv = file_text(scratch.path("run.csv"));
  EXPECT_EQ(count_of(csv, "\n"), 121u);
  EXPECT_THAT(csv, HasSubstr("index,session,turn,outcome"));
}

TEST(Sim, AnotherRunIsComparedInTextAndJson) {
  const Scratch scratch;
  const auto run = [](const char* count, const char* output) {
    return k3_sim("synthetic", {"-n", count, "--output", output, "--input", "1000"});
  };
  const json other = simulated(run("4", "40"));
  put_file(scratch.path("other.json"), other.dump());
  const Outcome alike = k3(with(run("4", "20"), {"--against", scratch.path("other.json")}));
  EXPECT_EQ(alike.code, 0) << alike.err;
  EXPECT_THAT(alike.out, HasSubstr("TPOT p95"));
  EXPECT_THAT(alike.out, HasSubstr("4 of 4"));
  EXPECT_THAT(alike.err, Not(HasSubstr("different questions")));
  const json both = json::parse(k3_ok(with(run("3", "20"), {"--against", scratch.path("other.json"), "--json", "-"})));
  EXPECT_EQ(both.at("against").at("ttft_p50_s"), other.at("summary").at("ttft_s").at("p50"));
  EXPECT_EQ(both.at("against").at("seconds"), other.at("summary").at("seconds"));
  EXPECT_EQ(both.at("against").at("requests"), 4);
  EXPECT_THAT(k3(with(run("3", "20"), {"--against", scratch.path("other.json")})).err,
              HasSubstr("a run of 4 requests, this one has 3"));
}

TEST(Sim, EveryExampleOfTheHelpRuns) {
  const std::string help = k3_ok({"sim", "--help"});
  const Scratch scratch;
  std::istringstream lines(help.substr(help.find("Examples:")));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("k3 sim ");
    if (at == std::string::npos) continue;
    std::istringstream words(line.substr(at + 3));
    Arguments arguments;
    for (std::string word; words >> word;) {
      if (word.ends_with(".jsonl")) word = word.starts_with("agent") ? kAgents : kConversation;
      if (word.ends_with(".html")) word = scratch.path(word);
      if (word == "models/k3-mini") word = kMini;
      if (word == "bench.json") {
        word = scratch.path(word);
        put_file(word, R"({"points":[{"decode_rows":1,"seconds":0.01},{"prompts":1,"new_tokens":64,"seconds":0.08}]})");
      }
      arguments.push_back(word);
    }
    if (arguments[2] != "synthetic") arguments = with(arguments, {"--limit", "40"});
    k3_ok(arguments);
    ++count;
  }
  EXPECT_EQ(count, 6);
}

struct Refusal {
  Arguments arguments;
  int code;
  std::string says;
};

TEST(Sim, WrongUseIsNamed) {
  const Scratch scratch;
  put_file(scratch.path("bad.jsonl"),
           "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":10}\n");
  put_file(scratch.path("none.csv"), "a,b\n1,2\n");
  put_file(scratch.path("turns.jsonl"),
           "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"session\":2,\"turn\":1}\n{\"timestamp\":1,\"input_length\":"
           "5,\"output_length\":1,\"session\":2,\"turn\":0}\n");
  put_file(scratch.path("empty.jsonl"), "");
  put_file(scratch.path("header.csv"), "TIMESTAMP,ContextTokens,GeneratedTokens\n");
  put_file(scratch.path("late.jsonl"),
           "{\"timestamp\":9,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":3,\"input_length\":5,"
           "\"output_length\":1,\"hash_ids\":[1]}\n");
  put_file(scratch.path("clock.json"), R"({"points":[{"decode_rows":1,"seconds":0}]})");
  put_file(scratch.path("decodes.json"), R"({"points":[{"decode_rows":1,"seconds":0.01}]})");
  put_file(scratch.path("list.json"), "[]");
  const Arguments synthetic = k3_sim("synthetic", {"-n", "3"});
  const std::vector<Refusal> table = {
      {{"sim"}, 2, "CONFIG is required"},
      {{"sim", "k3"}, 2, "TRACE is required"},
      {{"sim", "k4", "synthetic"}, 3, "known are k3, kimi-linear-48b"},
      {k3_sim(scratch.path("missing.jsonl")), 3, "missing.jsonl"},
      {k3_sim(scratch.path("bad.jsonl")), 2, "bad.jsonl:2: input_length: missing"},
      {k3_sim(scratch.path("turns.jsonl")), 2, "turns.jsonl:2: turn: 0 of session 2 comes after its turn 1"},
      {k3_sim(scratch.path("none.csv")), 2, "begins neither JSONL of Mooncake nor a CSV"},
      {k3_sim(scratch.path("empty.jsonl")), 2, "empty.jsonl"},
      {k3_sim(scratch.path("late.jsonl")), 2, "late.jsonl:2: timestamp"},
      {k3_sim(kAgents, {"--sessions", "9000"}), 2, "no record of the trace is left"},
      {k3_sim(kAgents, {"--sessions", "x"}), 2, "no range of sessions"},
      {with(synthetic, {"--scale", "0.5"}), 2, "belong to a trace"},
      {with(synthetic, {"--input", "normal:3"}), 2, "lognormal:MEDIAN:SIGMA"},
      {with(synthetic, {"--users", "2", "--rate", "3"}), 2, "excludes"},
      {with(synthetic, {"--policy", "best"}), 2, "none of serve, every, end"},
      {with(synthetic, {"--policies", "end,end+1000"}), 2, "1000 is no multiple of the 512"},
      {with(synthetic, {"--budget", "many"}), 2, "--budget many: not TOKENS:SECONDS"},
      {with(synthetic, {"--budget", "100:0"}), 2, "seconds are positive"},
      {with(synthetic, {"--fail", "0"}), 2, "--fail 0: not REPLICA@SECONDS"},
      {with(synthetic, {"--fail", "0@5+1e300"}), 2, "--fail 0@5+1e300: at most 1e+09 seconds"},
      {with(synthetic, {"--fail", "1e300@5"}), 2, "--fail 1e300@5: not REPLICA@SECONDS"},
      {with(synthetic, {"--fail", "0@0.001"}), 2, "no request was answered; the failure at 0.001 s left no replica"},
      {with(synthetic, {"--fail", "3@5"}), 2, "failure of replica 3 of 1, counted from 0"},
      {with(synthetic, {"--prefill", "2"}), 2, "--prefill and --decode are given together"},
      {with(synthetic, {"--decode-with", "--tp 4"}), 2, "--decode-with is for --prefill and --decode"},
      {with(synthetic, {"--prefill", "1", "--decode", "1", "--decode-with", "--gpus many"}), 2, "--decode-with: --gpus"},
      {with(synthetic, {"--prefill", "1", "--decode", "1", "--decode-with", "--gpus 8"}), 6, "--decode-with: "},
      {with(synthetic, {"--sequential", "--replicas", "2"}), 2, "for one replica"},
      {with(synthetic, {"--loads", "1,x"}), 2, "--loads: 'x' is no number of users"},
      {with(synthetic, {"--sequential", "--loads", "1"}), 2, "have no load to change"},
      {k3_sim("synthetic", {"-n", "100000000"}), 2, "--requests"},
      {k3_sim("synthetic", {"-n", "5000000", "--turns", "50"}), 2, "--requests 5,000,000 with --turns 50"},
      {with(synthetic, {"--acceptance", "chat"}), 2, "says nothing without --draft"},
      {with(synthetic, {"--pool-bytes", "lots"}), 2, "--pool-bytes"},
      {with(synthetic, {"--pool-bytes", "1MB"}), 2, "--pool-bytes 1MB: has 0 pages of"},
      {k3_sim(scratch.path("header.csv")), 2, "header.csv: the trace has no records, only a header"},
      {with(synthetic, {"--replicas", "100000", "--pool-bytes", "1PB"}), 2, "100000 engines with pools"},
      {with(synthetic, {"--block-tokens", "100"}), 2, "16"},
      {with(synthetic, {"--set", "hw.hbm_bytes_per_second=0"}), 2, "0"},
      {with(synthetic, {"--set", "hw.memory_bytes=1e40"}), 2, "memory_bytes"},
      {with(synthetic, {"--set", "hw.colour=3"}), 2, "no such cell"},
      {with(synthetic, {"--ctx", "100"}), 2, "no request was answered"},
      {with(synthetic, {"--against", scratch.path("list.json")}), 2, "list.json"},
      {with(synthetic, {"--recorded", scratch.path("list.json")}), 2, "no list \"requests\""},
      {{"sim", "k3", "synthetic", "--clock", scratch.path("clock.json")}, 2, "clock.json: point 0"},
      {{"sim", kMini, "synthetic", "--clock", scratch.path("decodes.json")}, 2, "decodes.json: only decodes are measured"},
      {{"sim", "k3", "synthetic", "--clock", scratch.path("list.json")}, 2, "no list \"points\""},
      {with(synthetic, {"--html", scratch.path("no/such/page.html")}), 3, "page.html"},
      {{"sim", "k3", "synthetic", "--gpus", "8", "--hw", "h200"}, 6, "does not fit"},
      {{"sim", "k3", "synthetic", "--gpus", "16", "--tp", "5"}, 2, "does not divide 16 GPUs"},
      {{"sim", "k3", "synthetic", "--gpus", "7", "--tp", "7"}, 2, "does not divide 96 KDA heads"},
      {{"sim", "k3", "synthetic", "--hw", "abacus"}, 3, "no hardware record 'abacus'"},
  };
  for (const Refusal& refusal : table) {
    const Outcome outcome = k3(refusal.arguments);
    EXPECT_EQ(outcome.code, refusal.code) << refusal.says << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(refusal.says));
    EXPECT_LE(count_of(outcome.err, scratch.path()), 1u) << outcome.err;  // a file is named once
  }
}

// Before anything runs, so that no long run ends in a file that cannot be written.
TEST(Sim, LengthsBeyondTheModelAreTold) {
  const auto said = [](const char* input) {
    return k3(k3_sim("synthetic", {"-n", "2", "--input", input, "--output", "2"})).err;
  };
  EXPECT_THAT(said("1100000"), HasSubstr("2 of 2 requests are longer than the 1,048,576 tokens"));
  EXPECT_THAT(said("1000000"), Not(HasSubstr("are longer than")));
}

TEST(Sim, OutputsAreLookedAtFirst) {
  const Scratch scratch;
  const std::string trace = scratch.path("t.jsonl"), line = R"({"timestamp":0,"input_length":5,"output_length":1})";
  put_file(trace, line);
  put_file(scratch.path("old.json"), "{}");
  fs::create_symlink(trace, scratch.path("link.json"));
  const Arguments run = k3_sim(trace);
  const auto refused = [&](const Arguments& more, int code, const std::string& says) {
    const Outcome outcome = k3(with(run, more));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(says));
  };
  refused({"--json", scratch.path("no/x.json")}, 3, "--json " + scratch.path("no/x.json") + ": cannot be written");
  refused({"--csv", scratch.path()}, 2, "is a folder");
  refused({"--csv", "-"}, 2, "--csv -: only --json can go to stdout");
  refused({"--html", "-"}, 2, "--html -: only --json can go to stdout");
  refused({"--json", trace}, 2, "is what TRACE reads");
  refused({"--json", scratch.path("link.json")}, 2, "is what TRACE reads");
  refused({"--json", scratch.path("x"), "--html", scratch.path("./x")}, 2, "--json and --html are the same file");
  refused({"--plots", trace}, 2, "--plots " + trace + ": is a file");
  refused({"--plots", trace + "/a/b"}, 2, "--plots " + trace + "/a/b: " + trace + " is no folder");
  EXPECT_EQ(file_text(trace), line);
  EXPECT_FALSE(fs::exists(scratch.path("x")));
  k3_ok(with(run, {"--json", scratch.path("old.json"), "--csv", "/dev/null"}));
  EXPECT_GT(file_text(scratch.path("old.json")).size(), 100u);
}

// What would be ignored is refused by name.
TEST(Sim, OptionsThatSayNothingAreNamed) {
  const Arguments trace = k3_sim(kAgents), synthetic = k3_sim("synthetic");
  const Arguments clock = {"sim", kMini, "synthetic", "--clock", "clock.json"};
  for (const Arguments& more : std::vector<Arguments>{
           {"--requests", "3"}, {"--input", "9"}, {"--output", "9"}, {"--turns", "2"}, {"--shared-prefix", "9"}}) {
    EXPECT_THAT(k3(with(trace, more)).err, HasSubstr(more.front() + " is for synthetic requests"));
  }
  for (const Arguments& more : std::vector<Arguments>{{"--gpus", "8"},
                                                      {"--hw", "h200"},
                                                      {"--set", "hw.memory_bytes=1e11"},
                                                      {"--tp", "8"},
                                                      {"--dp", "1"},
                                                      {"--pp", "1"},
                                                      {"--dcp", "1"},
                                                      {"--kcp", "1"},
                                                      {"--moe", "tp"},
                                                      {"--sp"},
                                                      {"--scheme", "fused"}}) {
    EXPECT_THAT(k3(with(clock, more)).err, HasSubstr(more.front() + " describes a machine"));
  }
  EXPECT_THAT(k3(with(clock, {"--together"})).err, HasSubstr("--together is what steps of a --clock do"));
  for (const Arguments& more : std::vector<Arguments>{{"--trace-block", "512"},
                                                      {"--step-overhead-ms", "1"},
                                                      {"--apart"},
                                                      {"--transfer-ms", "1"},
                                                      {"--transfer-gbps", "1"},
                                                      {"--host-gbps", "1"},
                                                      {"--remote-gbps", "1"},
                                                      {"--remote-ms", "1"},
                                                      {"--pool-bytes", "1GB", "--unbounded"},
                                                      {"--pool-bytes", "1GB", "--rule"},
                                                      {"--speed", "2", "--recorded", "run.json"},
                                                      {"--speed", "2", "--recorded-order", "run.json"}}) {
    const Outcome outcome = k3(with(synthetic, more));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(more.front() + " "));
  }
}

}  // namespace
}  // namespace k3::e2e
