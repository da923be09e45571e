// `k3 chat` at a terminal: line editing, Ctrl-C, Ctrl-D, history.
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kStoryEnd = kStory.substr(kStory.rfind(' ')) + "\r\n";  // as the terminal shows it

Spawn terminal_chat(const Scratch& home, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"chat", kMini, "--temperature", "0", "-t", "2"});
  Spawn spawn = k3_spawn(std::move(more));
  spawn.pty = true;
  spawn.env.push_back("HOME=" + home.path());
  spawn.env.push_back("NO_COLOR=1");
  return spawn;
}

// Ctrl-D, again while it is lost: what comes before the editor has taken over the terminal is an end-of-file mark of the
// terminal's own line mode.
Outcome leave(Process& process) {
  for (int i = 0; i < 50 && !process.gone(); ++i) {
    process.write("\x04");
    process.pause(0.1);
  }
  return process.finish();
}

class ChatTerminal : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_terminals()) GTEST_SKIP() << "no pseudo-terminals here (is /dev/pts mounted?)";
  }
};

TEST_F(ChatTerminal, TwoTurnsThenQuit) {
  const Scratch home;
  Process process(terminal_chat(home));
  ASSERT_TRUE(process.wait_out("/help lists the commands"));
  ASSERT_TRUE(process.wait_out("> "));
  process.write(kFrance + "\r");
  ASSERT_TRUE(process.wait_out(france_answer().text)) << process.out();
  ASSERT_TRUE(process.wait_out("used]"));
  ASSERT_TRUE(process.wait_out("> "));
  process.write("Hello!\r");
  ASSERT_TRUE(process.wait_out("used]")) << process.out();
  process.write("/quit\r");
  const Outcome o = process.finish();
  EXPECT_EQ(o.code, 0) << o.out;
  EXPECT_EQ(count_of(o.out, "\x1b[2m"), 0u) << "NO_COLOR is set";
}

TEST_F(ChatTerminal, ControlCStopsTheAnswerNotTheProgram) {
  const Scratch home;
  Process process(terminal_chat(home));
  ASSERT_TRUE(process.wait_out("> "));
  process.write(kStory + "\r");
  ASSERT_TRUE(process.wait_out(kStoryEnd));
  ASSERT_TRUE(process.wait_out(" ") && process.wait_out(" ") && process.wait_out(" "));
  process.write("\x03");
  ASSERT_TRUE(process.wait_out("; stopped]")) << process.out();
  ASSERT_TRUE(process.wait_out("> "));
  process.write("/reset\r");
  ASSERT_TRUE(process.wait_out("forgotten"));
  process.write(kFrance + "\r");
  ASSERT_TRUE(process.wait_out(france_answer().text)) << process.out();
  ASSERT_TRUE(process.wait_out("> "));
  EXPECT_EQ(leave(process).code, 0);
}

