// The program as a Unix process: exit codes, help, closed pipes, full disks.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kCommands = {"run",    "chat",       "serve",   "inspect", "tokenize", "detokenize", "render",
                                            "logits", "perplexity", "init",    "convert",  "bench"};

TEST(Help, EveryCommandTeaches) {
  const std::string all = k3_ok({"--help"});
  for (const std::string& command : kCommands) {
    EXPECT_THAT(all, HasSubstr(command));
    const std::string help = k3_ok({command, "--help"});
    EXPECT_THAT(help, HasSubstr("Usage: k3 " + command));
    EXPECT_THAT(help, testing::AnyOf(HasSubstr("Example"), HasSubstr("  --")));
    EXPECT_THAT(help, HasSubstr(command == "init" ? "CONFIG" : command == "inspect" ? "PATH" : "MODEL"));
    EXPECT_EQ(count_of(help, "\x1b"), 0u);
  }
  EXPECT_THAT(all, HasSubstr("Exit codes"));
  for (const char* command : {"run", "chat", "serve", "logits", "perplexity", "bench"}) {
    const std::string help = k3_ok({command, "--help"});
    for (const char* option : {"--threads", "--policy", "--cpu-isa", "--ctx", "--deterministic"}) {
      EXPECT_THAT(help, HasSubstr(option)) << command;
    }
  }
  for (const char* command : {"run", "inspect", "tokenize", "detokenize", "render", "logits", "perplexity", "bench"}) {
    EXPECT_THAT(k3_ok({command, "--help"}), HasSubstr("--json")) << command;
  }
}

TEST(Help, Version) { EXPECT_THAT(k3_ok({"--version"}), testing::MatchesRegex("k3 [0-9]+\\.[0-9]+\\.[0-9]+ .*\n")); }

TEST(Usage, WhatIsWrongIsNamed) {
  const Outcome unknown = k3({"inspct", kMini});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("inspct"));
  EXPECT_EQ(k3({}).code, 2);
  for (const std::string& command : kCommands) {
    const Outcome option = k3({command, kMini, "x", "--no-such-option"});
    EXPECT_EQ(option.code, 2) << command;
    EXPECT_EQ(option.out, "") << command;
    EXPECT_EQ(k3({command}).code, 2) << command << " without its model";
  }
  EXPECT_THAT(k3({"inspect", kMini, "--no-such-option"}).err, HasSubstr("--no-such-option"));
}

TEST(ExitCodes, EachDocumentedOne) {
  const Scratch scratch;
  put_file(scratch.path("broken.json"), "{");
  fs::create_directories(scratch.path("gguf"));
  put_file(scratch.path("gguf/config.json"), file_text(kMini + "/config.json"));
  put_file(scratch.path("gguf/model.gguf"), "GGUF\x03");
  EXPECT_EQ(k3({"tokenize", kMini, "a"}).code, 0);
  Spawn unreadable = k3_spawn({"tokenize", kMini});
  unreadable.stdin_path = "/";  // a folder: read() fails
  const Outcome failed = run_process(unreadable);
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("stdin"));
  EXPECT_EQ(k3({"tokenize", kMini, "a", "--bogus"}).code, 2);
  EXPECT_EQ(k3({"tokenize", scratch.path("nowhere"), "a"}).code, 3);
  EXPECT_EQ(k3({"inspect", scratch.path("broken.json")}).code, 4);
  const Outcome gguf = k3({"logits", scratch.path("gguf"), "--ids", "1", "--out", scratch.path("x.npy")});
  EXPECT_EQ(gguf.code, 5) << gguf.err;
  EXPECT_THAT(gguf.err, HasSubstr("GGUF"));
  EXPECT_EQ(k3({"run", kMini, "-p", "hi", "--ctx", "3"}).code, 6);
  // 130: Run.InterruptEndsTheAnswerWithItsOwnExitCode.
}

TEST(Serve, APoolThatIsTooSmallOrTooLargeIsNotPassedOver) {
  const auto serve = [](const char* pool) { return k3_spawn({"serve", kMini, "--port", "0", "-q", "--pool-bytes", pool}); };
  Process small(serve("16MiB"));
  ASSERT_TRUE(small.wait_err("listening on")) << small.err();
  EXPECT_THAT(small.err(), testing::AllOf(HasSubstr("0 at 32,768 tokens"), HasSubstr("warning: the pool has no room for a request of 32,768 tokens")));
  small.send(SIGTERM);
  EXPECT_EQ(small.finish().code, 0);
  const Outcome large = run_process(serve("1000TiB"));
  EXPECT_EQ(large.code, 6) << large.err;
  EXPECT_THAT(large.err, HasSubstr("--pool-bytes"));
}

