// The shapes of series: lines, bands, stacked areas, points, bars.
#include <algorithm>
#include <cmath>
#include <set>

#include "k3/base/check.h"
#include "k3/base/report/svg.h"
#include "k3/base/report/svg_canvas.h"

namespace k3::report {
namespace {

struct Pixel {
  double x = 0, y = 0;
};

std::string shape(Marker marker, double x, double y, double r) {
  const auto at = [](double a, double b) { return pixels(a) + " " + pixels(b); };
  switch (marker) {
    case Marker::dot: return "M" + at(x, y) + "h0";
    case Marker::square: return "M" + at(x - r, y - r) + fmt::format("h{0:.1f}v{0:.1f}h-{0:.1f}z", 2 * r);
    case Marker::triangle:
      return "M" + at(x, y - 1.2 * r) + fmt::format("l{0:.1f} {1:.1f}h-{2:.1f}z", 1.1 * r, 2 * r, 2.2 * r);
    case Marker::diamond:
      return "M" + at(x, y - 1.3 * r) + fmt::format("l{0:.1f} {0:.1f}l-{0:.1f} {0:.1f}l-{0:.1f} -{0:.1f}z", 1.3 * r);
    case Marker::cross: return "M" + at(x - r, y - r) + fmt::format("l{0:.1f} {0:.1f}m0 -{0:.1f}l-{0:.1f} {0:.1f}", 2 * r);
  }
  return "";
}

std::string marker_class(Marker marker, int colour) {
  if (marker == Marker::dot) return fmt::format("p s{}", colour);
  if (marker == Marker::cross) return fmt::format("c s{}", colour);
  return fmt::format("m f{}", colour);
}

// Pieces of a line between points that cannot be drawn. A step holds its value up to the next point.
std::vector<std::vector<Pixel>> pieces(const Canvas& c, const Series& s, const std::vector<double>& values) {
  std::vector<std::vector<Pixel>> out(1);
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!c.drawn(s.x[i], values[i])) {
      if (!out.back().empty()) out.emplace_back();
      continue;
    }
    const Pixel p{c.px(s.x[i]), c.py(values[i])};
    if (s.stepped && !out.back().empty()) out.back().push_back({p.x, out.back().back().y});
    out.back().push_back(p);
  }
  return out;
}

// Of many points in one column of pixels the first, the lowest, the highest and the last draw the same line.
std::vector<Pixel> thinned(const std::vector<Pixel>& points) {
  if (points.size() < 2000) return points;
  std::vector<Pixel> out;
  for (size_t i = 0; i < points.size();) {
    size_t end = i, low = i, high = i;
    while (end < points.size() && std::floor(points[end].x) == std::floor(points[i].x)) {
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
      ++end;
    }
    for (const size_t keep : std::set<size_t>{i, low, high, end - 1}) out.push_back(points[keep]);
    i = end;
  }
  return out;
}

std::string path_of(const std::vector<Pixel>& points, char first = 'M') {
  std::string out;
  for (size_t i = 0; i < points.size(); ++i) {
    out += (i == 0 ? std::string(1, first) : "L") + pixels(points[i].x) + " " + pixels(points[i].y);
  }
  return out;
}

// The region between two lines over the same x.
std::string between(const Canvas& c, const Series& s, const std::vector<double>& low, const std::vector<double>& high) {
  const auto upper = pieces(c, s, high), lower = pieces(c, s, low);
  std::string path;
  for (size_t i = 0; i < std::min(upper.size(), lower.size()); ++i) {
    if (upper[i].empty() || lower[i].empty()) continue;
    std::vector<Pixel> back = thinned(lower[i]);
    std::reverse(back.begin(), back.end());
    path += path_of(thinned(upper[i])) + path_of(back, 'L') + "Z";
  }
  return path;
}

void draw_points(Canvas& c, const Series& s, int colour) {
  const Marker marker = s.marker.value_or(Marker::dot);
  const double r = s.kind == Series::Kind::line ? 3.2 : 2.8;
  if (!s.labels.empty()) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (!c.drawn(s.x[i], s.y[i])) continue;
      c.out += fmt::format("<path class=\"{}\" d=\"{}\"><title>{}</title></path>\n", marker_class(marker, colour),
                           shape(marker, c.px(s.x[i]), c.py(s.y[i]), r), xml_text(s.labels[i]));
    }
    return;
  }
  // Points on the same pixel are drawn at most thrice: more would not look different.
  std::multiset<std::pair<int, int>> seen;
  std::string path;
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!c.drawn(s.x[i], s.y[i])) continue;
    const double x = c.px(s.x[i]), y = c.py(s.y[i]);
    const std::pair<int, int> cell(static_cast<int>(std::clamp(x, -9e8, 9e8)), static_cast<int>(std::clamp(y, -9e8, 9e8)));
    if (s.x.size() > 500) {
      if (seen.count(cell) >= 3) continue;
      seen.insert(cell);
    }
    path += shape(marker, x, y, r);
  }
  if (!path.empty()) c.out += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", marker_class(marker, colour), path);
}

