// `k3 run`, as a person and as a script use it.
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kFranceRun = {"run", kMini, "-p", kFrance, "--temperature", "0", "-t", "2"};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json golden_prompt(const std::string& name) {
  return json::parse(file_text(kMini + "/golden/golden.json")).at("prompts").at(name);
}

// The golden continuation as far as the choice was clear (two logits nearer than their tolerance may change places) and no special token came.
std::vector<int32_t> clear_part(const json& golden) {
  std::vector<int32_t> ids;
  const auto first = golden.at("prompt_ids").size() - 1;
  const int32_t specials = json::parse(file_text(kMini + "/config.json")).at("bos_token_id");
  for (const int32_t id : golden.at("greedy_ids").get<std::vector<int32_t>>()) {
    const json& top = golden.at("top8_logits").at(first + ids.size());
    if (id >= specials || top[0].get<double>() - top[1].get<double>() < 4e-4) break;
    ids.push_back(id);
  }
  return ids;
}

// The ids that `render` gives for a request.
std::vector<int32_t> rendered(const json& request) {
  return json::parse(k3_ok({"render", kMini, "-", "--json"}, request.dump())).at("ids").get<std::vector<int32_t>>();
}

TEST(Run, TheAnswerAloneIsOnStdoutAndNotesAreOnStderr) {
  const Outcome o = k3(kFranceRun);
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, france_line());
  EXPECT_THAT(o.err, StartsWith("k3: loaded in "));
  EXPECT_THAT(o.err, HasSubstr("prompt " + std::to_string(france_answer().prompt_ids.size()) + " tokens"));
  EXPECT_THAT(o.err, HasSubstr("tokens/s"));
  EXPECT_EQ(count_of(o.err, "\x1b"), 0u) << "escape codes although stderr is no terminal";
  EXPECT_EQ(count_of(o.err, "\r"), 0u) << "a progress bar although stderr is no terminal";
}

TEST(Run, PromptFromFileStdinAndDash) {
  const Scratch scratch;
  put_file(scratch.path("prompt.txt"), kFrance);
  EXPECT_EQ(k3_ok({"run", kMini, "-f", scratch.path("prompt.txt"), "--temperature", "0"}), france_line());
  EXPECT_EQ(k3_ok({"run", kMini, "--temperature", "0"}, kFrance), france_line());
  EXPECT_EQ(k3_ok({"run", kMini, "-f", "-", "--temperature", "0"}, kFrance), france_line());
  EXPECT_EQ(k3({"run", kMini, "-p", "a", "-f", scratch.path("prompt.txt")}).code, 2);
  const Outcome missing = k3({"run", kMini, "-f", scratch.path("none.txt")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("none.txt"));
}

TEST(Run, ModelPathMayBeTheConfigFile) {
  EXPECT_EQ(k3_ok({"run", kMini + "/config.json", "-p", kFrance, "--temperature", "0"}), france_line());
}

TEST(Run, BothPoliciesAndEveryInstructionSetAnswerTheSame) {
  EXPECT_EQ(k3_ok(with(kFranceRun, {"--policy", "exact"})), france_line());
  EXPECT_EQ(k3_ok(with(kFranceRun, {"--deterministic"})), france_line());
  EXPECT_EQ(k3_ok({"run", kMini, "-p", kFrance, "--temperature", "0", "-t", "1", "--cpu-isa", "scalar"}), france_line());
}

TEST(Run, RawContinuesAsTheGoldenModelDoes) {
  for (const char* name : {"prose", "zh", "code"}) {
    const json golden = golden_prompt(name);
    auto ids = golden.at("prompt_ids").get<std::vector<int32_t>>();
    ids.erase(ids.begin());  // [BOS], which --raw puts there itself
    const std::string prompt = k3_ok({"detokenize", kMini, join_ids(ids)});
    const json answer = json::parse(
        k3_ok({"run", kMini, "--raw", "-p", prompt, "--temperature", "0", "-n", "32", "--policy", "exact", "--json"}));
    const std::vector<int32_t> expected = clear_part(golden);
    auto got = answer.at("ids").get<std::vector<int32_t>>();
    got.resize(std::min(got.size(), expected.size()));
    EXPECT_EQ(got, expected) << name;
    EXPECT_EQ(answer.at("prompt_tokens"), golden.at("prompt_ids").size());
    const Outcome plain = k3({"run", kMini, "--raw", "-p", prompt, "--temperature", "0", "-n", "32", "--policy", "exact"});
    EXPECT_EQ(plain.out, answer.at("text").get<std::string>() + "\n");
    if (answer.at("completion_tokens") == 32) {
      EXPECT_EQ(answer.at("finish_reason"), "length");
      EXPECT_THAT(plain.err, HasSubstr("cut after 32 tokens"));
    }
  }
}

TEST(Run, JsonHasEveryField) {
  const Outcome o = k3(with(kFranceRun, {"--json"}));
  EXPECT_EQ(o.err, "");
  const json answer = json::parse(o.out);
  EXPECT_EQ(answer.at("text"), france_answer().text);
  EXPECT_EQ(answer.at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("prompt_tokens"), france_answer().prompt_ids.size());
  EXPECT_EQ(answer.at("completion_tokens"), answer.at("ids").size());
  EXPECT_GT(answer.at("prefill_seconds"), 0);
  EXPECT_GT(answer.at("decode_seconds"), 0);
  // The golden continuation goes on to the end token; ours may stop as soon as the message is closed.
  const auto golden = golden_prompt("chat").at("greedy_ids").get<std::vector<int32_t>>();
  const auto ids = answer.at("ids").get<std::vector<int32_t>>();
  ASSERT_LE(ids.size(), golden.size());
  ASSERT_GE(ids.size(), france_answer().ids.size());
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), golden.begin()));
}