TEST(ExitCodes, ErrorsGoToStderrInOneLine) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", "/nowhere"},
                                             {"run", "/nowhere", "-p", "x"},
                                             {"chat", "/nowhere"},
                                             {"serve", "/nowhere"},
                                             {"tokenize", "/nowhere", "x"},
                                             {"render", "/nowhere", "-"},
                                             {"bench", "/nowhere"},
                                             {"logits", "/nowhere", "--ids", "1", "--out", "x"},
                                             {"perplexity", "/nowhere", "--ids", "1"},
                                             {"convert", "/nowhere", "x"},
                                             {"init", "/nowhere", "x"},
                                             {"detokenize", "/nowhere", "1"}}) {
    const Outcome o = k3(arguments);
    EXPECT_EQ(o.code, 3) << arguments.front() << ": " << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, StartsWith("k3: error: ")) << arguments.front();
    EXPECT_THAT(o.err, HasSubstr("/nowhere"));
    EXPECT_EQ(count_of(o.err, "\n"), 1u) << o.err;
  }
}

Outcome shell(const std::string& script) {
  Spawn spawn = k3_spawn({});
  spawn.argv = {"/bin/bash", "-c", script, K3_BINARY, kMini};
  return run_process(spawn);
}

TEST(ClosedPipe, EndsQuietly) {
  for (const char* reader : {"true", "head -c 1"}) {
    for (const std::string& command :
         {std::string("tokenize \"$1\" -f \"$1/golden/golden.json\""), std::string("inspect \"$1\" --json"),
          std::string("run \"$1\" --raw -p 'It was' -n 200 --temperature 0"),
          std::string("chat \"$1\" --temperature 0 <<< 'Tell me a story.'")}) {
      const Outcome o = shell("\"$0\" " + command + " | " + reader + " > /dev/null; echo ${PIPESTATUS[0]}");
      EXPECT_EQ(count_of(o.err, "error"), 0u) << command << "\n" << o.err;
      // 128 + SIGPIPE; 0 where all of the output fitted into the pipe before the reader went.
      EXPECT_THAT(o.out, testing::AnyOf("141\n", "0\n")) << command;
    }
  }
}

TEST(FullDisk, OfStdoutIsAnError) {
  const Scratch scratch;
  put_file(scratch.path("text"), std::string(200'000, 'x'));
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"run", kMini, "-p", kFrance, "--temperature", "0"},
                                             {"run", kMini, "-p", kFrance, "--temperature", "0", "--json"},
                                             {"tokenize", kMini, "a"},
                                             {"tokenize", kMini, "-f", scratch.path("text")},
                                             {"detokenize", kMini, "97"},
                                             {"inspect", kMini},
                                             {"inspect", kMini, "--json"},
                                             {"perplexity", kMini, "--ids", "1,2,3"},
                                             {"bench", kMini, "--prefill", "8", "--decode", "2", "-r", "1"},
                                             {"--help"},
                                             {"run", "--help"},
                                             {"--version"}}) {
    Spawn spawn = k3_spawn(arguments);
    spawn.stdout_path = "/dev/full";
    const Outcome o = run_process(spawn);
    EXPECT_EQ(o.code, 6) << arguments.front() << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr("cannot write to stdout: No space left on device")) << arguments.front();
  }
}

TEST(FullDisk, StopsALongAnswer) {
  Spawn spawn = k3_spawn({"run", kMini, "--raw", "-p", "It was", "--temperature", "0", "--ctx", "100000"});
  spawn.stdout_path = "/dev/full";
  spawn.timeout_seconds = 20;  // the whole answer would take an hour
  EXPECT_EQ(run_process(spawn).code, 6);
  Spawn chat = k3_spawn({"chat", kMini, "--temperature", "0"});
  chat.stdout_path = "/dev/full";
  EXPECT_EQ(run_process(chat, "Hello!\nHello!\nHello!\n").code, 6);
}

