// k3 plan as a user runs it.
#include "k3/base/report/xml_test_util.h"
#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Plan, AnswersOnOneScreen) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "16", "--gpu-hour", "2.5"});
  EXPECT_LE(count_of(out, "\n"), 40u);
  for (const char* word : {"k3 on 16 H200-SXM", "fits", "users", "TTFT", "TPOT", "p50", "p95", "band", "tokens/s/GPU",
                           "cost", "binds", "next", "prefix cache"}) {
    EXPECT_THAT(out, HasSubstr(word));
  }
  EXPECT_THAT(out, Not(HasSubstr("does not fit")));
}

TEST(Plan, TellsTheCostInHoursOfGpusOrInMoney) {
  const std::vector<std::string> plan = {"plan", "k3", "--hw", "h200", "--gpus", "16", "--json"};
  std::vector<std::string> priced = plan;
  priced.insert(priced.end(), {"--gpu-hour", "2.5"});
  const json hours = json::parse(k3_ok(plan)).at("answer").at("point"), money = json::parse(k3_ok(priced)).at("answer").at("point");
  EXPECT_FALSE(hours.contains("cost_per_million_tokens"));
  EXPECT_NEAR(hours.at("gpu_hours_per_million_tokens").get<double>() * 3600 * hours.at("tokens_per_second_gpu").get<double>(), 1e6, 1);
  EXPECT_NEAR(money.at("cost_per_million_tokens").get<double>(), 2.5 * money.at("gpu_hours_per_million_tokens").get<double>(), 1e-9);
  EXPECT_THAT(k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "16"}), HasSubstr("GPU hours for a million tokens"));
}

TEST(Plan, SaysWhatIsMissing) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "8"});
  EXPECT_THAT(out, HasSubstr("does not fit"));
  EXPECT_THAT(out, HasSubstr("missing"));
  EXPECT_THAT(out, HasSubstr("16 GPUs of H200-SXM"));
  // A plan has answered with that; a simulation cannot run.
  EXPECT_EQ(k3({"sim", "k3", "synthetic", "--hw", "h200", "--gpus", "8", "-n", "2"}).code, 6);
  const json root = json::parse(k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "8", "--json"}));
  EXPECT_TRUE(root.contains("missing"));
  EXPECT_FALSE(root.contains("answer"));
}

TEST(Plan, SaysWhatHoldsTheUsersAskedFor) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "16", "--users", "1000"});
  EXPECT_THAT(out, HasSubstr("1,000 users do not fit at 9,216 tokens"));
  EXPECT_THAT(out, HasSubstr("32 GPUs of H200-SXM"));
  const json root = json::parse(k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "16", "--users", "1000", "--json"}));
  EXPECT_TRUE(root.at("answer").at("point").is_null());
  for (const json& near : root.at("missing").at("nearest")) EXPECT_GE(near.at("requests"), 1000) << near;
}

TEST(Plan, AnswersOfOneTokenHaveNoTpot) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "16", "--output", "1"});
  EXPECT_THAT(out, HasSubstr("all that fit"));
  EXPECT_THAT(out, Not(HasSubstr("at most 50 ms")));
  EXPECT_THAT(out, Not(HasSubstr("nan")));
}

TEST(Plan, AKnownModelIsNotTheProgramOfThatName) {
  const Scratch scratch;
  put_file(scratch.path("k3"), "not a model");
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path("."));
  const Outcome outcome = k3({"plan", "k3", "--hw", "gb300"});
  std::filesystem::current_path(here);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Plan, ChoosesTheFewestGpus) {
  EXPECT_THAT(k3_ok({"plan", "k3", "--hw", "gb300"}), HasSubstr("k3 on 8 GB300-NVL72"));
  EXPECT_THAT(k3_ok({"plan", "kimi-linear-48b"}), HasSubstr("kimi-linear-48b on 1 H200-SXM"));
}

