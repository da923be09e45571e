// What the parts of a drawing share: the text that grows, the region of the plot, the two scales.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "k3/base/report/axis.h"
#include "k3/base/report/plot.h"

namespace k3::report {

inline constexpr int kColours = 8;

struct Region {
  double left = 0, top = 0, width = 0, height = 0;
};

// Pixels, with one digit behind the point: finer than a screen shows, and short.
std::string pixels(double value);

// An estimate (drawings are made without fonts at hand): wide enough for the fonts of the style at 12 px.
double text_width(std::string_view text);

struct Canvas {
  const Plot& plot;
  Scale x, y;
  Region region;
  std::vector<int> colours;  // of each series
  std::string out;

  double px(double value) const { return x.place(value) * region.width; }
  double py(double value) const { return (1 - y.place(value)) * region.height; }
  bool drawn(double at_x, double at_y) const { return x.holds(at_x) && y.holds(at_y); }
  std::string point(double at_x, double at_y) const { return pixels(px(at_x)) + " " + pixels(py(at_y)); }

  void text(double at_x, double at_y, std::string_view anchor, std::string_view text, std::string_view extra = {});
};

// Inside the region, in its own coordinates.
void draw_series(Canvas& canvas);

// Where series i of the stacked areas or stacked bars begins at its points: the sum of those before it.
std::vector<double> stack_base(const Plot& plot, size_t series);

// The sign of a series beside its name.
std::string legend_sign(const Series& series, int colour, double x, double y);

}  // namespace k3::report