TEST_F(ChatTerminal, ControlCAtThePromptDropsTheLine) {
  const Scratch home;
  Process process(terminal_chat(home));
  ASSERT_TRUE(process.wait_out("> "));
  process.write("this is never sent");
  ASSERT_TRUE(process.wait_out("sent"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_out("> ")) << process.out();
  process.write("\x03");  // on an empty line, too
  ASSERT_TRUE(process.wait_out("> ")) << process.out();
  process.write(kFrance + "\r");
  ASSERT_TRUE(process.wait_out(france_answer().text)) << process.out();
  ASSERT_TRUE(process.wait_out("used]"));
  process.write("/save " + home.path("c.json") + "\r");
  ASSERT_TRUE(process.wait_out("Wrote"));
  ASSERT_TRUE(process.wait_out("> "));
  EXPECT_EQ(leave(process).code, 0);
  EXPECT_EQ(json::parse(file_text(home.path("c.json"))).at("messages").at(0).at("content"), kFrance);
}

TEST_F(ChatTerminal, ControlCDropsAContinuedLineToo) {
  const Scratch home;
  Process process(terminal_chat(home));
  ASSERT_TRUE(process.wait_out("> "));
  process.write("first half \\\r");
  ASSERT_TRUE(process.wait_out("\n"));
  process.write("second");
  ASSERT_TRUE(process.wait_out("second"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_out("> ")) << process.out();
  process.write(kFrance + "\r");
  ASSERT_TRUE(process.wait_out(france_answer().text)) << process.out();
  process.write("/save " + home.path("c.json") + "\r");
  ASSERT_TRUE(process.wait_out("Wrote"));
  process.write("/quit\r");
  EXPECT_EQ(process.finish().code, 0);
  EXPECT_EQ(json::parse(file_text(home.path("c.json"))).at("messages").at(0).at("content"), kFrance);
}

TEST_F(ChatTerminal, KeysTypedDuringAnAnswerWaitForThePrompt) {
  const Scratch home;
  Process process(terminal_chat(home, {"-n", "60"}));
  ASSERT_TRUE(process.wait_out("> "));
  process.write(kStory + "\r");
  ASSERT_TRUE(process.wait_out(kStoryEnd) && process.wait_out(" "));
  process.write("/hel\x04p\r");  // Ctrl-D inside a line deletes to the right: nothing here
  ASSERT_TRUE(process.wait_out(" used; ")) << process.out();
  const std::string answer = process.out().substr(process.out().find(kStoryEnd));
  EXPECT_EQ(count_of(answer.substr(0, answer.find(" used; ")), "/hel"), 0u) << "echoed into the answer";
  ASSERT_TRUE(process.wait_out("/save FILE")) << process.out();
  process.write("/quit\r");
  EXPECT_EQ(process.finish().code, 0);
}

TEST_F(ChatTerminal, EditingKeysAndMultiLineMessages) {
  const Scratch home;
  Process process(terminal_chat(home, {"-n", "1"}));
  ASSERT_TRUE(process.wait_out("> "));
  process.write(
      "bc\x01"
      "a\x05"
      "dX\x7f\r");  // to the start, to the end, rub out
  ASSERT_TRUE(process.wait_out("token limit]")) << process.out();
  process.write("one \\\rtwo\r");
  ASSERT_TRUE(process.wait_out("token limit]")) << process.out();
  process.write("h\xc3\xa9llo \xe4\xb8\xad\r");
  ASSERT_TRUE(process.wait_out("token limit]")) << process.out();
  process.write("/save " + home.path("c.json") + "\r");
  ASSERT_TRUE(process.wait_out("Wrote"));
  process.write("/quit\r");
  EXPECT_EQ(process.finish().code, 0);
  const json messages = json::parse(file_text(home.path("c.json"))).at("messages");
  EXPECT_EQ(messages[0]["content"], "abcd");
  EXPECT_EQ(messages[2]["content"], "one \ntwo");
  EXPECT_EQ(messages[4]["content"], "h\xc3\xa9llo \xe4\xb8\xad");
}

TEST_F(ChatTerminal, HistoryOutlivesTheSession) {
  const Scratch home;
  {
    Process process(terminal_chat(home, {"-n", "1"}));
    ASSERT_TRUE(process.wait_out("> "));
    process.write("an old question\r");
    ASSERT_TRUE(process.wait_out("token limit]"));
    ASSERT_TRUE(process.wait_out("> "));
    ASSERT_EQ(leave(process).code, 0);
  }
  EXPECT_THAT(file_text(home.path(".k3_history")), HasSubstr("question"));
  EXPECT_EQ(fs::status(home.path(".k3_history")).permissions() & (fs::perms::group_read | fs::perms::others_read),
            fs::perms::none)
      << "what was asked is nobody else's";
  Process process(terminal_chat(home, {"-n", "1"}));
  ASSERT_TRUE(process.wait_out("> "));
  process.write("\x10\r");  // Ctrl-P: the line before
  ASSERT_TRUE(process.wait_out("an old question")) << process.out();
  ASSERT_TRUE(process.wait_out("token limit]"));
  ASSERT_TRUE(process.wait_out("> "));
  process.write("\x1b[A\r");  // arrow up
  ASSERT_TRUE(process.wait_out("token limit]")) << process.out();
  ASSERT_TRUE(process.wait_out("> "));
  EXPECT_EQ(leave(process).code, 0);
}

TEST_F(ChatTerminal, AHomeThatCannotBeWrittenIsNoFailure) {
  const Scratch home;
  Spawn spawn = terminal_chat(home, {"-n", "1"});
  spawn.env.push_back("HOME=" + home.path("missing"));
  Process process(spawn);
  ASSERT_TRUE(process.wait_out("> "));
  process.write("Hello!\r");
  ASSERT_TRUE(process.wait_out("token limit]"));
  ASSERT_TRUE(process.wait_out("> "));
  EXPECT_EQ(leave(process).code, 0);
}

TEST_F(ChatTerminal, TheTerminalIsLeftAsItWas) {
  const Scratch home;
  // A shell on the same terminal compares the settings before and after.
  Spawn spawn = terminal_chat(home);
  spawn.argv = {
      "/bin/sh", "-c",
      "before=$(stty -g); \"$0\" chat \"$1\" --temperature 0 -n 1; [ \"$before\" = \"$(stty -g)\" ] && echo same-tty",
      K3_BINARY, kMini};
  Process process(spawn);
  ASSERT_TRUE(process.wait_out("> "));
  process.write("Hello!\r");
  ASSERT_TRUE(process.wait_out("token limit]"));
  ASSERT_TRUE(process.wait_out("> "));
  EXPECT_THAT(leave(process).out, HasSubstr("same-tty"));
}

}  // namespace
}  // namespace k3::e2e