TEST(Plan, JsonHoldsTheAnswer) {
  const json root = json::parse(k3_ok(
      {"plan", "k3", "--hw", "b300", "--gpus", "8", "--tp", "8", "--dcp", "1", "--moe", "tp", "--users", "16", "--json"}));
  const json& answer = root.at("answer");
  EXPECT_EQ(answer.at("layout").at("text"), "TP8");
  EXPECT_EQ(answer.at("point").at("users"), 16);
  // PR 37878 measured 19.47 ms; the model's 18.87 ms is of the idealised count, from which the table is within 1 %.
  EXPECT_NEAR(answer.at("point").at("tpot_p50_seconds").get<double>(), 18.87e-3, 0.01 * 18.87e-3);
  double step = 0;
  for (const auto& [name, part] : answer.at("decode_parts").items()) step += part.at("seconds").get<double>();
  EXPECT_NEAR(step + 0.15e-3, answer.at("point").at("step_seconds").get<double>(), 1e-9);
  EXPECT_EQ(root.at("scenario").at("cells").at("hw.domain_gpus"), 8);
  EXPECT_EQ(root.at("scenario").at("parameters"), 2779931837184);
}

TEST(Plan, SweepsExplainsAndLaunches) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "gb300", "--gpus", "16", "--sweep", "--explain", "--launch"});
  EXPECT_THAT(out, HasSubstr("frontier of"));
  EXPECT_THAT(out, HasSubstr("routed experts"));
  EXPECT_THAT(out, HasSubstr("of memory"));
  EXPECT_THAT(out, HasSubstr("k3 serve cannot serve this layout: it takes one GPU, not 16"));
  const std::string one =
      k3_ok({"plan", kMini, "--gpus", "1", "--launch", "--users", "8", "--input", "500", "--output", "100"});
  EXPECT_THAT(one, HasSubstr("k3 serve " + kMini + " --device cuda --max-running"));
  EXPECT_THAT(one, Not(HasSubstr("cannot")));
}

TEST(Plan, LaunchNamesOptionsThatServeHas) {
  const std::string out = k3_ok({"plan", kMini, "--gpus", "1", "--launch", "--slots", "5", "--state-dtype", "bf16",
                                 "--users", "8", "--output", "100"});
  const size_t begin = out.find("k3 serve ");
  ASSERT_NE(begin, std::string::npos);
  std::vector<std::string> words;
  std::istringstream line(out.substr(begin, out.find('\n', begin) - begin));
  for (std::string word; line >> word;) words.push_back(word);
  const std::string help = k3_ok({"serve", "--help"});
  for (const std::string& word : words) {
    if (word.starts_with("--")) {
      EXPECT_THAT(help, HasSubstr(word));
    }
  }
}

TEST(Plan, LaunchSaysWhatServeWouldRefuse) {
  const std::string experts = k3_ok({"plan", "kimi-linear-48b", "--gpus", "1", "--launch", "--experts", "mxfp4"});
  EXPECT_THAT(experts, HasSubstr("  - MXFP4 experts: it serves those of MODEL as they are"));
  const std::string kept = k3_ok({"plan", "kimi-linear-48b", "--gpus", "1", "--launch", "--experts", "bf16"});
  EXPECT_THAT(kept, Not(HasSubstr("experts: it serves")));
  const std::string lengthy = k3_ok({"plan", kMini, "--gpus", "1", "--launch", "--input", "16777216", "--output", "16777216"});
  EXPECT_THAT(lengthy, HasSubstr("--ctx 16777216"));
  EXPECT_THAT(lengthy, HasSubstr("  - requests of 33,554,432 tokens: --ctx 16777216 is the most"));
}

