// `k3 chat` scripted over a pipe: state between turns, commands, interruption.
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> chat(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"chat", kMini, "--temperature", "0", "-t", "2", "--deterministic"});
  return more;
}

// "[35 + 15 tokens, 64.5 tokens/s; context 52 used; stopped]"
struct Turn {
  int64_t fed = 0, generated = 0, context = 0;
  std::string end;
};

std::vector<Turn> turns_of(const std::string& err) {
  static const std::regex kNote(R"(\[(\d+) \+ (\d+) tokens, [0-9.]+ tokens/s; context (\d+) used(?:; ([^\]]*))?\])");
  std::vector<Turn> turns;
  for (std::sregex_iterator it(err.begin(), err.end(), kNote), end; it != end; ++it) {
    turns.push_back({std::stoll((*it)[1]), std::stoll((*it)[2]), std::stoll((*it)[3]), (*it)[4]});
  }
  return turns;
}

json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
json assistant(const std::string& text) { return {{"role", "assistant"}, {"content", text}}; }

int64_t rendered_tokens(const json& request) {
  return static_cast<int64_t>(json::parse(k3_ok({"render", kMini, "-", "--json"}, request.dump())).at("ids").size());
}

int64_t token_count(const std::string& text) {
  return json::parse(k3_ok({"tokenize", kMini, "--json"}, text)).at("count").get<int64_t>();
}

TEST(Chat, TheSecondTurnReadsOnlyWhatIsNew) {
  const Outcome o = k3(chat(), kFrance + "\nI want to watch some movies.\n/quit\n");
  EXPECT_EQ(o.code, 0) << o.err;
  const std::vector<Turn> turns = turns_of(o.err);
  ASSERT_EQ(turns.size(), 2u) << o.err;
  ASSERT_TRUE(o.out.starts_with(france_line())) << o.out;
  const json first = {{"messages", {user(kFrance)}}};
  const json both = {
      {"messages", {user(kFrance), assistant(france_answer().text), user("I want to watch some movies.")}}};
  EXPECT_EQ(turns[0].fed, rendered_tokens(first));
  // Prompt and answer of turn one (its last token is fed with turn two), then the rest: together the whole prompt once.
  EXPECT_EQ(turns[0].fed + turns[0].generated - 1 + turns[1].fed, rendered_tokens(both));
  EXPECT_EQ(count_of(o.err, "\x1b"), 0u);

  // The answer is the one that a whole reading of the same conversation gives.
  const Scratch scratch;
  put_file(scratch.path("c.json"),
           json({{"messages", {user(kFrance), assistant(france_answer().text)}}}).dump());
  const Outcome again = k3(chat(), "/load " + scratch.path("c.json") + "\nI want to watch some movies.\n");
  EXPECT_EQ(france_line() + again.out, o.out);
  const std::vector<Turn> whole = turns_of(again.err);
  ASSERT_EQ(whole.size(), 1u) << again.err;
  EXPECT_EQ(whole[0].fed, rendered_tokens(both));
  EXPECT_EQ(whole[0].context, turns[1].context);
}

TEST(Chat, TheEndOfInputLeaves) {
  const Outcome o = k3(chat(), kFrance);  // without a newline
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, france_line());
  const Outcome nothing = k3(chat(), "");
  EXPECT_EQ(nothing.code, 0);
  EXPECT_EQ(nothing.out, "");
  const Outcome blank = k3(chat(), "\n\r\n" + kFrance + "\r\n");
  EXPECT_EQ(blank.out, france_line());
}

TEST(Chat, HelpNamesEveryCommand) {
  const Outcome o = k3(chat(), "/help\n");
  for (const char* name : {"/help", "/reset", "/system", "/effort", "/save", "/load", "/quit", "Ctrl-C", "Ctrl-D"}) {
    EXPECT_THAT(o.err, HasSubstr(name));
  }
  EXPECT_EQ(o.out, "");
}