TEST(Run, SeedMakesSamplingReproducible) {
  const auto story = [](const char* seed, std::vector<std::string> more = {}) {
    return k3_ok(with({"run", kMini, "--raw", "-p", "It was", "-n", "24", "--temperature", "1", "--seed", seed}, more));
  };
  const std::string first = story("7");
  EXPECT_EQ(first, story("7"));
  EXPECT_NE(first, story("8"));
  EXPECT_EQ(story("7", {"--top-k", "1"}), story("8", {"--top-k", "1"}));
  EXPECT_EQ(story("7", {"--min-p", "1"}), story("8", {"--min-p", "1"}));
  EXPECT_EQ(story("7", {"--top-p", "0.000001"}), story("8", {"--top-p", "0.000001"}));
}

TEST(Run, PenaltiesChangeTheAnswer) {
  const std::vector<std::string> story = {"run", kMini, "--raw", "-p", "The big boat", "-n", "40", "--temperature", "0"};
  const std::string plain = k3_ok(story);
  EXPECT_NE(plain, k3_ok(with(story, {"--repetition-penalty", "1.8"})));
  EXPECT_NE(plain, k3_ok(with(story, {"--presence-penalty", "2"})));
}

TEST(Run, StopStringsEndTheAnswerBeforeThem) {
  const std::string stop = france_answer().stop(), before = france_answer().before_stop();
  EXPECT_EQ(k3_ok(with(kFranceRun, {"--stop", stop})), before + "\n");
  const std::string over_words = france_answer().text.substr(france_answer().text.find(' ') - 2, 5);
  EXPECT_EQ(k3_ok(with(kFranceRun, {"--stop", "nowhere to be found", "--stop", over_words})),
            france_answer().text.substr(0, france_answer().text.find(over_words)) + "\n");
  const json answer = json::parse(k3_ok(with(kFranceRun, {"--stop", stop, "--json"})));
  EXPECT_EQ(answer.at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("text"), before);
  const Outcome empty = k3(with(kFranceRun, {"--stop", ""}));
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("--stop"));
}

