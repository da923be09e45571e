// The report writer: scales and ticks, drawings of every kind of series, pages that are well-formed and self-contained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "k3/base/report/axis.h"
#include "k3/base/report/html_report.h"
#include "k3/base/report/quantile.h"
#include "k3/base/report/svg.h"
#include "k3/base/report/xml_test_util.h"
#include "k3/base/rng.h"

namespace k3 {
namespace {

using report::Scale;
using report::unit_text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> labels(const Axis& axis, const std::vector<double>& values, int most = 5) {
  std::vector<std::string> out;
  for (const report::Tick& tick : Scale(axis, values).ticks(most)) {
    if (!tick.text.empty()) out.push_back(tick.text);
  }
  return out;
}

Axis axis(Unit unit, bool log = false) {
  Axis out;
  out.unit = unit;
  out.log = log;
  return out;
}

TEST(Quantile, EqualsANaiveComputation) {
  const Rng rng(1, 2);
  uint64_t counter = 0;
  for (size_t n = 1; n < 60; ++n) {
    std::vector<double> values;
    for (size_t i = 0; i < n; ++i) values.push_back(std::floor(rng.uniform(counter++) * 20));
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    for (const double q : {0.0, 0.25, 0.5, 0.9, 0.99, 1.0}) {
      // The definition: the piecewise linear function through the points (i / (n - 1), value i).
      double naive = sorted.back();
      for (size_t i = 0; i + 1 < n; ++i) {
        const double a = static_cast<double>(i) / static_cast<double>(n - 1),
                     b = static_cast<double>(i + 1) / static_cast<double>(n - 1);
        if (q >= a && q <= b) {
          naive = sorted[i] + (q - a) / (b - a) * (sorted[i + 1] - sorted[i]);
          break;
        }
      }
      EXPECT_NEAR(quantile_of_sorted(sorted, q), naive, 1e-9) << n << " " << q;
    }
    const Spread spread = spread_of(values);
    EXPECT_EQ(spread.count, static_cast<int64_t>(n));
    EXPECT_EQ(spread.min, sorted.front());
    EXPECT_EQ(spread.max, sorted.back());
  }
  EXPECT_TRUE(std::isnan(spread_of({}).p50));
  EXPECT_TRUE(std::isnan(spread_of({}).mean));
}

TEST(Axis, TicksAreRound) {
  EXPECT_THAT(labels(axis(Unit::number), {0, 0.93}), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1"));
  EXPECT_THAT(labels(axis(Unit::count), {0, 11800}), ElementsAre("0", "5k", "10k", "15k"));
  EXPECT_THAT(labels(axis(Unit::bytes), {0, 3.0 * 1073741824}), ElementsAre("0 B", "1 GiB", "2 GiB", "3 GiB"));
  EXPECT_THAT(labels(axis(Unit::percent), {0, 1}), ElementsAre("0 %", "20 %", "40 %", "60 %", "80 %", "100 %"));
  EXPECT_THAT(labels(axis(Unit::seconds, true), {0.002, 3}), ElementsAre("10 ms", "100 ms", "1 s"));
  EXPECT_THAT(labels(axis(Unit::number), {100000, 100001}),
              ElementsAre("100000", "100000.2", "100000.4", "100000.6", "100000.8", "100001"));
}

TEST(Axis, EveryRangeHasTicksAndHoldsItsValues) {
  const Rng rng(7, 1);
  for (uint64_t i = 0; i < 3000; ++i) {
    const double a = std::pow(10, rng.uniform(4 * i) * 24 - 12),
                 b = a * std::pow(10, rng.uniform(4 * i + 1) * 12 * rng.uniform(4 * i + 2));
    for (const Unit unit : {Unit::number, Unit::count, Unit::seconds, Unit::bytes, Unit::percent}) {
      for (const bool log : {false, true}) {
        const Scale scale(axis(unit, log), {a, b});
        ASSERT_LT(scale.low(), scale.high());
        ASSERT_GE(scale.place(a), -1e-6);
        ASSERT_LE(scale.place(b), 1 + 1e-6);
        const auto ticks = scale.ticks(6);
        ASSERT_GE(ticks.size(), 1u) << a << " " << b << " " << log;
        ASSERT_LE(ticks.size(), 120u) << a << " " << b;
      }
    }
  }
}

TEST(Axis, NothingAndOnePoint) {
  EXPECT_LT(Scale(axis(Unit::number), {}).low(), Scale(axis(Unit::number), {}).high());
  const Scale same(axis(Unit::number), {0.3, 0.30000000000000004});  // equal but for rounding
  EXPECT_LT(same.ticks(10).size(), 30u);
  EXPECT_NEAR(Scale(axis(Unit::number), {5}).place(5), 0.5, 0.26);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NEAR(Scale(axis(Unit::number, true), {nan, -3, 0, 5}).place(5), 0.5, 1e-9);
}

TEST(Axis, Texts) {
  EXPECT_EQ(unit_text(0.0125, Unit::seconds), "12.5 ms");
  EXPECT_EQ(unit_text(0.99999, Unit::seconds), "1 s");
  EXPECT_EQ(unit_text(12.5e-6, Unit::seconds), "12.5 \xC2\xB5s");
  EXPECT_EQ(unit_text(1234567, Unit::count), "1.23M");
  EXPECT_EQ(unit_text(999999, Unit::count), "1M");
  EXPECT_EQ(unit_text(-20, Unit::number), "-20");
  EXPECT_EQ(unit_text(0.374, Unit::percent), "37.4 %");
  EXPECT_EQ(unit_text(std::nan(""), Unit::count), "\xE2\x80\x93");
}

Series series(Series::Kind kind, const std::string& name, std::vector<double> x, std::vector<double> y) {
  Series out;
  out.kind = kind;
  out.name = name;
  out.x = std::move(x);
  out.y = std::move(y);
  return out;
}

std::string drawn(const Plot& plot) {
  const std::string svg = render_svg(plot, {400, 300, false, ""});
  EXPECT_EQ(test::xml_problem(svg), "") << svg;
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  return svg;
}

TEST(Svg, LinesBreakWherePointsCannotBeDrawn) {
  Plot plot;
  plot.y.log = true;
  plot.series.push_back(series(Series::Kind::line, "a", {0, 1, 2, 3, 4}, {1, 10, 0, 10, 1}));
  const std::string svg = drawn(plot);
  const std::regex path("class=\"l s0\" d=\"M[^ML]*L[^ML]*M[^ML]*L[^ML\"]*\"");
  EXPECT_TRUE(std::regex_search(svg, path)) << svg;
}

TEST(Svg, StepsHoldTheirValue) {
  Plot plot;
  plot.x.min = 0, plot.x.max = 2, plot.y.min = 0, plot.y.max = 1;
  plot.series.push_back(series(Series::Kind::line, "a", {0, 1, 2}, {0, 1, 0}));
  plot.series[0].stepped = true;
  const std::string svg = drawn(plot);
  std::smatch m;
  ASSERT_TRUE(std::regex_search(svg, m, std::regex("class=\"l s0\" d=\"M0 (\\S+)L(\\S+) (\\S+)L(\\S+) 0L")));
  EXPECT_EQ(m[1], m[3]);
  EXPECT_EQ(m[2], m[4]);
}

TEST(Svg, AreasAreStacked) {
  Plot plot;
  plot.series = {series(Series::Kind::area, "a", {0, 1}, {1, 2}), series(Series::Kind::area, "b", {0, 1}, {3, 2})};
  plot.y.max = 4;
  const std::string svg = drawn(plot);
  EXPECT_TRUE(std::regex_search(svg, std::regex("class=\"a f1\" d=\"M0 0L\\S+ 0L"))) << svg;  // 1 + 3 = 2 + 2 = the top
}

TEST(Svg, BarsStandBesideOrOnEachOther) {
  Plot plot;
  plot.x.categories = {"one", "two <3>"};
  plot.series = {series(Series::Kind::bars, "a", {0, 1}, {1, 2}), series(Series::Kind::bars, "b", {0, 1}, {3, 2})};
  EXPECT_THAT(drawn(plot), HasSubstr("two &lt;3&gt;"));
  plot.stacked_bars = true;
  const std::string svg = drawn(plot);
  std::smatch m;
  const std::string bar = " x=\"([0-9.]+)\"[^>]*><title>";  // the signs of the legend have no title
  ASSERT_TRUE(std::regex_search(svg, m, std::regex("b f0\"" + bar + "a[^]*?b f1\"" + bar + "b")));
  EXPECT_EQ(m[1], m[2]);
}

TEST(Svg, EveryKindInOneDrawing) {
  Plot plot;
  plot.title = "A \"title\" & more";
  plot.x.log = true;
  plot.series = {series(Series::Kind::line, "line", {1, 10, 100}, {1, 2, 3}),
                 series(Series::Kind::scatter, "points", {1, 10}, {2, 3})};
  plot.series[0].low = {0.5, 1, 2}, plot.series[0].high = {2, 3, 4};
  plot.series[0].dashed = true, plot.series[0].marker = Marker::square;
  plot.series[1].labels = {"first <b>", "second"};
  for (const Marker marker : {Marker::triangle, Marker::diamond, Marker::cross}) {
    plot.series.push_back(series(Series::Kind::scatter, "", {5, 6}, {1, 1}));
    plot.series.back().marker = marker;
  }
  plot.rules = {{true, 20, "here"}, {false, 2.5, "limit"}};
  plot.boxes = {{1, 10, 0, 2, "target"}};
  plot.marks = {{100, 3, "best"}};
  const std::string svg = drawn(plot);
  for (const char* text : {">line<", ">points<", ">here<", ">limit<", ">target<", ">best<", "first &lt;b&gt;",
                           "&quot;title&quot; &amp; more"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  const std::string alone = render_svg(plot, {400, 300, true, ""});
  EXPECT_EQ(test::xml_problem(alone), "");
  EXPECT_THAT(alone, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(alone, HasSubstr("prefers-color-scheme"));
}

// A file of its own has no page that would break its note into lines.
TEST(Svg, NotesOfFilesAreWrapped) {
  Plot plot;
  plot.series = {series(Series::Kind::line, "a", {1, 2}, {1, 2})};
  std::string note;
  for (int i = 0; i < 40; ++i) note += "word" + std::to_string(i) + " ";
  plot.note = note + std::string(200, 'w');
  const std::string svg = render_svg(plot, {400, 300, true, ""});
  EXPECT_EQ(test::xml_problem(svg), "");
  for (int i = 0; i < 40; ++i) EXPECT_THAT(svg, HasSubstr("word" + std::to_string(i)));
  EXPECT_THAT(svg, Not(HasSubstr("word0 word1 word2 word3 word4 word5 word6 word7 word8 word9 word10")));
  plot.note = "short";
  EXPECT_THAT(render_svg(plot, {400, 300, true, ""}), HasSubstr(">short</text>"));
}

TEST(Svg, EmptyPlotsSaySo) {
  EXPECT_THAT(drawn(Plot{}), HasSubstr("no data"));
  Plot plot;
  plot.y.log = true;
  plot.series = {series(Series::Kind::line, "zero", {1, 2}, {0, std::nan("")})};
  EXPECT_THAT(drawn(plot), HasSubstr("no data"));
}

TEST(Svg, ManyPointsStaySmall) {
  Plot plot;
  std::vector<double> x, y;
  const Rng rng(3, 3);
  for (uint64_t i = 0; i < 200000; ++i) x.push_back(static_cast<double>(i)), y.push_back(rng.uniform(i));
  plot.series = {series(Series::Kind::line, "line", x, y)};
  EXPECT_LT(drawn(plot).size(), 60000u);
  for (double& value : x) value = std::floor(value / 2000);
  for (double& value : y) value = std::floor(value * 50);
  plot.series = {series(Series::Kind::scatter, "points", x, y)};
  EXPECT_LT(drawn(plot).size(), 300000u);
}

TEST(Svg, BadTextStaysWellFormed) {
  EXPECT_EQ(xml_text("a\x01"
                     "b\xff<>&\"\n"),
            "ab\xEF\xBF\xBD&lt;&gt;&amp;&quot;\n");
}

TEST(HtmlReport, IsWellFormedAndSelfContained) {
  HtmlReport page("Load <test>", "k3 & friends");
  page.tiles({{"TTFT p50", "12 ms", "of 10"}, {"Errors", "0", ""}});
  Plot plot;
  plot.title = "TTFT over time";
  plot.note = "One point a request.";
  plot.series = {series(Series::Kind::scatter, "ok", {1, 2}, {3, 4})};
  page.plot(plot);
  plot.wide = true;
  page.plot(plot);
  page.heading("Numbers");
  page.paragraph("Text.");
  page.table({"Latency", {"", "p50", "p99"}, {{"TTFT", "1", "2"}, {"a<b", "3", "4"}}, 1, false});
  page.table({"All", {"n"}, {{"1"}}, 0, true});
  page.plot(plot);
  const std::string html = page.html();
  ASSERT_TRUE(html.starts_with("<!DOCTYPE html>\n"));
  EXPECT_EQ(test::xml_problem(html.substr(16)), "");
  for (const char* text :
       {"Load &lt;test&gt;", "TTFT p50", "12 ms", "TTFT over time", "One point a request.", "a&lt;b", "<details>"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("href=")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
  std::string without = std::regex_replace(html, std::regex("xmlns=\"[^\"]*\""), "");
  EXPECT_THAT(without, Not(HasSubstr("http")));
}

}  // namespace
}  // namespace k3