TEST(Chat, WrongCommandsAreSaidAndTheConversationGoesOn) {
  const Outcome o = k3(chat(),
                       "/frobnicate\n/effort\n/effort extreme\n/save\n/load\n/load /no/such/file\n/save /no/such/folder/x\n"
                       "/system\n" +
                           kFrance + "\n");
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, HasSubstr("no command /frobnicate"));
  EXPECT_THAT(o.err, HasSubstr("/effort takes off, low, high or max"));
  EXPECT_THAT(o.err, HasSubstr("/save needs a file name"));
  EXPECT_THAT(o.err, HasSubstr("/load needs a file name"));
  EXPECT_THAT(o.err, HasSubstr("/no/such/file"));
  EXPECT_THAT(o.err, HasSubstr("/no/such/folder/x"));
  EXPECT_THAT(o.err, HasSubstr("There is no system message"));
  EXPECT_EQ(o.out, france_line());
}

TEST(Chat, ALineThatIsNotUtf8IsRefused) {
  const Outcome o = k3(chat(), "\xff\xfe\n/x\xff\n" + kFrance + "\n");
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, HasSubstr("not UTF-8"));
  EXPECT_EQ(o.out, france_line());
}

TEST(Chat, ResetForgetsAndSystemAndEffortReadAgain) {
  const Outcome o = k3(chat(), kFrance + "\n/reset\n" + kFrance + "\n/system Be brief.\n/system\n" + kFrance +
                                   "\n/effort low\n" + kFrance + "\n/effort off\n/reset\n" + kFrance + "\n");
  EXPECT_EQ(o.code, 0);
  const std::vector<Turn> turns = turns_of(o.err);
  ASSERT_EQ(turns.size(), 5u) << o.err;
  EXPECT_EQ(turns[0].fed, turns[1].fed);
  EXPECT_TRUE(o.out.starts_with(france_line() + france_line()));
  // After /system the whole conversation is read: system, question, answer, question.
  const json system = {{"role", "system"}, {"content", "Be brief."}};
  EXPECT_EQ(
      turns[2].fed,
      rendered_tokens({{"messages", {system, user(kFrance), assistant(france_answer().text), user(kFrance)}}}));
  EXPECT_THAT(o.err, HasSubstr("Be brief."));
  EXPECT_GT(turns[3].fed, turns[2].fed);
  // /reset keeps the system message.
  EXPECT_EQ(turns[4].fed, rendered_tokens({{"messages", {system, user(kFrance)}}, {"thinking", {{"type", "disabled"}}}}));
}

TEST(Chat, SystemOptionIsTheSystemMessage) {
  const Outcome o = k3(chat({"--system", "Be brief."}), kFrance + "\n");
  const std::vector<Turn> turns = turns_of(o.err);
  ASSERT_EQ(turns.size(), 1u);
  const json system = {{"role", "system"}, {"content", "Be brief."}};
  EXPECT_EQ(turns[0].fed, rendered_tokens({{"messages", {system, user(kFrance)}}}));
}

TEST(Chat, SaveAndLoadRoundTrip) {
  const Scratch scratch;
  const std::string file = scratch.path("talk.json"), copy = scratch.path("copy.json");
  k3_ok(chat({"--system", "Be \"brief\"."}), kFrance + "\n/save " + file + "\n");
  const json saved = json::parse(file_text(file));
  ASSERT_EQ(saved.at("messages").size(), 3u);
  EXPECT_EQ(saved["messages"][0]["role"], "system");
  EXPECT_EQ(saved["messages"][0]["content"], "Be \"brief\".");
  EXPECT_EQ(saved["messages"][1]["content"], kFrance);
  EXPECT_EQ(saved["messages"][2]["role"], "assistant");
  EXPECT_EQ(saved["thinking"]["type"], "disabled");
  k3_ok(chat(), "/load " + file + "\n/save " + copy + "\n");
  EXPECT_EQ(file_text(copy), file_text(file));
  // A saved conversation is a request that render takes.
  EXPECT_GT(rendered_tokens(saved), static_cast<int64_t>(france_answer().prompt_ids.size()));
}

