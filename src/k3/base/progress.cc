#include "k3/base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "k3/base/check.h"
#include "k3/base/units.h"

namespace k3 {

Progress::Progress(std::string label, int64_t total, std::string unit, bool enabled)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      enabled_(enabled),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() { finish(); }

namespace {

// A terminal of no control sequences can neither redraw a line nor erase it.
bool term_is_dumb() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

}  // namespace

bool Progress::stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1 && !term_is_dumb(); }

void Progress::update(int64_t done) {
  done_ = done;
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  // Nothing is drawn for work that ends within 300 ms: a bar that flashes is noise.
  const auto wait = drawn_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(300);
  if (now - last_ < wait) return;
  last_ = now;
  draw();
}

std::string Progress::line(int columns, bool colour) const {
  const double fraction = total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 0.0;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string amount = unit_ == "B" ? fmt::format("{} / {}", format_bytes(done_), format_bytes(total_))
                                          : fmt::format("{} / {} {}", format_grouped(done_), format_grouped(total_), unit_);
  const std::string left =
      fraction > 0.02 ? fmt::format("  {} left", format_seconds(seconds * (1 - fraction) / fraction)) : "";
  const std::string percent = fmt::format(" {:3.0f} %", fraction * 100);
  // A line that wraps cannot be drawn over: what does not fit is left out, the last first.
  const int room = columns - 1 - static_cast<int>(label_.size()) - 1;
  std::string tail;
  for (const std::string& text : {percent + "  " + amount + left, percent + "  " + amount, percent}) {
    if (static_cast<int>(text.size()) > room) continue;
    tail = text;
    break;
  }
  if (tail.empty()) return label_.substr(0, static_cast<size_t>(std::max(0, columns - 1)));
  const int width = std::clamp(room - static_cast<int>(tail.size()) - 3, 0, 40);
  const int filled = static_cast<int>(fraction * width + 0.5);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < filled ? "\xE2\x94\x81" : " ";
  return fmt::format("{} {}{}{}{}", label_, colour ? "\x1b[36m" : "", bar, colour ? "\x1b[0m" : "", tail);
}

void Progress::draw() {
  std::fprintf(stderr, "\r%s\x1b[K", line(terminal_columns(), use_colour(STDERR_FILENO)).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::pause() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

void Progress::finish() {
  pause();
  enabled_ = false;
}

bool use_colour(int descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  return !term_is_dumb() && ::isatty(descriptor) == 1;
}

int terminal_columns() {
  winsize size{};
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

}  // namespace k3