TEST(Run, MaxTokensIsSaid) {
  const Outcome o = k3(with(kFranceRun, {"-n", "3"}));
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, france_answer().first(3) + "\n");
  EXPECT_THAT(o.err, HasSubstr("cut after 3 tokens"));
  EXPECT_EQ(json::parse(k3_ok(with(kFranceRun, {"-n", "3", "--json"}))).at("finish_reason"), "length");
}

TEST(Run, AFullContextIsSaid) {
  const size_t prompt = france_answer().prompt_ids.size();
  const std::string full = std::to_string(prompt + 4);
  const Outcome cut = k3(with(kFranceRun, {"--ctx", full}));
  EXPECT_EQ(cut.code, 0);
  EXPECT_THAT(cut.out, StartsWith(france_answer().first(3)));
  EXPECT_THAT(france_line(), Not(StartsWith(cut.out)));
  EXPECT_THAT(cut.err, HasSubstr("the context of " + full + " tokens is full"));
  const Outcome raw = k3({"run", kMini, "--raw", "-p", "He was", "--ctx", "10", "--temperature", "0"});
  EXPECT_THAT(raw.err, HasSubstr("the context of 10 tokens is full"));
  for (const std::string& ctx : {std::string("10"), std::to_string(prompt)}) {
    const Outcome never = k3(with(kFranceRun, {"--ctx", ctx}));
    EXPECT_EQ(never.code, 6) << never.err;
    EXPECT_EQ(never.out, "");
    EXPECT_THAT(never.err, HasSubstr("--ctx"));
  }
  const Outcome too_long = k3(with(kFranceRun, {"--ctx", "2000000"}));
  EXPECT_EQ(too_long.code, 2);
  EXPECT_THAT(too_long.err, HasSubstr("1048576"));
}

TEST(Run, ThinkingAndSystemReachThePrompt) {
  const auto prompt_tokens = [](const std::vector<std::string>& more) {
    return json::parse(k3_ok(with(kFranceRun, with({"--json", "-n", "30"}, more)))).at("prompt_tokens").get<size_t>();
  };
  const json user = {{"role", "user"}, {"content", kFrance}};
  const auto request = [&](json more) {
    more["messages"] = json::array({user});
    return more;
  };
  EXPECT_EQ(prompt_tokens({}), rendered(request({})).size());
  EXPECT_EQ(prompt_tokens({"--think", "off"}), rendered(request({{"thinking", {{"type", "disabled"}}}})).size());
  EXPECT_EQ(prompt_tokens({"--think", "on"}), rendered(request({{"thinking", {{"type", "enabled"}}}})).size());
  for (const char* effort : {"low", "high", "max"}) {
    const auto expected = rendered(request({{"thinking", {{"type", "enabled"}, {"effort", effort}}}})).size();
    EXPECT_EQ(prompt_tokens({"--effort", effort}), expected) << effort;
    EXPECT_EQ(prompt_tokens({"--think", "on", "--effort", effort}), expected) << effort;
  }
  const json system = {{"role", "system"}, {"content", "Be brief."}};
  EXPECT_EQ(prompt_tokens({"--system", "Be brief."}), rendered({{"messages", json::array({system, user})}}).size());
}

TEST(Run, ThoughtsStayOutOfTheAnswer) {
  // Three tokens do not get out of a thought, whatever the model says.
  const json answer = json::parse(k3_ok(with(kFranceRun, {"--think", "on", "--effort", "low", "-n", "3", "--json"})));
  const Outcome plain = k3(with(kFranceRun, {"--think", "on", "--effort", "low", "-n", "3"}));
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.out, answer.at("text").get<std::string>() + "\n");
  ASSERT_TRUE(answer.contains("reasoning"));
  EXPECT_THAT(plain.err, HasSubstr("thinking")) << "an answer that is all thought has to say so";
  const Outcome effort_off = k3(with(kFranceRun, {"--effort", "extreme"}));
  EXPECT_EQ(effort_off.code, 2);
  EXPECT_THAT(effort_off.err, HasSubstr("low"));
}