// What follows after /load is what would have followed without a break, and nothing is read again.
TEST(Chat, ASavedStateGoesOnAsIfNeverInterrupted) {
  const Scratch scratch;
  const std::string file = scratch.path("talk.k3slot");
  const std::vector<std::string> options = {"chat", kMini, "--temperature", "1", "--seed", "7", "-n", "24", "-t", "2", "--deterministic"};
  const std::string second = "I want to watch some movies.\n";
  const Outcome whole = k3(options, kFrance + "\n" + second);
  const Outcome before = k3(options, kFrance + "\n/save " + file + "\n");
  EXPECT_THAT(before.err, HasSubstr("2 messages"));
  const Outcome after = k3(options, "/load " + file + "\n" + second);
  EXPECT_EQ(after.code, 0) << after.err;
  EXPECT_EQ(before.out + after.out, whole.out);
  ASSERT_EQ(turns_of(after.err).size(), 1u) << after.err;
  EXPECT_EQ(turns_of(after.err)[0].fed, turns_of(whole.err)[1].fed);
  // Other settings, damage and a cut file are refused, and the session stays usable.
  EXPECT_THAT(k3(chat({"--policy", "exact"}), "/load " + file + "\n").err, HasSubstr("other cache settings"));
  const std::string bytes = file_text(file);
  put_file(file, bytes.substr(0, bytes.size() / 2));
  const Outcome cut = k3(chat(), "/load " + file + "\n" + kFrance + "\n");
  EXPECT_THAT(cut.err, HasSubstr(file));
  EXPECT_EQ(cut.out, france_line());
}

TEST(Chat, ABrokenConversationFileIsRefusedAndTheOldOneStays) {
  const Scratch scratch;
  const std::string bad = scratch.path("bad.json"), after = scratch.path("after.json");
  for (const char* text : {"{", "[]", R"({"messages": 3})", R"({"messages": [{"role": "nobody", "content": "x"}]})", "",
                           R"({"messages": [{"role": "tool", "tool_call_id": "a", "content": "nobody asked"}]})"}) {
    put_file(bad, text);
    const Outcome o = k3(chat(), kFrance + "\n/load " + bad + "\n/save " + after + "\n");
    EXPECT_EQ(o.code, 0);
    EXPECT_THAT(o.err, HasSubstr("bad.json: ")) << text;
    EXPECT_EQ(json::parse(file_text(after)).at("messages").size(), 2u) << text;
  }
}

TEST(Chat, ALineThatEndsInABackslashGoesOn) {
  const Scratch scratch;
  k3_ok(chat({"-n", "1"}), "What is the capital \\\nof France?\n/save " + scratch.path("c.json") + "\n");
  const json saved = json::parse(file_text(scratch.path("c.json")));
  EXPECT_EQ(saved["messages"][0]["content"], "What is the capital \nof France?");
}

TEST(Chat, AFullContextIsSaidAndResetHelps) {
  // Full before the answer is whole.
  const size_t ctx = france_answer().prompt_ids.size() + france_answer().ids.size() - 1;
  const Outcome o = k3(chat({"--ctx", std::to_string(ctx)}), kFrance + "\n" + kFrance + "\n/reset\n" + kFrance + "\n");
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, HasSubstr("The context is full"));
  EXPECT_THAT(o.err, HasSubstr("the context has room for"));
  EXPECT_EQ(count_of(o.out, france_answer().first(3)), 2u) << o.out;
}

