// A plot as data: what svg.h draws and html_report.h puts on a page. Points that are not finite (or not positive on a log
// axis) are left out, and a line is broken there. Programmer errors (x and y of different lengths) are CHECKs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace k3 {

// How values are written: counts with k, M, G; seconds with their prefix; bytes in binary units; shares as percent.
enum class Unit { number, count, seconds, bytes, percent };

struct Axis {
  std::string label;
  Unit unit = Unit::number;
  bool log = false;
  bool from_zero = false;               // linear: the axis begins at 0
  std::optional<double> min, max;       // not given: from the data
  std::vector<std::string> categories;  // x only: value i is written as categories[i]
};

enum class Marker { dot, square, triangle, diamond, cross };

struct Series {
  enum class Kind { line, area, scatter, bars };
  std::string name;  // empty: not in the legend
  Kind kind = Kind::line;
  std::vector<double> x, y;
  bool stepped = false;             // line, area: y holds from x[i] to x[i + 1]
  bool dashed = false;              // line
  std::vector<double> low, high;    // line: a band around it, as long as x
  std::optional<Marker> marker;     // line: also at each point; scatter: dot when not given
  std::vector<std::string> labels;  // scatter, line with marker: shown when pointed at, as long as x
  int colour = -1;                  // 0 to 7 of the palette; -1: the next one
};

// A line across the plot, a box (the region of a service objective), a named point.
struct Rule {
  bool vertical = false;
  double at = 0;
  std::string label;
};
struct Box {
  double x0 = 0, x1 = 0, y0 = 0, y1 = 0;
  std::string label;
};
struct Mark {
  double x = 0, y = 0;
  std::string label;
};

struct Plot {
  std::string title, note;  // the note stands below
  Axis x, y;
  std::vector<Series> series;  // areas are stacked in their order (they share their x); later ones lie above earlier ones
  std::vector<Rule> rules;
  std::vector<Box> boxes;
  std::vector<Mark> marks;
  bool stacked_bars = false;
  bool wide = false;  // takes the whole width of the page
};

}  // namespace k3
