// The frame of a drawing: legend, axes, grid, and what lies over the series.
#include "k3/base/report/svg.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "k3/base/check.h"
#include "k3/base/report/svg_canvas.h"

namespace k3 {
namespace report {

std::string pixels(double value) {
  std::string text = fmt::format("{:.1f}", std::clamp(value, -1e5, 1e5));
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view text) {
  double width = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    const bool narrow = std::string_view("iljtfrI.,:;|!'()[] ").find(c) != std::string_view::npos;
    const bool broad = (c >= 'A' && c <= 'Z') || c == 'm' || c == 'w' || c == '%';
    width += narrow ? 4.3 : broad ? 9.0 : 7.1;
  }
  return width;
}

void Canvas::text(double at_x, double at_y, std::string_view anchor, std::string_view words, std::string_view extra) {
  out += fmt::format("<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", pixels(at_x), pixels(at_y),
                     anchor == "start" ? "" : fmt::format(" text-anchor=\"{}\"", anchor), extra, xml_text(words));
}

}  // namespace report

namespace {

using namespace report;

constexpr double kLine = 17;   // of text
constexpr double kRight = 14;  // margin

constexpr std::string_view kOver = " class=\"i o\"";  // text over the series, with a halo

void check(const Plot& plot) {
  for (const Series& s : plot.series) {
    K3_CHECK(s.x.size() == s.y.size(), "series '{}': {} x, {} y", s.name, s.x.size(), s.y.size());
    K3_CHECK(s.low.size() == s.high.size() && (s.low.empty() || s.low.size() == s.x.size()), "series '{}': its band",
             s.name);
    K3_CHECK(s.labels.empty() || s.labels.size() == s.x.size(), "series '{}': its labels", s.name);
    K3_CHECK(s.colour < kColours, "series '{}': colour {}", s.name, s.colour);
  }
}

std::vector<int> colours_of(const Plot& plot) {
  std::vector<int> out;
  int next = 0;
  for (const Series& s : plot.series) out.push_back(s.colour >= 0 ? s.colour : next++ % kColours);
  return out;
}

void add(std::vector<double>& values, const std::vector<double>& more) {
  values.insert(values.end(), more.begin(), more.end());
}

std::vector<double> x_values(const Plot& plot) {
  std::vector<double> out;
  for (const Series& s : plot.series) add(out, s.x);
  for (const Rule& rule : plot.rules) {
    if (rule.vertical) out.push_back(rule.at);
  }
  for (const Mark& mark : plot.marks) out.push_back(mark.x);
  const bool bars = std::any_of(plot.series.begin(), plot.series.end(),
                                [](const Series& s) { return s.kind == Series::Kind::bars && s.x.size() > 1; });
  if (bars && plot.x.categories.empty() && !out.empty()) {  // half a bar of room at both ends
    const auto [low, high] = std::minmax_element(out.begin(), out.end());
    const double half = (*high - *low) / static_cast<double>(out.size()) / 2;
    out.insert(out.end(), {*low - half, *high + half});
  }
  return out;
}

std::vector<double> y_values(const Plot& plot) {
  std::vector<double> out;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    std::vector<double> tops = s.y;
    if (s.kind == Series::Kind::area || (s.kind == Series::Kind::bars && plot.stacked_bars)) {
      const std::vector<double> base = stack_base(plot, i);
      for (size_t k = 0; k < tops.size(); ++k) tops[k] += base[k];
    }
    if (s.kind == Series::Kind::area || s.kind == Series::Kind::bars) out.push_back(0);
    add(out, tops);
    add(out, s.low);
    add(out, s.high);
  }
  for (const Rule& rule : plot.rules) {
    if (!rule.vertical) out.push_back(rule.at);
  }
  for (const Mark& mark : plot.marks) out.push_back(mark.y);
  return out;
}

// Rows of signs and names from (0, top); returns the height that they take.
double draw_legend(Canvas& c, double top, double width) {
  double x = 0, y = top;
  bool any = false;
  for (size_t i = 0; i < c.plot.series.size(); ++i) {
    const Series& s = c.plot.series[i];
    if (s.name.empty()) continue;
    const double needs = 24 + text_width(s.name) + 14;
    if (x > 0 && x + needs > width) x = 0, y += kLine;
    c.out += legend_sign(s, c.colours[i], x, y + 8);
    c.text(x + 24, y + 12, "start", s.name, " class=\"i\"");
    x += needs;
    any = true;
  }
  return any ? y + kLine + 4 - top : 0;
}

// Labels of categories, thinned when they do not fit.
void draw_categories(Canvas& c) {
  const auto& names = c.plot.x.categories;
  double widest = 0;
  for (const std::string& name : names) widest = std::max(widest, text_width(name));
  const double room = c.region.width / static_cast<double>(names.size());
  const auto every = static_cast<size_t>(std::max(1.0, std::ceil((widest + 6) / room)));
  for (size_t i = 0; i < names.size(); i += every) {
    c.text(c.region.left + c.px(static_cast<double>(i)), c.region.top + c.region.height + 16, "middle", names[i]);
  }
}