TEST(Run, AnEmptyPromptIsAPrompt) {
  EXPECT_EQ(json::parse(k3_ok({"run", kMini, "-p", "", "--json", "-n", "2"})).at("prompt_tokens"),
            rendered({{"messages", {{{"role", "user"}, {"content", ""}}}}}).size());
  EXPECT_EQ(json::parse(k3_ok({"run", kMini, "--raw", "-p", "", "--json", "-n", "2"})).at("prompt_tokens"), 1);
}

TEST(Run, BadInputIsRefused) {
  const Outcome utf8 = k3({"run", kMini}, "ab\xff");
  EXPECT_EQ(utf8.code, 2);
  EXPECT_THAT(utf8.err, HasSubstr("UTF-8"));
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{"--temperature", "-1"},
                                                                                     {"--temperature", "nan"},
                                                                                     {"--top-p", "2"},
                                                                                     {"--top-p", "0"},
                                                                                     {"--top-k", "-3"},
                                                                                     {"--min-p", "1.5"},
                                                                                     {"--repetition-penalty", "0"},
                                                                                     {"--presence-penalty", "9"},
                                                                                     {"--seed", "abc"},
                                                                                     {"--seed", "-1"},
                                                                                     {"-n", "0"},
                                                                                     {"-t", "0"},
                                                                                     {"-t", "99999"},
                                                                                     {"--ctx", "0"},
                                                                                     {"--policy", "fp8"},
                                                                                     {"--cpu-isa", "neon"},
                                                                                     {"--think", "maybe"},
                                                                                     {"--no-such-option"}}) {
    const Outcome o = k3(with(kFranceRun, wrong));
    EXPECT_EQ(o.code, 2) << wrong.front() << "\n" << o.err;
    EXPECT_EQ(o.out, "") << wrong.front();
    EXPECT_THAT(o.err, Not(testing::IsEmpty())) << wrong.front();
  }
}

TEST(Run, InterruptEndsTheAnswerWithItsOwnExitCode) {
  Process process(k3_spawn({"run", kMini, "--raw", "-p", "It was a dark night", "--temperature", "0", "--ctx", "30000"}));
  process.close_stdin();
  ASSERT_TRUE(process.wait_out(" "));
  process.send(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 130);
  EXPECT_THAT(o.out, testing::EndsWith("\n"));
  EXPECT_THAT(o.err, HasSubstr("tokens/s"));
}

TEST(Run, OnATerminal) {
  if (!has_terminals()) GTEST_SKIP() << "no pseudo-terminals here (is /dev/pts mounted?)";
  Spawn spawn = k3_spawn(kFranceRun);
  spawn.pty = true;
  const Outcome colour = run_process(spawn);
  EXPECT_EQ(colour.code, 0);
  EXPECT_THAT(colour.out, HasSubstr(france_answer().text + "\r\n"));
  EXPECT_THAT(colour.out, HasSubstr("\x1b[2m"));
  for (const char* setting : {"NO_COLOR=1", "TERM=dumb"}) {
    spawn.env.emplace_back(setting);
    const Outcome plain = run_process(spawn);
    EXPECT_THAT(plain.out, HasSubstr(france_answer().text + "\r\n"));
    EXPECT_EQ(count_of(plain.out, "\x1b["), 0u) << setting << ": " << plain.out;
    spawn.env.back() = "NO_COLOR=";  // empty is as if unset
  }
  // Without a prompt a person at a terminal is told what is missing; nothing waits for input.
  Spawn empty = k3_spawn({"run", kMini});
  empty.pty = true;
  const Outcome asks = Process(empty).finish();
  EXPECT_EQ(asks.code, 2);
  EXPECT_THAT(asks.out, HasSubstr("-p"));
}

}  // namespace
}  // namespace k3::e2e
