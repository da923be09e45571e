// `k3 serve` on a device that fails while it answers: a stream ends as one that failed, what comes later is refused or finds nobody, and the
// process ends with exit code 7. The fault is made in the step (EngineOptions::lose_device_at): breaking a real GPU breaks it for others too.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "k3/cli/exit_codes.h"
#include "k3/cli/serve/serve_options.h"
#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using testing::HasSubstr;

// serve_command() in a child process; its stderr goes to a file.
class Served {
 public:
  Served(const cli::ServeOptions& options, std::string log) : log_(std::move(log)) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int file = ::open(log_.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, STDERR_FILENO) < 0) ::_exit(99);
    const Status status = cli::serve_command(options);
    if (!status.ok()) std::fprintf(stderr, "k3: error: %s\n", status.error().message.c_str());
    std::fflush(stderr);
    ::_exit(status.ok() ? 0 : cli::exit_code(status.error().code));
  }
  ~Served() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::string text() const { return fs::exists(log_) ? file_text(log_) : std::string(); }

  int port() const {
    constexpr std::string_view kWord = "listening on http://127.0.0.1:";
    for (int i = 0; i < 3000; ++i) {
      const std::string said = text();
      const size_t at = said.find(kWord);
      if (at != std::string::npos && said.find('\n', at) != std::string::npos) return std::atoi(said.c_str() + at + kWord.size());
      ::usleep(10000);
    }
    return 0;
  }

  int wait() {
    int status = 0;
    for (int i = 0; i < 3000; ++i) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      ::usleep(10000);
    }
    return -2;
  }

 private:
  std::string log_;
  pid_t pid_ = 0;
};

// Everything that comes back until the server closes; empty when nobody listens.
std::string post(int port, const std::string& body) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string got;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
    ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) got.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return got;
}

class ServeLostDevice : public testing::Test {
 protected:
  void start() {
    cli::ServeOptions options;
    options.model = kMini;
    options.port = 0;
    options.quiet = true;
    options.max_running = 1;
    options.names = {"m"};
    options.compute.ctx_tokens = 1024;
    options.lose_device_at = 8;
    served_.emplace(options, scratch_.path("log"));
    port_ = served_->port();
    ASSERT_GT(port_, 0) << served_->text();
  }
  void expect_seven() {
    EXPECT_EQ(served_->wait(), cli::kExitDeviceLost) << served_->text();
    EXPECT_THAT(served_->text(), testing::AllOf(HasSubstr("the GPU cannot be used any more"), HasSubstr("lost for a test")));
  }

  const Scratch scratch_;
  std::optional<Served> served_;
  int port_ = 0;
};

TEST_F(ServeLostDevice, AStreamEndsWithTheErrorAndTheProcessWithSeven) {
  start();
  const std::string got = post(port_, R"({"model":"m","prompt":"It was","max_tokens":400,"ignore_eos":true,"stream":true})");
  EXPECT_THAT(got, testing::AllOf(HasSubstr("data: {"), HasSubstr("unexpected_state")));
  expect_seven();
}

TEST_F(ServeLostDevice, WhoWaitsGetsTheErrorToo) {
  start();
  std::vector<std::string> answers(3);
  std::vector<std::thread> threads;
  for (std::string& answer : answers) {
    threads.emplace_back([&] { answer = post(port_, R"({"model":"m","prompt":"It was","max_tokens":400,"ignore_eos":true})"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) EXPECT_THAT(answer, HasSubstr("lost for a test"));
  expect_seven();
}

}  // namespace
}  // namespace k3::e2e