TEST(Plan, SpeculationHasItsBreakEven) {
  const auto plan = [](const std::string& acceptance) {
    return json::parse(k3_ok({"plan", "k3", "--hw", "b300", "--gpus", "8", "--tp", "8", "--dcp", "1", "--moe", "tp",
                              "--users", "8", "--draft", "7", "--acceptance", acceptance, "--json"}))
        .at("answer")
        .at("speculation");
  };
  const json code = plan("dspark-code");
  // cost-model.md 9.3: 1.56 times as fast, of the idealised count.
  EXPECT_NEAR(code.at("times_as_fast").get<double>(), 1.56, 0.02);
  // 3.78 tokens a step are 2.78 accepted ones; at 8,704 tokens of context, beyond TO, a quarter of them is left.
  const json faded = json::parse(k3_ok({"plan", "k3", "--hw", "b300", "--gpus", "8", "--tp", "8", "--dcp", "1", "--moe",
                                        "tp", "--users", "8", "--draft", "7", "--fade", "1000,8000,0.25", "--json"}));
  EXPECT_NEAR(faded.at("answer").at("speculation").at("tokens_per_step").get<double>(), 1 + 2.78 / 4, 1e-12);
  // With just the tokens a step that it says, drafting neither gains nor loses.
  const double even = code.at("pays_from_tokens_per_step").get<double>();
  const json at_even = plan(fmt::format("{}", code.at("pays_from_acceptance").get<double>()));
  EXPECT_NEAR(at_even.at("tokens_per_step").get<double>(), even, 1e-6 * even);
  EXPECT_NEAR(at_even.at("times_as_fast").get<double>(), 1, 1e-6);
}

TEST(Plan, ComparesTwoScenarios) {
  const std::string out = k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "32", "--against", "--hw gb300 --gpus 16"});
  EXPECT_THAT(out, HasSubstr("32 H200-SXM"));
  EXPECT_THAT(out, HasSubstr("16 GB300-NVL72"));
  const json both = json::parse(k3_ok({"plan", "k3", "--gpus", "16", "--json", "--against", "--draft 7"}));
  EXPECT_EQ(both.at("plan").at("scenario").at("draft_tokens"), 0);
  EXPECT_EQ(both.at("against").at("scenario").at("draft_tokens"), 7);
  // What only a draft has goes with the draft; two scenarios of the same machines are told apart.
  const std::string drafts = k3_ok({"plan", "k3", "--gpus", "16", "--draft", "7", "--acceptance", "chat", "--scheme",
                                    "replay", "--against", "--draft 0"});
  EXPECT_THAT(drafts, HasSubstr("as asked"));
  EXPECT_THAT(drafts, HasSubstr("--draft 0"));
}

TEST(Plan, WritesAPage) {
  const Scratch scratch;
  const std::string path = scratch.path("plan.html");
  k3_ok({"plan", "k3", "--hw", "gb300", "--gpus", "16", "--html", path, "--against", "--hw h200 --gpus 32", "--slo-ttft",
         "20", "--slo-tpot", "60"});
  const std::string html = file_text(path);
  EXPECT_EQ(k3::test::xml_problem(html.substr(html.find('\n') + 1)), "");
  for (const char* word :
       {"Throughput against the speed of a user", "History of a request", "Where the time of a prefill goes", "by mechanism",
        "Speculation", "The two scenarios", "A prompt whose prefix is reused"}) {
    EXPECT_THAT(html, HasSubstr(word));
  }
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  // Its plots are files of their own, too.
  k3_ok({"plan", "k3", "--hw", "gb300", "--gpus", "16", "--plots", scratch.path("plots")});
  for (const char* name : {"frontier", "memory", "prefill-split", "speculation-need"}) {
    EXPECT_EQ(k3::test::xml_problem(file_text(scratch.path("plots/") + name + ".svg")), "") << name;
  }
  k3_ok({"plan", "k3", "--hw", "h200", "--gpus", "8", "--html", path});
  EXPECT_THAT(file_text(path), HasSubstr("What does fit"));
}

TEST(Plan, ChecksItselfAgainstMeasurements) {
  const std::string out = k3_ok({"plan", "--check"});
  EXPECT_THAT(out, HasSubstr("SGLang PR 37878"));
  EXPECT_THAT(out, HasSubstr("not published: context"));
  EXPECT_THAT(out, HasSubstr("scored (all inputs published)"));
  const json root = json::parse(k3_ok({"plan", "--check", "--json"}));
  EXPECT_EQ(root.at("rows").size(), 25u);
  EXPECT_EQ(root.at("scored").at("rows"), 14);
}

