// `k3 bench`: its formats, its options, and that the figures fit together. Speeds themselves are not judged.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Small tests of k3-mini, and more arguments.
std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", kMini, "-p", "16", "-n", "3", "-r", "2", "-t", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Bench, JsonHoldsEveryTestOnce) {
  const json bench = json::parse(k3_ok({"bench", kMini, "-p", "16,40", "-n", "3", "-t", "1,2", "-b", "1,3", "-d", "0,20",
                                        "-r", "2", "--policy", "bf16,exact", "--no-ceilings", "--output", "json"}));
  EXPECT_EQ(bench.at("model"), kMini);
  EXPECT_EQ(bench.at("parameters"), json::parse(k3_ok({"inspect", kMini, "--json"})).at("parameters"));
  EXPECT_EQ(bench.at("deterministic"), false);
  EXPECT_TRUE(bench.at("isa").is_string());
  EXPECT_FALSE(bench.contains("ceilings"));
  ASSERT_EQ(bench.at("results").size(), 2u * 2 * 2 * 2 * 3);
  std::set<std::string> seen;
  for (const json& r : bench.at("results")) {
    EXPECT_EQ(r.at("seconds").size(), 2u);
    EXPECT_GT(r.at("tokens_per_second"), 0);
    EXPECT_LE(r.at("tokens_per_second_min"), r.at("tokens_per_second"));
    EXPECT_GE(r.at("tokens_per_second_max"), r.at("tokens_per_second"));
    EXPECT_NEAR(r.at("tokens_per_second_each").get<double>() * r.at("batch").get<double>(),
                r.at("tokens_per_second").get<double>(), 1e-6 * r.at("tokens_per_second").get<double>());
    EXPECT_GT(r.at("bytes"), bench.at("active_bytes"));  // the state is read too
    EXPECT_FALSE(r.contains("share_of_floor"));
    std::ostringstream key;
    for (const char* field : {"test", "tokens", "depth", "batch", "threads", "policy"}) key << r.at(field) << ' ';
    EXPECT_TRUE(seen.insert(key.str()).second) << key.str() << "twice";
  }
}

TEST(Bench, SharesFollowFromTheCeilings) {
  const json bench = json::parse(k3_ok(small({"--json"})));
  ASSERT_EQ(bench.at("results").size(), 2u);
  for (const json& r : bench.at("results")) {
    const double low = r.at("share_of_floor_min"), share = r.at("share_of_floor"), high = r.at("share_of_floor_max");
    EXPECT_GT(low, 0);
    EXPECT_LE(low, share);
    EXPECT_LE(share, high);
    EXPECT_GT(r.at("read_ceiling"), 0);
    EXPECT_GT(r.at("flops_ceiling"), 0);
    EXPECT_TRUE(r.at("bound") == "read" || r.at("bound") == r.at("unit"));
  }
  ASSERT_EQ(bench.at("ceilings").size(), 1u);
  EXPECT_EQ(bench["ceilings"][0].at("threads"), 2);
  // Once before and once after each of two runs of two tests: 3 + 3 samples.
  for (const json& rate : bench["ceilings"][0].at("rates")) EXPECT_EQ(rate.at("samples"), 6) << rate;
}

TEST(Bench, TheTableShowsWhatVaries) {
  const std::string plain = k3_ok(small({"--no-ceilings"}));
  const double parameters = json::parse(k3_ok({"inspect", kMini, "--json"})).at("parameters");
  const std::string millions = fmt::format("{:.2f} M parameters", parameters / 1e6);
  for (const std::string& word : {std::string("tokens/s"), std::string("spread"), std::string("prefill 16"), std::string("decode 3"),
                                  std::string("GFLOP/s"), millions}) {
    EXPECT_THAT(plain, HasSubstr(word));
  }
  for (const char* word : {"batch", "settings", "of floor", "nats"}) EXPECT_THAT(plain, Not(HasSubstr(word)));
  const std::string wide = k3_ok(small({"-b", "1,2", "--policy", "bf16,exact", "--quality", "-d", "4"}));
  for (const char* word : {"batch", "settings", "each", "of floor", "bound", "nats/token", "bits/byte", "decode 3 @4",
                           "ceilings, 2 threads: read"}) {
    EXPECT_THAT(wide, HasSubstr(word));
  }
  EXPECT_EQ(count_of(wide, "\x1b"), 0u);
}

