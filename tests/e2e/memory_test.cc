// --ram: the whole program stays under the promise (the kernel's own high-water mark of the process), says what it plans,
// computes the same bits, and refuses what cannot work.
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kIds = "5,77,901,12,44,1030,7,8,9,10,11,12,4000,4001,4002,500,600,700,800,900";

const std::vector<std::string> kShortRun = {"run", kMini, "-p", kFrance, "--temperature", "0", "--ctx", "1024"};

std::vector<std::string> with_ram(std::vector<std::string> arguments, int64_t mib) {
  arguments.insert(arguments.end(), {"--ram", std::to_string(mib) + "MiB"});
  return arguments;
}

// Runs k3 and answers its largest resident memory, -1 when it failed.
int64_t peak_bytes(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), K3_BINARY);
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  if (::wait4(child, &status, 0, &usage) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return -1;
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(Ram, ResidentMemoryStaysUnderThePromiseAndTheBitsAreTheSame) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is not in the plan";
#endif
  const Scratch scratch;
  k3_ok({"logits", kMini, "--ids", kIds, "--out", scratch.path("whole.npy"), "--deterministic"});
  const RamRange range = ram_range({"logits", kMini, "--ids", kIds, "--out", scratch.path("part.npy")});
  for (const int64_t mib : {range.at(0), range.at(0.2), range.at(0.4), range.at(0.8), 2 * range.most}) {
    const std::string out = scratch.path("part.npy");
    const int64_t peak = peak_bytes({"logits", kMini, "--ids", kIds, "--out", out, "--deterministic", "--ram",
                                     std::to_string(mib) + "MiB"});
    ASSERT_GT(peak, 0) << mib;
    EXPECT_LE(peak, mib << 20);
    EXPECT_EQ(file_text(out), file_text(scratch.path("whole.npy"))) << mib;
  }
  const int64_t mib = ram_range(kShortRun).at(0.3);
  const int64_t chat = peak_bytes(with_ram(kShortRun, mib));
  EXPECT_GT(chat, 0);
  EXPECT_LE(chat, mib << 20);
}

TEST(Ram, PlanIsPrintedBeforeLoadingAndTheAnswerIsTheSame) {
  const std::string whole = k3_ok({"run", kMini, "-p", kFrance, "--temperature", "0", "--deterministic"});
  const int64_t mib = ram_range(kShortRun).at(0.6);
  std::vector<std::string> exact = with_ram(kShortRun, mib);
  exact.emplace_back("--deterministic");
  const Outcome o = k3(exact);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, whole);
  for (const char* part : {"memory plan", "trunk in memory", "expert cache", "scratch", "latents", "from disk"}) {
    EXPECT_THAT(o.err, HasSubstr(part));
  }
  const Outcome all = k3({"run", kMini, "-p", kFrance, "--temperature", "0", "--deterministic", "--ram", "auto"});
  EXPECT_EQ(all.out, whole);
  EXPECT_THAT(all.err, HasSubstr("all in memory"));
  EXPECT_THAT(k3({"run", kMini, "-p", kFrance, "--temperature", "0"}).err, Not(HasSubstr("memory plan")));
}

TEST(Ram, EveryCommandThatLoadsTakesIt) {
  const Scratch scratch;
  put_file(scratch.path("text"), "The cat sat on the mat. The dog did not.");
  const std::string ram = std::to_string(ram_range(kShortRun).at(0.5)) + "MiB";
  k3_ok({"perplexity", kMini, "-f", scratch.path("text"), "--window", "256", "--ram", ram});
  k3_ok({"chat", kMini, "--temperature", "0", "--ram", ram, "--ctx", "1024"}, "Hello\n");
  const std::string stats = scratch.path("stats.json");
  for (int i = 0; i < 2; ++i) k3_ok({"run", kMini, "-p", "Hi", "-n", "8", "--ram", ram, "--ctx", "1024", "--expert-stats", stats});
  EXPECT_THAT(file_text(stats), HasSubstr("k3_expert_stats"));
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--ram", "auto"}}) {
    std::vector<std::string> arguments = {"run", kMini, "-p", "Hi", "-n", "2", "--expert-stats", scratch.path("none.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome all = k3(arguments);
    EXPECT_EQ(all.code, 0);
    EXPECT_THAT(all.err, HasSubstr("every expert is in memory"));
    EXPECT_FALSE(fs::exists(scratch.path("none.json")));
  }
}

TEST(Ram, RefusalsNameTheirReason) {
  const Outcome small = k3({"run", kMini, "-p", "x", "--ram", "20MiB"});
  EXPECT_EQ(small.code, 6) << small.err;
  EXPECT_THAT(small.err, HasSubstr(" = "));
  EXPECT_EQ(small.out, "");
  const Outcome large = k3({"run", kMini, "-p", "x", "--ram", "1000TiB"});
  EXPECT_EQ(large.code, 6) << large.err;
  EXPECT_THAT(large.err, HasSubstr("control groups"));
  EXPECT_EQ(k3({"run", kMini, "-p", "x", "--ram", "lots"}).code, 2);
  const Outcome vram = k3({"run", kMini, "-p", "x", "--vram", "8GiB"});
  EXPECT_EQ(vram.code, 2) << vram.err;
  EXPECT_THAT(vram.err, HasSubstr("--device cuda"));
  EXPECT_EQ(k3({"run", kMini, "-p", "x", "--vram", "much"}).code, 2);
  const Scratch scratch;
  put_file(scratch.path("bad"), "{");
  std::vector<std::string> with_bad = with_ram(kShortRun, ram_range(kShortRun).at(0.5));
  with_bad.insert(with_bad.end(), {"--expert-stats", scratch.path("bad")});
  const Outcome bad = k3(with_bad);
  EXPECT_EQ(bad.code, 4) << bad.err;
  EXPECT_THAT(bad.err, HasSubstr(scratch.path("bad")));
}

}  // namespace
}  // namespace k3::e2e