TEST(Plan, CellsAreListedAndReplaced) {
  EXPECT_THAT(k3_ok({"plan", "--cells", "--hw", "gb300", "--set", "hw.memory_bytes=200GB"}), HasSubstr("hw.memory_bytes"));
  EXPECT_THAT(k3_ok({"plan", "k3", "--hw", "gb300", "--gpus", "8", "--set", "hw.memory_bytes=180GB"}),
              HasSubstr("does not fit"));
  const Scratch scratch;
  std::string record = file_text(source_path("share/hardware/h200.toml"));
  put_file(scratch.path("mine.toml"), record.replace(record.find("H200-SXM"), 8, "MY-GPU"));
  EXPECT_THAT(k3_ok({"plan", "kimi-linear-48b", "--hw", scratch.path("mine.toml")}), HasSubstr("1 MY-GPU"));
}

TEST(Plan, CellsAreJsonForPrograms) {
  const json root = json::parse(k3_ok({"plan", "--cells", "--hw", "gb300", "--set", "hw.memory_bytes=200GB", "--json"}));
  EXPECT_EQ(root.at("name"), "GB300-NVL72");
  const json& cells = root.at("cells");
  const auto memory = std::find_if(cells.begin(), cells.end(), [](const json& c) { return c.at("cell") == "hw.memory_bytes"; });
  ASSERT_NE(memory, cells.end());
  EXPECT_EQ(memory->at("value"), 200e9);
  EXPECT_EQ(memory->at("least"), 1e6);
}

TEST(Plan, CalibratesOnMeasuredRuns) {
  const Scratch scratch;
  // A bench of k3-mini as the record of a made-up slow machine would have it.
  const json inspect = json::parse(k3_ok({"inspect", kMini, "--json"}));
  json bench = {{"model", "k3-mini"}, {"parameters", inspect.at("parameters")}, {"results", json::array()}};
  const auto result = [](const char* test, int tokens, int batch, double seconds) {
    return json{{"test", test},
                {"tokens", tokens},
                {"depth", 0},
                {"batch", batch},
                {"threads", 1},
                {"policy", "bf16"},
                {"seconds", {seconds, seconds * 1.02}}};
  };
  bench["results"] = {result("decode", 64, 1, 0.5), result("decode", 64, 8, 0.9), result("prefill", 512, 1, 0.3)};
  put_file(scratch.path("bench.json"), bench.dump());
  const std::vector<std::string> plan = {"plan", kMini, "--gpus", "1", "--input", "500", "--output", "100", "--users", "4"};
  std::vector<std::string> calibrated = plan;
  calibrated.insert(calibrated.end(), {"--calibration", scratch.path("bench.json")});
  const std::string out = k3_ok(calibrated);
  EXPECT_THAT(out, HasSubstr("calibration"));
  EXPECT_THAT(out, HasSubstr("bench.json: decode of 8 at 32"));
  EXPECT_THAT(out, HasSubstr("it moved"));
  EXPECT_THAT(out, HasSubstr("kernel_seconds"));
  EXPECT_THAT(out, HasSubstr("3 measured points"));
  calibrated.push_back("--json");
  std::vector<std::string> before = plan;
  before.push_back("--json");
  const json a = json::parse(k3_ok(before)), b = json::parse(k3_ok(calibrated));
  EXPECT_GT(b.at("answer").at("point").at("tpot_p50_seconds").get<double>(),
            2 * a.at("answer").at("point").at("tpot_p50_seconds").get<double>());
  for (const json& point : b.at("calibration").at("points")) {
    EXPECT_LT(std::abs(std::log(point.at("after").get<double>() / point.at("seconds").get<double>())), 0.3) << point;
  }
}

TEST(Plan, OneMeasuredRunLeavesTheEstimateInItsBand) {
  const Scratch scratch;
  const json inspect = json::parse(k3_ok({"inspect", kMini, "--json"}));
  const json run = {{"test", "decode"}, {"tokens", 64},      {"depth", 0},      {"batch", 1},
                    {"threads", 1},     {"policy", "bf16"}, {"seconds", {0.5}}};
  put_file(scratch.path("b.json"), json{{"parameters", inspect.at("parameters")}, {"results", {run}}}.dump());
  const std::vector<std::string> plan = {"plan", kMini, "--gpus", "1", "--input", "500", "--calibration", scratch.path("b.json")};
  EXPECT_THAT(k3_ok(plan), HasSubstr("1 measured point, too few for a band of their own: the middle 80 %"));
  std::vector<std::string> in_json = plan;
  in_json.emplace_back("--json");
  const json band = json::parse(k3_ok(in_json)).at("scenario").at("band");
  EXPECT_LE(band.at("low").get<double>(), 0.97);
  EXPECT_GE(band.at("high").get<double>(), 1.19);
}