TEST(Bench, MarkdownIsATable) {
  const std::vector<std::string> lines = lines_of(k3_ok(small({"--output", "markdown", "-b", "1,2"})));
  std::vector<std::string> table;
  for (const std::string& line : lines) {
    if (line.starts_with('|')) table.push_back(line);
  }
  ASSERT_EQ(table.size(), 2u + 4);
  for (const std::string& row : table) {
    EXPECT_TRUE(row.ends_with('|')) << row;
    EXPECT_EQ(count_of(row, "|"), count_of(table[0], "|")) << row;
  }
  EXPECT_THAT(table[1], testing::MatchesRegex("[-:| ]+"));
  EXPECT_THAT(table[0], HasSubstr("| threads |"));
}

TEST(Bench, QualityIsThatOfPerplexity) {
  const Scratch scratch;
  const std::string text = scratch.path("text");
  put_file(text, "The boats came in early that morning, and nobody was there to meet them.");
  const json bench = json::parse(k3_ok(small({"--no-ceilings", "--json", "--quality", text, "--policy", "exact"})));
  const json alone = json::parse(k3_ok({"perplexity", kMini, "-f", text, "--policy", "exact", "-t", "2", "--json"}));
  for (const json& r : bench.at("results")) {
    EXPECT_EQ(r.at("nats_per_token"), alone.at("nats_per_token"));
    EXPECT_EQ(r.at("bits_per_byte"), alone.at("bits_per_byte"));
    EXPECT_EQ(r.at("quality_tokens"), alone.at("tokens"));
    EXPECT_EQ(r.at("settings"), "exact");
  }
  EXPECT_EQ(k3(small({"--quality", "/no/such/text"})).code, 3);
  put_file(text, "");
  EXPECT_EQ(k3(small({"--quality", text})).code, 2);
}