void draw_x_axis(Canvas& c) {
  const Region& r = c.region;
  const double bottom = r.top + r.height;
  if (!c.plot.x.categories.empty()) {
    draw_categories(c);
  } else {
    double right_of_last = -1e9;
    std::string lines, faint;
    for (const Tick& tick : c.x.ticks(std::max(2, static_cast<int>(r.width / 85)))) {
      const double x = r.left + c.px(tick.value);
      (tick.text.empty() ? faint : lines) += fmt::format("M{} {}v{}", pixels(x), pixels(r.top), pixels(r.height));
      const double half = text_width(tick.text) / 2;
      const double middle = std::min(x, r.left + r.width + kRight - half);  // the last one stays on the drawing
      if (tick.text.empty() || middle - half < right_of_last + 6) continue;
      c.text(middle, bottom + 16, "middle", tick.text);
      right_of_last = middle + half;
    }
    if (!faint.empty()) c.out += fmt::format("<path class=\"h\" d=\"{}\"/>\n", faint);
    if (!lines.empty()) c.out += fmt::format("<path class=\"g\" d=\"{}\"/>\n", lines);
  }
  c.text(r.left + r.width / 2, bottom + 33, "middle", c.plot.x.label);
}

void draw_y_axis(Canvas& c, const std::vector<Tick>& ticks) {
  const Region& r = c.region;
  std::string lines, faint;
  for (const Tick& tick : ticks) {
    const double y = r.top + c.py(tick.value);
    (tick.text.empty() ? faint : lines) += fmt::format("M{} {}h{}", pixels(r.left), pixels(y), pixels(r.width));
    if (!tick.text.empty()) c.text(r.left - 7, y + 4, "end", tick.text);
  }
  if (!faint.empty()) c.out += fmt::format("<path class=\"h\" d=\"{}\"/>\n", faint);
  if (!lines.empty()) c.out += fmt::format("<path class=\"g\" d=\"{}\"/>\n", lines);
  c.text(0, r.top - 11, "start", c.plot.y.label);
}

// Boxes lie under the series, in coordinates of the region.
void draw_boxes(Canvas& c) {
  for (const Box& box : c.plot.boxes) {
    const auto inside = [](double value, double most) { return std::clamp(std::isnan(value) ? 0 : value, 0.0, most); };
    const double x0 = inside(c.px(box.x0), c.region.width), x1 = inside(c.px(box.x1), c.region.width);
    const double y0 = inside(c.py(box.y0), c.region.height), y1 = inside(c.py(box.y1), c.region.height);
    c.out += fmt::format("<rect class=\"x\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", pixels(std::min(x0, x1)),
                         pixels(std::min(y0, y1)), pixels(std::abs(x1 - x0)), pixels(std::abs(y1 - y0)));
    // On the right: a trade-off falls from the upper left, so that corner is empty.
    const bool narrow = std::abs(x1 - x0) < text_width(box.label) + 10;
    c.text(narrow ? std::min(x0, x1) + 5 : std::max(x0, x1) - 5, std::min(y0, y1) + 14, narrow ? "start" : "end", box.label,
           kOver);
  }
}

void draw_rules(Canvas& c) {
  for (const Rule& rule : c.plot.rules) {
    if (!(rule.vertical ? c.x : c.y).holds(rule.at)) continue;
    const double at = rule.vertical ? c.px(rule.at) : c.py(rule.at);
    c.out += rule.vertical ? fmt::format("<path class=\"r\" d=\"M{} 0v{}\"/>\n", pixels(at), pixels(c.region.height))
                           : fmt::format("<path class=\"r\" d=\"M0 {}h{}\"/>\n", pixels(at), pixels(c.region.width));
    if (rule.label.empty()) continue;
    const bool left = rule.vertical && at + text_width(rule.label) + 8 > c.region.width;
    if (rule.vertical) {
      c.text(left ? at - 5 : at + 5, 13, left ? "end" : "start", rule.label, kOver);
    } else {
      c.text(c.region.width - 5, at < 16 ? at + 14 : at - 5, "end", rule.label, kOver);
    }
  }
}

struct TextBox {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool meets(const TextBox& o) const { return left < o.right && o.left < right && top < o.bottom && o.top < bottom; }
};

