// What a run leaves for its reader, after stops at bad moments and at sizes from nothing to a hundred thousand steps.
#include "k3/train/log/run_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "k3/base/file.h"
#include "k3/train/log/run_report.h"

namespace k3::train {
namespace {

namespace fs = std::filesystem;

std::string fresh_folder(const std::string& name) {
  std::string folder = testing::TempDir() + "k3_run_log_" + name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

StepRecord step(int64_t n) {
  StepRecord r;
  r.step = n;
  r.phase = n <= 3 ? "first" : "second \"phase\"";
  r.loss = 6.0 / static_cast<double>(n) + 1e-17 * static_cast<double>(n);
  r.learning_rate = 1.0 / 3;
  r.seconds = 0.1;
  r.tokens = 4096;
  return r;
}

RunLog opened(const std::string& folder, int64_t resumed) { return RunLog::open(folder, resumed, {}).value(); }

TEST(RunLog, KeepsWhatWasBeforeTheCheckpointAndNothingAfterIt) {
  const std::string folder = fresh_folder("resume");
  {
    RunLog log = opened(folder, 0);
    for (int64_t n = 1; n <= 5; ++n) ASSERT_TRUE(log.add(step(n)).ok());
    ASSERT_TRUE(log.add(EvaluationRecord{4, "held", 1.5, 0.75, 10, 20}).ok());
    ASSERT_TRUE(log.add(SampleRecord{5, "text", "a\nb", "\"c\" \xC3\xA9"}).ok());
  }
  const RunLog log = opened(folder, 4);
  ASSERT_EQ(4U, log.steps().size());
  ASSERT_EQ(1U, log.evaluations().size());
  for (int64_t n = 1; n <= 4; ++n) {
    const StepRecord &now = log.steps()[static_cast<size_t>(n - 1)], was = step(n);
    EXPECT_EQ(was.step, now.step);
    EXPECT_EQ(was.phase, now.phase);
    EXPECT_EQ(was.loss, now.loss) << "not to the bit";
    EXPECT_EQ(was.learning_rate, now.learning_rate);
    EXPECT_EQ(was.tokens, now.tokens);
  }
  EXPECT_EQ(std::string::npos, read_file(folder + "/log.jsonl").value().find("\"step\":5"));
}

TEST(RunLog, HalfALineAndLinesThatAreNoneAreLeftOut) {
  const std::string folder = fresh_folder("half");
  {
    RunLog log = opened(folder, 0);
    for (int64_t n = 1; n <= 2; ++n) ASSERT_TRUE(log.add(step(n)).ok());
  }
  const std::string whole = read_file(folder + "/log.jsonl").value();
  for (size_t cut = 0; cut < whole.size(); cut += 7) {
    ASSERT_TRUE(write_file(folder + "/log.jsonl", whole.substr(0, cut)).ok());
    const RunLog log = opened(folder, 2);
    EXPECT_EQ(static_cast<size_t>(std::count(whole.begin(), whole.begin() + static_cast<int64_t>(cut), '\n')), log.steps().size()) << cut;
  }
  ASSERT_TRUE(write_file(folder + "/log.jsonl", "\n[]\nnull\n{\"type\": \"step\", \"step\": \"one\"}\n\xFF\xFE\n" + whole).ok());
  RunLog log = opened(folder, 2);
  ASSERT_TRUE(log.add(step(3)).ok());
  EXPECT_EQ(3, log.steps().back().step);
}

// A number that no step has must not be cast to one.
TEST(RunLog, StepsThatAreNoneAreLeftOut) {
  std::string kept;
  const std::string good = R"({"type":"step","step":2,"loss":1.5,"tokens":1e300})";
  const RunHistory history = read_history(R"({"type":"step","step":1e300})" "\n" R"({"type":"step","step":1.5})" "\n" R"({"type":"step"})" "\n" + good +
                                              "\n" R"({"type":"step","step":99999999999999999999})",
                                          1000, &kept);
  ASSERT_EQ(1U, history.steps.size());
  EXPECT_EQ(2, history.steps[0].step);
  EXPECT_EQ(0, history.steps[0].tokens);
  EXPECT_EQ(good + "\n", kept);
}

TEST(RunLog, AFolderThatIsNotThereIsNamed) {
  const Result<RunLog> log = RunLog::open("/proc/nothing", 0, {});
  ASSERT_FALSE(log.ok());
  EXPECT_NE(std::string::npos, log.error().message.find("/proc/nothing/log.jsonl")) << log.error().message;
}

TEST(RunLog, AFullDiskAndABrokenFileAreToldApart) {
  for (const char* const file : {"/log.jsonl", "/events.out.tfevents.k3"}) {
    const std::string full = fresh_folder("full");
    fs::create_symlink("/dev/full", full + file);
    Result<RunLog> log = RunLog::open(full, 0, {});
    const Status status = log.ok() ? log->add(step(1)) : Status(log.error());
    ASSERT_FALSE(status.ok()) << file;
    EXPECT_EQ(Code::exhausted, status.error().code) << status.error().message;
    EXPECT_NE(std::string::npos, status.error().message.find(full + file)) << status.error().message;
  }
  // A pipe whose reader goes away: the write fails, and not for want of space.
  const auto former = std::signal(SIGPIPE, SIG_IGN);
  for (const char* const file : {"/log.jsonl", "/events.out.tfevents.k3"}) {
    const std::string broken = fresh_folder("broken");
    ASSERT_EQ(0, ::mkfifo((broken + file).c_str(), 0600));
    const int reader = ::open((broken + file).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(reader, 0);
    RunLog log = opened(broken, 0);
    ASSERT_TRUE(log.add(step(1)).ok());
    ::close(reader);
    const Status status = log.add(step(2));
    ASSERT_FALSE(status.ok()) << file;
    EXPECT_EQ(Code::unavailable, status.error().code) << status.error().message;
  }
  std::signal(SIGPIPE, former);
}

TEST(RunReport, NoStepOneStepAndAHundredThousand) {
  RunFacts facts;
  facts.title = "<b>&";
  facts.config_json = "{\"a\": \"</script>\"}";
  facts.total_steps = 100000;
  size_t former = 0;
  for (const int64_t steps : {0, 1, 2, 1000, 100000}) {
    RunHistory history;
    for (int64_t n = 1; n <= steps; ++n) history.steps.push_back(step(n));
    if (steps > 0) {
      history.evaluations.push_back({1, "held", 1.5, 0.75, 10, 20});
      history.samples.push_back({1, "text", "<u>&", "</table>"});
    }
    const std::string page = run_report(facts, history);
    EXPECT_NE(std::string::npos, page.find("</html>"));
    for (const char* const bad : {"<b>&", "<u>&", ">nan<", ">inf<"}) EXPECT_EQ(std::string::npos, page.find(bad)) << bad << ", " << steps << " steps";
    EXPECT_LT(page.size(), size_t{600000}) << steps << " steps: curves are to be thinned";
    EXPECT_GE(page.size(), former / 2);
    former = page.size();
  }
}

}  // namespace
}  // namespace k3::train
