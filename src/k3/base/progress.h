// A progress bar on stderr: drawn only on a terminal that can redraw a line, at most ten times a second,
// without colour when NO_COLOR is set; erased when done, so that it leaves no trace in the transcript.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace k3 {

class Progress {
 public:
  // total in `unit`s; unit "B" prints binary sizes.
  Progress(std::string label, int64_t total, std::string unit, bool enabled = stderr_is_terminal());
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done);  // one thread at a time
  void pause();               // erases the bar so that a line can be printed; the next update draws it again
  void finish();

  static bool stderr_is_terminal();  // one that can redraw a line (TERM set and not "dumb")

  // What is drawn now, in fewer than `columns` columns.
  std::string line(int columns, bool colour) const;

 private:
  void draw();
  std::string label_, unit_;
  int64_t total_, done_ = 0;
  bool enabled_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// True when colours may be used on this file descriptor (a terminal, TERM not dumb, NO_COLOR unset or empty).
bool use_colour(int descriptor);

// Columns of the terminal on stderr/stdout, 80 when unknown.
int terminal_columns();

}  // namespace k3
