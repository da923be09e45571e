// Child processes for tests: fed and read at the same time (no deadlock on a full pipe), with a time limit, over pipes or
// over a pseudo-terminal. A child that outlives its test is killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace k3::e2e {

// Bare chroots and some containers mount no /dev/pts: there is no terminal to test with, and none for a user either.
inline bool has_terminals() {
  int master = -1, slave = -1;
  if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) return false;
  ::close(master);
  ::close(slave);
  return true;
}

struct Spawn {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // "NAME=value" sets, "NAME" unsets
  std::string cwd;
  std::string stdin_path, stdout_path;  // a file or device instead of the pipe
  bool pty = false;                     // stdin, stdout and stderr are one terminal; its output is `out`
  double timeout_seconds = 60;          // of the whole life
};

struct Outcome {
  std::string out, err;
  int code = -1;   // exit code, -1 when a signal ended it
  int signal = 0;  // the signal that ended it
  bool timed_out = false;
};

// Sanitised builds are several times slower; CI machines too.
inline double patience() {
  const char* factor = std::getenv("K3_TEST_PATIENCE");
  return factor != nullptr ? std::max(1.0, std::strtod(factor, nullptr)) : 1.0;
}

class Process {
 public:
  explicit Process(const Spawn& spawn)
      : deadline_(Clock::now() +
                  std::chrono::milliseconds(static_cast<int64_t>(1000 * patience() * spawn.timeout_seconds))) {
    spawn.pty ? start_on_terminal(spawn) : start_on_pipes(spawn);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    close_fd(in_);
    if (pid_ > 0 && !reaped_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    close_fd(out_);
    close_fd(err_);
  }

  void write(std::string_view text) { pending_ += text; }
  void write_line(std::string_view text) { (pending_ += text) += '\n'; }
  void close_stdin() { close_when_written_ = true; }
  void send(int number) { ::kill(pid_, number); }

  // Waits until the text appears behind what earlier calls found; what came before it is skipped. False after the time.
  bool wait_out(std::string_view text, double seconds = 30) { return wait_for(result_.out, seen_out_, text, seconds); }
  bool wait_err(std::string_view text, double seconds = 30) { return wait_for(result_.err, seen_err_, text, seconds); }

  // Lets time pass while the child is fed and read.
  void pause(double seconds) {
    std::string_view never("\0never", 6);
    size_t seen = result_.out.size();
    wait_for(result_.out, seen, never, seconds);
  }

  bool gone() const { return out_ < 0 && err_ < 0; }
  const std::string& out() const { return result_.out; }
  const std::string& err() const { return result_.err; }

  // Everything up to the end of the child.
  Outcome finish() {
    while (out_ >= 0 || err_ >= 0) {
      if (!pump(100) && expired()) break;
      if (expired()) break;
    }
    int status = 0;
    while (!reaped_ && !expired()) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        reaped_ = true;
      } else {
        ::usleep(2000);
      }
    }
    if (!reaped_) {
      result_.timed_out = true;
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      reaped_ = true;
    }
    if (WIFEXITED(status)) result_.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool expired() const { return Clock::now() >= deadline_; }

  static void close_fd(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }

  static void exec(const Spawn& spawn) {
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const std::string& entry : spawn.env) {
      const size_t equals = entry.find('=');
      equals == std::string::npos ? ::unsetenv(entry.c_str())
                                  : ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
    if (!spawn.cwd.empty() && ::chdir(spawn.cwd.c_str()) != 0) ::_exit(126);
    std::vector<char*> argv;
    for (const std::string& argument : spawn.argv) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }

  static void redirect(const std::string& path, int flags, int pipe_end, int target) {
    const int fd = path.empty() ? pipe_end : ::open(path.c_str(), flags);
    if (fd < 0 || ::dup2(fd, target) < 0) ::_exit(125);
  }

  void start_on_pipes(const Spawn& spawn) {
    int in[2], out[2], err[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      redirect(spawn.stdin_path, O_RDONLY, in[0], STDIN_FILENO);
      redirect(spawn.stdout_path, O_WRONLY, out[1], STDOUT_FILENO);
      redirect("", 0, err[1], STDERR_FILENO);
      exec(spawn);
    }
    for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
    in_ = in[1];
    out_ = out[0];
    err_ = err[0];
    for (const int fd : {in_, out_, err_}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);  // a child that does not read its input is no reason to die
  }

  void start_on_terminal(const Spawn& spawn) {
    winsize size{};
    size.ws_col = 100;
    size.ws_row = 40;
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, &size);
    if (pid_ == 0) exec(spawn);
    ::fcntl(master, F_SETFD, FD_CLOEXEC);
    ::fcntl(master, F_SETFL, O_NONBLOCK);
    out_ = master;
    in_ = ::dup(master);
    ::fcntl(in_, F_SETFD, FD_CLOEXEC);
  }

  bool read_some(int& fd, std::string& into) {
    char buffer[1 << 16];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n > 0) {
      into.append(buffer, static_cast<size_t>(n));
      return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    close_fd(fd);  // the end; a terminal answers EIO when the last child has gone
    return false;
  }

  // One round of reading and writing; true when something moved.
  bool pump(int milliseconds) {
    if (in_ >= 0 && pending_.empty() && close_when_written_) close_fd(in_);
    pollfd fds[3] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}, {pending_.empty() ? -1 : in_, POLLOUT, 0}};
    if (::poll(fds, 3, milliseconds) <= 0) return false;
    bool moved = false;
    if (fds[0].revents != 0) moved |= read_some(out_, result_.out);
    if (fds[1].revents != 0) moved |= read_some(err_, result_.err);
    if (fds[2].revents != 0) {
      const ssize_t n = ::write(in_, pending_.data(), pending_.size());
      if (n > 0) pending_.erase(0, static_cast<size_t>(n));
      if (n < 0 && errno != EAGAIN && errno != EINTR) {
        pending_.clear();
        close_fd(in_);
      }
      moved |= n > 0;
    }
    return moved;
  }

  bool wait_for(const std::string& stream, size_t& seen, std::string_view text, double seconds) {
    const auto end =
        std::min(deadline_, Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * patience() * seconds)));
    while (true) {
      if (const size_t at = stream.find(text, seen); at != std::string::npos) {
        seen = at + text.size();
        return true;
      }
      if (Clock::now() >= end || (out_ < 0 && err_ < 0)) return false;
      pump(50);
    }
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  bool reaped_ = false, close_when_written_ = false;
  std::string pending_;
  size_t seen_out_ = 0, seen_err_ = 0;
  Outcome result_;
  Clock::time_point deadline_;
};

inline Outcome run_process(const Spawn& spawn, std::string_view input = {}) {
  Process process(spawn);
  process.write(input);
  process.close_stdin();
  return process.finish();
}

}  // namespace k3::e2e