TEST(Plan, ACalibrationBeyondThePeakIsTold) {
  const Scratch scratch;
  const json inspect = json::parse(k3_ok({"inspect", kMini, "--json"}));
  json bench = {{"parameters", inspect.at("parameters")}, {"results", json::array()}};
  for (const int batch : {1, 8, 64}) {
    bench["results"].push_back({{"test", "decode"}, {"tokens", 64}, {"depth", 2048}, {"batch", batch}, {"threads", 1}, {"policy", "bf16"},
                                {"seconds", {64e-6}}});
  }
  put_file(scratch.path("b.json"), bench.dump());
  const std::string out = k3_ok({"plan", kMini, "--gpus", "1", "--input", "500", "--calibration", scratch.path("b.json")});
  EXPECT_THAT(out, HasSubstr("of the peak: the runs were faster than hw.hbm_bytes_per_second of the record allows"));
}

struct Refusal {
  std::vector<std::string> arguments;
  int code;
  std::string says;
};

TEST(Plan, WrongUseIsNamed) {
  const Scratch scratch;
  put_file(scratch.path("bad.toml"), "name = \"x\"\n[hw]\nmemory_bytes = 0\n");
  put_file(scratch.path("bad.json"), "{\"results\":[]}");
  put_file(
      scratch.path("other.json"),
      R"({"parameters":1e9,"results":[{"test":"decode","tokens":1,"depth":0,"batch":1,"threads":1,"policy":"bf16","seconds":[1]}]})");
  const std::vector<Refusal> table = {
      {{"plan"}, 2, "CONFIG is wanted"},
      {{"plan", "k4"}, 3, "'k4' is neither a file nor a known model; known are k3, kimi-linear-48b"},
      {{"plan", scratch.path("none.json")}, 3, "none.json"},
      {{"plan", "k3", "--hw", "a100"}, 3, "no hardware record 'a100'; there are"},
      {{"plan", "k3", "--hw", scratch.path("bad.toml")}, 2, "bad.toml:3: hw.memory_bytes is 0"},
      {{"plan", "k3", "--set", "hw.hbm=3"}, 2, "no such cell"},
      {{"plan", "k3", "--set", "hw.scan_lanes=0"}, 2, "0 is not from 1"},
      {{"plan", "k3", "--gpus", "0"}, 2, "--gpus"},
      {{"plan", "k3", "--gpus", "16", "--tp", "5"}, 2, "does not divide 16 GPUs"},
      {{"plan", "k3", "--gpus", "7", "--tp", "7"}, 2, "does not divide 96 KDA heads"},
      {{"plan", "k3", "--gpus", "16", "--dcp", "3"}, 2, "dcp 3 does not divide"},
      {{"plan", "k3", "--gpus", "16", "--tp", "4", "--moe", "tp"}, 0, ""},
      {{"plan", "k3", "--gpus", "16", "--tp", "4", "--dp", "4", "--moe", "tp"}, 5, "use expert parallelism"},
      {{"plan", "k3", "--input", "0"}, 2, "--input"},
      {{"plan", "k3", "--hit", "1.5"}, 2, "--hit"},
      {{"plan", "k3", "--gpus", "4095"}, 2, "cannot be laid out on 4095 GPUs in any way, but on 4088 or 4096; the first"},
      {{"plan", "k3", "--acceptance", "chat"}, 2, "--acceptance says nothing without --draft"},
      {{"plan", "k3", "--scheme", "replay"}, 2, "--scheme says nothing without --draft"},
      {{"plan", "k3", "--fade", "1,2,0.5"}, 2, "--fade says nothing without --draft"},
      {{"plan", "k3", "--draft", "7", "--fade", "1000,500,0.5"}, 2, "--fade 1000,500,0.5: FROM,TO,SHARE is wanted"},
      {{"plan", "k3", "--draft", "7", "--fade", "1000,5000,0.5,"}, 2, "FROM,TO,SHARE is wanted"},
      {{"plan", "k3", "--hit-tier", "host"}, 2, "--hit-tier says nothing without --hit"},
      {{"plan", "--check", "--html", scratch.path("x.html")}, 2, "--check prints one table"},
      {{"plan", "--cells", "--against", "--gpus 3"}, 2, "--cells prints one table"},
      {{"plan", "--cells", "--check"}, 2, "one table at a time"},
      {{"plan", "k3", "--check"}, 2, "--check takes no CONFIG ('k3'): the measurements are of K3"},
      {{"plan", "--check", "--users", "5"}, 2, "--check prints one table; beside it goes --json alone"},
      {{"plan", "--check", "--hw", "gb300"}, 2, "--check prints one table"},
      {{"plan", "--cells", "--tp", "8"}, 2, "--cells prints one table; beside it go --hw, --set and --json alone"},
      {{"plan", "k3", "--against", "--json"}, 2, "--against: --json says what is printed"},
      {{"plan", "k3", "--against", "--gpus 8 --html x.html"}, 2, "--against: --html says what is printed"},
      {{"plan", "k3", "--draft", "3", "--acceptance", "1.5"}, 2, "no chance between 0 and 1"},
      {{"plan", "k3", "--draft", "3", "--acceptance", "1.5,9"},
       2,
       "with 2 drafted, tokens a step are a number from 1.5 to 3"},
      {{"plan", "k3", "--against", "--gpus many"}, 2, "--against: "},
      {{"plan", "k3", "--against", "'--gpus 3"}, 2, "a quote is not closed"},
      {{"plan", "k3", "--against", "--against x"}, 2, "two scenarios are compared, not three"},
      {{"plan", "k3", "--calibration", scratch.path("none.json")}, 3, "none.json"},
      {{"plan", "k3", "--calibration", scratch.path("bad.json")}, 2, "bad.json: parameters is missing"},
      {{"plan", "k3", "--calibration", scratch.path("other.json")}, 2, "name it with --calibration-model"},
      {{"plan", "k3", "--calibration-model", "k3"}, 2, "says nothing without --calibration"},
      {{"plan", "k3", "--html", scratch.path("no/such/folder.html")}, 3, "folder.html"},
  };
  for (const Refusal& refusal : table) {
    const Outcome outcome = k3(refusal.arguments);
    EXPECT_EQ(outcome.code, refusal.code) << refusal.says << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(refusal.says));
  }
}