// Devices, pipes and links of the scratch folder stand for those of /dev: a program that replaced its output by a file would
// do so here alone, and not to the machine that runs the test as root.
TEST(SpecialOutput, ADeviceIsWrittenAndStaysADevice) {
  const Scratch scratch;
  const std::string full = scratch.path("full");
  if (::mknod(full.c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0) GTEST_SKIP() << "making a device needs root";
  if (const int fd = ::open(full.c_str(), O_WRONLY | O_CLOEXEC); fd >= 0) {
    ::close(fd);
  } else {
    GTEST_SKIP() << "devices do not work on this file system";
  }
  const Outcome o = k3({"logits", kMini, "--ids", "1,2", "--out", full});
  EXPECT_EQ(o.code, 6) << o.err;
  EXPECT_THAT(o.err, HasSubstr(full + ": cannot write: No space left on device"));
  EXPECT_TRUE(fs::is_character_file(full));
}

TEST(SpecialOutput, APipeIsWrittenAndStaysAPipe) {
  const Scratch scratch;
  const std::string pipe = scratch.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Spawn reader;
  reader.argv = {"/bin/cat", pipe};
  reader.timeout_seconds = 20;
  Process cat(reader);
  const Outcome o = k3({"logits", kMini, "--ids", "1,2", "--out", pipe});
  EXPECT_EQ(o.code, 0) << o.err;
  ASSERT_TRUE(fs::is_fifo(pipe));
  const Outcome got = cat.finish();
  EXPECT_THAT(got.out, StartsWith("\x93NUMPY"));
  EXPECT_GT(got.out.size(), 2u * 12288 * 4);
}

TEST(SpecialOutput, ALinkIsFollowedAndStaysALink) {
  const Scratch scratch;
  const std::string to_stdout = scratch.path("stdout"), link = scratch.path("link"), target = scratch.path("target.npy");
  fs::create_symlink("/proc/self/fd/1", to_stdout);
  const Outcome piped = k3({"logits", kMini, "--ids", "1,2", "--out", to_stdout});
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(piped.out, StartsWith("\x93NUMPY"));
  EXPECT_TRUE(fs::is_symlink(to_stdout));
  put_file(target, "old");
  fs::create_symlink(target, link);
  k3_ok({"logits", kMini, "--ids", "1,2", "--out", link});
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_THAT(file_text(target), StartsWith("\x93NUMPY"));
}

TEST(FullDisk, OutputFoldersAreErrorsToo) {
  // A file size limit acts like a disk that fills up while a checkpoint is being written.
  const Scratch scratch;
  const auto limited = [&](const std::string& command) {
    Spawn spawn = k3_spawn({});
    spawn.argv = {"/bin/bash", "-c",  "trap '' XFSZ; ulimit -f 1000; exec \"$0\" " + command,
                  K3_BINARY,   kMini, scratch.path("out")};
    return run_process(spawn);
  };
  for (const char* command : {"init \"$1/config.json\" \"$2\"", "convert \"$1\" \"$2\"",
                              "logits \"$1\" --ids "
                              "$(seq -s, 1 100) --out \"$2\""}) {
    const Outcome o = limited(command);
    EXPECT_NE(o.code, 0) << command;
    EXPECT_EQ(o.signal, 0) << command;
    EXPECT_THAT(o.err, HasSubstr("File too large")) << command;
    EXPECT_THAT(o.err, HasSubstr(scratch.path("out"))) << command;
    // No half file under the final name, no leftover.
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(scratch.path(), ignored)) {
      EXPECT_FALSE(entry.is_regular_file() && entry.file_size() > 100'000) << command << " left " << entry.path();
    }
    fs::remove_all(scratch.path("out"));
  }
}

TEST(Memory, ThatIsNotThereIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow is larger than the limit";
#endif
  Spawn spawn = k3_spawn({});
  // 58 GB of cache under a limit of 4 GB.
  spawn.argv = {"/bin/bash", "-c",
                "ulimit -v 4000000; exec \"$0\" bench \"$1\" --prefill 16777216 --decode 1 -r 1 -t 1", K3_BINARY,
                kMini};
  const Outcome o = run_process(spawn);
  EXPECT_EQ(o.code, 6) << o.err;
  EXPECT_EQ(o.signal, 0);
}

}  // namespace
}  // namespace k3::e2e