TEST(Bench, CeilingsAlone) {
  for (const std::vector<std::string>& form :
       std::vector<std::vector<std::string>>{{"bench", "ceiling"}, {"bench", "--ceiling"}}) {
    std::vector<std::string> arguments = form;
    arguments.insert(arguments.end(), {"-t", "1,2", "--json"});
    const json answer = json::parse(k3_ok(arguments));
    EXPECT_GT(answer.at("buffer_bytes"), 0);
    ASSERT_EQ(answer.at("ceilings").size(), 2u);
    for (const json& entry : answer.at("ceilings")) {
      EXPECT_EQ(entry.at("rates")[0].at("name"), "read");
      EXPECT_EQ(entry.at("rates")[0].at("unit"), "bytes/s");
      EXPECT_EQ(entry.at("rates")[1].at("name"), "fp32 scalar");
      for (const json& rate : entry.at("rates")) {
        EXPECT_GT(rate.at("min"), 0);
        EXPECT_LE(rate.at("min"), rate.at("median"));
        EXPECT_LE(rate.at("median"), rate.at("max"));
      }
    }
  }
  const std::string table = k3_ok({"bench", "ceiling", "-t", "1", "--cpu-isa", "scalar"});
  for (const char* word : {"1 thread", "read", "GB/s", "fp32 scalar", "GFLOP/s", "last-level cache"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
  EXPECT_THAT(table, Not(HasSubstr("avx2")));
}

TEST(Bench, WrongOptionsAreNamed) {
  const struct {
    const char *option, *value;
  } kWrong[] = {{"-p", "-4"}, {"-p", "x"},   {"-p", "16,y"}, {"-n", "1.5"},       {"-d", "-1"},        {"-b", "0"},
                {"-t", "0"},  {"-t", "1,0"}, {"-r", "0"},    {"--policy", "fp8"}, {"--output", "xml"}, {"--cpu-isa", "sse"}};
  for (const auto& wrong : kWrong) {
    const Outcome o = k3({"bench", kMini, wrong.option, wrong.value});
    EXPECT_EQ(o.code, 2) << wrong.option << " " << wrong.value;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, Not(testing::IsEmpty()));
  }
  for (const auto& [option, value] : {std::pair{"-p", "16,,32"}, {"-n", "3,"}, {"-t", ",1"}, {"-d", ""}, {"--policy", "bf16,,exact"}}) {
    const Outcome o = k3({"bench", kMini, option, value});
    EXPECT_EQ(o.code, 2) << option << " " << value;
    EXPECT_THAT(o.err, testing::AllOf(HasSubstr(option), HasSubstr("of the list is empty")));
  }
  EXPECT_THAT(k3({"bench", kMini, "-p", "16,,32"}).err, HasSubstr("number 2 of the list"));
  const Outcome short_context = k3({"bench", kMini, "-p", "16", "-n", "3", "-d", "0,10", "--ctx", "25"});
  EXPECT_EQ(short_context.code, 2);
  EXPECT_THAT(short_context.err, testing::AllOf(HasSubstr("--ctx 25"), HasSubstr("26 tokens")));
  EXPECT_EQ(k3(small({"--ctx", "16", "--no-ceilings"})).code, 0);
  const Outcome nothing = k3({"bench", kMini, "-p", "0", "-n", "0"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("nothing to measure"));
  const Outcome layers = k3(small({"--layers", "--no-ceilings"}));
  EXPECT_EQ(layers.code, 2);
  EXPECT_THAT(layers.err, HasSubstr("--device cuda"));
  const Outcome set = k3({"bench", "--random", kMini, "--set", "hidden_size=-4"});
  EXPECT_EQ(set.code, 2);
  EXPECT_THAT(set.err, HasSubstr("--set hidden_size=-4"));
  const Outcome no_model = k3({"bench"});
  EXPECT_EQ(no_model.code, 2);
  EXPECT_THAT(no_model.err, HasSubstr("no model"));
}

// On a narrow terminal columns are left out, and said to be; no line wraps.
TEST(Bench, FitsATerminal) {
  if (!has_terminals()) GTEST_SKIP() << "no pseudo-terminals here";
  Spawn spawn = k3_spawn({});
  spawn.argv = {"/bin/bash", "-c", "stty cols 56; exec \"$0\" bench \"$1\" -p 4 -n 2 -r 1 -t 1,2 -b 1,2 --no-ceilings",
                K3_BINARY, kMini};
  spawn.pty = true;
  spawn.env = {"TERM=xterm", "NO_COLOR=1"};
  const Outcome o = run_process(spawn);
  EXPECT_EQ(o.code, 0) << o.out;
  for (const std::string& line : lines_of(o.out)) {
    if (line.starts_with("prefill") || line.starts_with("decode") || line.starts_with("test")) {
      EXPECT_LE(line.size(), 56u + 4) << line;  // two bytes of "±" and "\r"
    }
  }
  EXPECT_THAT(o.out, HasSubstr("left out for the width of this terminal"));
}

// With a memory plan: the window of the text fits whatever the tests need, and what fills the context is no part of a test.
TEST(Bench, StreamedTestsCountTheirOwnReads) {
  std::vector<std::string> arguments = {"bench", kMini, "-p", "0", "-n", "4", "-d", "0,256", "-b", "4",
                                        "-r", "1", "-t", "2", "--no-ceilings", "--quality", "--json"};
  const int64_t mib = ram_range(arguments).at(0.1);
  arguments.insert(arguments.end(), {"--ram", std::to_string(mib) + "MiB"});
  const json bench = json::parse(k3_ok(arguments));
  const json& results = bench.at("results");
  ASSERT_EQ(results.size(), 2u);
  for (const json& result : results) EXPECT_GT(result.at("quality_tokens").get<int64_t>(), 0);
  const double shallow = results[0].at("disk_bytes_per_token"), deep = results[1].at("disk_bytes_per_token");
  // 256 tokens a sequence would add several times the bytes of four decoded ones; tokens at depth choose other experts.
  EXPECT_GT(deep, 0);
  EXPECT_LT(deep, 2 * shallow);
}

}  // namespace
}  // namespace k3::e2e