// Names stand beside their points where they meet neither another name nor a point, if there is such a place.
void draw_marks(Canvas& c) {
  constexpr double kRadius = 4.5, kHeight = 12;
  constexpr std::pair<bool, double> kPlaces[] = {{false, -6}, {false, 14}, {true, -6}, {true, 14}, {false, -19}, {false, 27}, {true, -19}, {true, 27}};
  std::vector<TextBox> taken;
  for (const Mark& mark : c.plot.marks) {
    if (!c.drawn(mark.x, mark.y)) continue;
    const double x = c.px(mark.x), y = c.py(mark.y);
    taken.push_back({x - kRadius, y - kRadius, x + kRadius, y + kRadius});
    c.out += fmt::format("<circle class=\"e\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>\n", pixels(x), pixels(y), kRadius);
  }
  for (const Mark& mark : c.plot.marks) {
    if (!c.drawn(mark.x, mark.y)) continue;
    const double x = c.px(mark.x), y = c.py(mark.y), width = text_width(mark.label);
    const auto box = [&](bool left, double baseline) {
      const double begin = left ? x - 8 - width : x + 8;
      return TextBox{begin, baseline - kHeight + 2, begin + width, baseline + 2};
    };
    bool left = x + width + 10 > c.region.width;
    double baseline = y < 14 ? y + 14 : y - 6;
    for (const auto& [to_left, below] : kPlaces) {
      const TextBox place = box(to_left, y + below);
      const bool inside = place.left >= 0 && place.right <= c.region.width && place.top >= 0 && place.bottom <= c.region.height;
      if (!inside || std::any_of(taken.begin(), taken.end(), [&](const TextBox& other) { return place.meets(other); })) continue;
      left = to_left, baseline = y + below;
      break;
    }
    taken.push_back(box(left, baseline));
    c.text(left ? x - 8 : x + 8, baseline, left ? "end" : "start", mark.label, kOver);
  }
}

// Says that there is nothing, rather than to show empty axes without a word.
bool is_empty(const Canvas& c) {
  for (const Series& s : c.plot.series) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (c.drawn(s.x[i], s.y[i])) return false;
    }
  }
  return c.plot.marks.empty() && c.plot.boxes.empty() && c.plot.rules.empty();
}

// Lines no wider than `width`, but for longer words.
std::vector<std::string> wrapped(std::string_view text, double width) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const bool fits = !lines.empty() && text_width(lines.back()) + text_width(" ") + text_width(word) <= width;
    if (fits)
      lines.back() += " " + std::string(word);
    else
      lines.emplace_back(word);
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string render_svg(const Plot& plot, const SvgOptions& options) {
  check(plot);
  Canvas c{plot, Scale(plot.x, x_values(plot)), Scale(plot.y, y_values(plot)), {}, colours_of(plot), {}};
  c.out =
      fmt::format("<svg {}class=\"k3{}\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\" aria-label=\"{}\">\n",
                  options.standalone ? "xmlns=\"http://www.w3.org/2000/svg\" " : "",
                  options.css_class.empty() ? "" : " " + options.css_class, pixels(options.width), pixels(options.height),
                  pixels(options.width), pixels(options.height), xml_text(plot.title));
  double top = 2;
  if (options.standalone) {
    c.out += fmt::format("<style>{}</style>\n<rect width=\"100%\" height=\"100%\" style=\"fill:var(--paper)\"/>\n",
                         xml_text(svg_style()));
    c.text(0, 16, "start", plot.title, " class=\"t\"");
    top = 26;
  }
  top += draw_legend(c, top, options.width);
  top += plot.y.label.empty() ? 8 : 25;
  const std::vector<std::string> note = options.standalone ? wrapped(plot.note, options.width) : std::vector<std::string>();
  const double below = (plot.x.label.empty() ? 22 : 40) + kLine * static_cast<double>(note.size());
  c.region = {0, top, 0, std::max(options.height - top - below, 40.0)};
  const std::vector<Tick> y_ticks = c.y.ticks(std::max(2, static_cast<int>(c.region.height / 44)));
  double widest = 0;
  for (const Tick& tick : y_ticks) widest = std::max(widest, text_width(tick.text));
  c.region.left = widest + 12;
  c.region.width = std::max(options.width - c.region.left - kRight, 40.0);
  draw_x_axis(c);
  draw_y_axis(c, y_ticks);
  const Region& r = c.region;
  // An inner <svg> clips what lies outside of given limits.
  c.out += fmt::format("<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">\n", pixels(r.left), pixels(r.top),
                       pixels(r.width), pixels(r.height));
  draw_boxes(c);
  draw_series(c);
  draw_rules(c);
  if (is_empty(c)) c.text(r.width / 2, r.height / 2, "middle", "no data");
  c.out += "</svg>\n";
  c.out += fmt::format("<path class=\"f\" d=\"M{} {}v{}h{}\"/>\n", pixels(r.left), pixels(r.top), pixels(r.height),
                       pixels(r.width));
  c.out += fmt::format("<g transform=\"translate({} {})\">\n", pixels(r.left), pixels(r.top));
  draw_marks(c);
  c.out += "</g>\n";
  for (size_t i = 0; i < note.size(); ++i)
    c.text(0, options.height - 5 - kLine * static_cast<double>(note.size() - 1 - i), "start", note[i]);
  return c.out + "</svg>\n";
}

}  // namespace k3