TEST(Chat, StopStringsAndTokenLimitCloseTheTurn) {
  const Outcome o = k3(chat({"--stop", france_answer().stop()}), kFrance + "\n" + kFrance + "\n");
  EXPECT_THAT(o.err, HasSubstr("; stop string]"));
  EXPECT_TRUE(o.out.starts_with(france_answer().before_stop() + "\n")) << o.out;
  const Outcome limit = k3(chat({"-n", "2"}), kFrance + "\nHello!\n");
  const std::vector<Turn> turns = turns_of(limit.err);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].end, "token limit");
  const std::string two = france_answer().first(2);
  EXPECT_TRUE(limit.out.starts_with(two + "\n")) << limit.out;
  if (token_count(two) == 2) {
    EXPECT_EQ(turns[0].fed + 1 + turns[1].fed, rendered_tokens({{"messages", {user(kFrance), assistant(two), user("Hello!")}}}));
  }
}

// Interrupts a long answer by SIGINT, then asks again. Returns false where the answer was cut inside a word, whose text
// has other tokens than the model chose: then a whole reading is another conversation.
bool interrupted_turn_has_the_right_state(const std::string& folder) {
  const std::string cut_file = folder + "/cut.json", end_file = folder + "/end.json";
  Process process(k3_spawn(chat()));
  process.write_line(kStory);
  for (int words = 0; words < 5; ++words) EXPECT_TRUE(process.wait_out(" "));
  process.send(SIGINT);
  EXPECT_TRUE(process.wait_err("; stopped]")) << process.err();
  process.write_line("/save " + cut_file);
  process.write_line(kFrance);
  EXPECT_TRUE(process.wait_err("used]")) << process.err();
  process.write_line("/save " + end_file);
  process.write_line("/quit");
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 0) << o.err;
  const std::vector<Turn> turns = turns_of(o.err);
  EXPECT_EQ(turns.size(), 2u) << o.err;
  if (turns.size() != 2) return true;

  const json cut = json::parse(file_text(cut_file)), end = json::parse(file_text(end_file));
  EXPECT_EQ(cut.at("messages").size(), 2u);
  EXPECT_EQ(end.at("messages").size(), 4u);
  const std::string said = cut["messages"][1]["content"];
  EXPECT_TRUE(o.out.starts_with(said + "\n")) << o.out;
  if (token_count(said) != turns[0].generated) return false;

  // Closed properly: what the caches and the queue hold is the rendered conversation.
  json closed = cut;
  closed["add_generation_prompt"] = false;
  EXPECT_EQ(turns[0].context, rendered_tokens(closed));
  // The next answer is that of a whole reading, bit for bit (--deterministic).
  const Outcome whole = k3(chat(), "/load " + cut_file + "\n" + kFrance + "\n");
  EXPECT_EQ(whole.out, end["messages"][3]["content"].get<std::string>() + "\n");
  const std::vector<Turn> read = turns_of(whole.err);
  EXPECT_EQ(read.size(), 1u);
  if (read.size() == 1) {
    EXPECT_EQ(read[0].context, turns[1].context);
    EXPECT_EQ(read[0].generated, turns[1].generated);
    EXPECT_GT(read[0].fed, turns[1].fed);
  }
  return true;
}

TEST(Chat, InterruptStopsTheAnswerAndTheStateIsRight) {
  const Scratch scratch;
  bool compared = false;
  for (int attempt = 0; attempt < 8 && !compared && !testing::Test::HasFailure(); ++attempt) {
    compared = interrupted_turn_has_the_right_state(scratch.path());
  }
  EXPECT_TRUE(compared) << "every interruption fell inside a word";
}

TEST(Chat, InterruptWhileReadingALongMessage) {
  std::string text;
  for (int i = 0; i < 1500; ++i) text += "the ship sails on the sea and ";  // several seconds of prefill
  Process process(k3_spawn(chat()));
  process.write_line(text);
  process.pause(1.5);
  process.send(SIGINT);
  EXPECT_TRUE(process.wait_err("; stopped]")) << process.err();
  process.write_line("/reset");
  process.write_line(kFrance);
  process.close_stdin();
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, france_line());
  const std::vector<Turn> turns = turns_of(o.err);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].generated, 0);
  EXPECT_LT(turns[0].fed, turns[0].context) << "the unread rest waits in the queue";
}

}  // namespace
}  // namespace k3::e2e