// NaN is neither below nor above a limit.
TEST(Plan, NanIsOutsideOfEveryRange) {
  const std::vector<std::vector<std::string>> table = {
      {"plan", "k3", "--hit"},
      {"plan", "k3", "--slo-ttft"},
      {"plan", "k3", "--slo-tpot"},
      {"plan", "k3", "--gpu-hour"},
      {"plan", "k3", "--set", "hw.memory_bytes="},
      {"plan", "k3", "--draft", "1", "--acceptance"},
      {"sim", "kimi-linear-48b", "--trace", "t.jsonl", "--scale"},
      {"sim", "kimi-linear-48b", "--slo-ttft"},
      {"sim", "kimi-linear-48b", "--rate"},
      {"loadgen", "http://127.0.0.1:1", "--rate"},
      {"loadgen", "http://127.0.0.1:1", "--temperature"},
      {"serve", kMini, "--deadline"},
      {"run", kMini, "--prompt", "x", "--temperature"},
      {"run", kMini, "--prompt", "x", "--top-p"},
      {"train", "c.json", "-o", "out", "--stop-after"},
  };
  for (const std::vector<std::string>& row : table) {
    for (const char* value : {"nan", "-nan", "inf"}) {
      std::vector<std::string> arguments = row;
      if (row.back().ends_with("="))
        arguments.back() += value;
      else
        arguments.emplace_back(value);
      const Outcome outcome = k3(arguments);
      EXPECT_EQ(outcome.code, 2) << row[0] << " " << row.back() << " " << value << "\n" << outcome.out << outcome.err;
    }
  }
}

}  // namespace
}  // namespace k3::e2e