void draw_line(Canvas& c, const Series& s, int colour) {
  if (!s.low.empty()) c.out += fmt::format("<path class=\"w f{}\" d=\"{}\"/>\n", colour, between(c, s, s.low, s.high));
  std::string path;
  for (const auto& piece : pieces(c, s, s.y)) path += path_of(thinned(piece));
  if (!path.empty()) {
    c.out += fmt::format("<path class=\"l{} s{}\" d=\"{}\"><title>{}</title></path>\n", s.dashed ? " d" : "", colour, path,
                         xml_text(s.name));
  }
  if (s.marker) draw_points(c, s, colour);
}

void draw_area(Canvas& c, size_t index) {
  const Series& s = c.plot.series[index];
  const std::vector<double> low = stack_base(c.plot, index);
  std::vector<double> high = low;
  for (size_t i = 0; i < high.size(); ++i) high[i] += s.y[i];
  c.out += fmt::format("<path class=\"a f{}\" d=\"{}\"><title>{}</title></path>\n", c.colours[index],
                       between(c, s, low, high), xml_text(s.name));
}

// Least distance of neighbouring bars, in values.
double bar_distance(const Plot& plot) {
  double least = 0;
  for (const Series& s : plot.series) {
    if (s.kind != Series::Kind::bars) continue;
    for (size_t i = 1; i < s.x.size(); ++i) {
      const double distance = std::abs(s.x[i] - s.x[i - 1]);
      if (distance > 0 && (least == 0 || distance < least)) least = distance;
    }
  }
  return least > 0 ? least : 1;
}

void draw_bars(Canvas& c, size_t index) {
  const Series& s = c.plot.series[index];
  double groups = 0, place = 0;
  for (size_t i = 0; i < c.plot.series.size(); ++i) {
    if (c.plot.series[i].kind != Series::Kind::bars) continue;
    if (i < index) ++place;
    ++groups;
  }
  if (c.plot.stacked_bars) groups = 1, place = 0;
  const double whole = 0.78 * bar_distance(c.plot) / (c.x.high() - c.x.low()) * c.region.width;
  const double width = whole / groups;
  const std::vector<double> base = c.plot.stacked_bars ? stack_base(c.plot, index) : std::vector<double>(s.x.size(), 0.0);
  for (size_t i = 0; i < s.x.size(); ++i) {
    const double from = c.y.holds(base[i]) ? base[i] : c.y.low(), to = base[i] + s.y[i];
    if (!c.drawn(s.x[i], to)) continue;
    const double left = c.px(s.x[i]) - whole / 2 + place * width, a = c.py(from), b = c.py(to);
    c.out += fmt::format("<rect class=\"b f{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
                         c.colours[index], pixels(left), pixels(std::min(a, b)), pixels(std::max(width - 1, 0.5)),
                         pixels(std::max(std::abs(a - b), 0.5)), xml_text(s.name + ": " + unit_text(s.y[i], c.plot.y.unit)));
  }
}

}  // namespace

std::vector<double> stack_base(const Plot& plot, size_t series) {
  const Series& s = plot.series[series];
  std::vector<double> base(s.x.size(), 0.0);
  for (size_t i = 0; i < series; ++i) {
    const Series& below = plot.series[i];
    if (below.kind != s.kind) continue;
    K3_CHECK(below.x == s.x, "stacked series '{}' and '{}' have different x", below.name, s.name);
    for (size_t k = 0; k < base.size(); ++k) base[k] += std::isfinite(below.y[k]) ? below.y[k] : 0;
  }
  return base;
}

void draw_series(Canvas& c) {
  for (size_t i = 0; i < c.plot.series.size(); ++i) {
    const Series& s = c.plot.series[i];
    switch (s.kind) {
      case Series::Kind::line: draw_line(c, s, c.colours[i]); break;
      case Series::Kind::area: draw_area(c, i); break;
      case Series::Kind::scatter: draw_points(c, s, c.colours[i]); break;
      case Series::Kind::bars: draw_bars(c, i); break;
    }
  }
}

std::string legend_sign(const Series& s, int colour, double x, double y) {
  const Marker marker = s.marker.value_or(Marker::dot);
  const auto path = [](const std::string& css, const std::string& d) {
    return fmt::format("<path class=\"{}\" d=\"{}\"/>", css, d);
  };
  switch (s.kind) {
    case Series::Kind::line: {
      std::string out =
          path(fmt::format("l{} s{}", s.dashed ? " d" : "", colour), fmt::format("M{} {}h18", pixels(x), pixels(y)));
      if (s.marker) out += path(marker_class(marker, colour), shape(marker, x + 9, y, 3.2));
      return out;
    }
    case Series::Kind::scatter: return path(marker_class(marker, colour), shape(marker, x + 9, y, 3.2));
    case Series::Kind::area:
    case Series::Kind::bars:
      return fmt::format("<rect class=\"b f{}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"10\" rx=\"2\"/>", colour,
                         pixels(x + 4), pixels(y - 5));
  }
  return "";
}

}  // namespace k3::report
