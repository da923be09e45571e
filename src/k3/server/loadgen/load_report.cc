#include "k3/server/loadgen/load_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "k3/base/report/axis.h"
#include "k3/base/report/html_report.h"
#include "k3/base/units.h"

namespace k3::server {
namespace {

using report::unit_text;

constexpr size_t kMostRows = 2000;  // of the table of requests
constexpr int kBins = 120;          // of time lines
constexpr int64_t kMostTurns = 24;  // bars of the plot by turn

// Colours that mean the same in every plot.
constexpr int kMain = 0, kSecond = 2, kThird = 4, kBad = 1, kGrey = 6;

Series series(Series::Kind kind, std::string name, int colour) {
  Series out;
  out.kind = kind;
  out.name = std::move(name);
  out.colour = colour;
  return out;
}

Axis axis(std::string label, Unit unit, bool log = false) {
  Axis out;
  out.label = std::move(label);
  out.unit = unit;
  out.log = log;
  return out;
}

void add(Series& s, double x, double y) {
  s.x.push_back(x);
  s.y.push_back(y);
}

void keep_filled(Plot& plot, std::vector<Series> all) {
  for (Series& s : all) {
    if (!s.x.empty()) plot.series.push_back(std::move(s));
  }
}

double seconds(double value) { return std::max(value, 1e-6); }  // a log axis has no 0

Plot running_plot(const LoadResult& result) {
  Plot plot;
  plot.title = "Requests under way";
  plot.wide = true;
  plot.x = axis("time since the start", Unit::seconds);
  plot.x.min = 0, plot.x.max = result.duration_s;
  plot.y = axis("requests, mean of each interval", Unit::number);
  Series waiting = series(Series::Kind::area, "waiting for the first token", kThird);
  Series decoding = series(Series::Kind::area, "receiving", kMain);
  waiting.stepped = decoding.stepped = true;
  const double width = std::max(result.duration_s, 1e-6) / kBins;
  std::vector<double> wait(kBins + 1, 0.0), receive(kBins + 1, 0.0);
  // Adds the time that [from, to) spends in each bin.
  const auto spread = [&](std::vector<double>& bins, double from, double to) {
    for (int b = std::max(0, static_cast<int>(from / width)); b < kBins && b * width < to; ++b) {
      bins[static_cast<size_t>(b)] += std::max(0.0, std::min(to, (b + 1) * width) - std::max(from, b * width)) / width;
    }
  };
  for (const RequestResult& r : result.requests) {
    const double first = r.first_token_s >= 0 ? r.first_token_s : r.end_s;
    spread(wait, r.start_s, first);
    spread(receive, first, r.end_s);
  }
  wait.back() = wait[kBins - 1], receive.back() = receive[kBins - 1];
  for (int b = 0; b <= kBins; ++b) {
    add(decoding, b * width, receive[static_cast<size_t>(b)]);
    add(waiting, b * width, wait[static_cast<size_t>(b)]);
  }
  if (!result.requests.empty()) plot.series = {decoding, waiting};
  return plot;
}

Plot rate_plot(const LoadResult& result, bool prompts) {
  Plot plot;
  plot.title = prompts ? "Prompt tokens per second" : "Output tokens per second";
  plot.note = prompts ? "Counted when the first token of a request comes."
                      : "Spread evenly from the first to the last token of a request.";
  plot.x = axis("time since the start", Unit::seconds);
  plot.x.min = 0, plot.x.max = result.duration_s;
  plot.y = axis("tokens/s", Unit::count);
  const int bins = 60;
  const double width = std::max(result.duration_s, 1e-6) / bins;
  std::vector<double> a(bins + 1, 0.0), b(bins + 1, 0.0);
  const auto bin = [&](double at) { return static_cast<size_t>(std::clamp(at / width, 0.0, bins - 1.0)); };
  for (const RequestResult& r : result.requests) {
    if (!r.ok()) continue;
    if (prompts) {
      const auto cached = static_cast<double>(std::max<int64_t>(0, r.cached_tokens));
      const auto all = static_cast<double>(r.prompt_tokens >= 0 ? r.prompt_tokens : r.input_tokens);
      a[bin(r.first_token_s)] += (all - cached) / width;
      b[bin(r.first_token_s)] += cached / width;
      continue;
    }
    const int64_t tokens = std::max<int64_t>(1, r.output_tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      const double share = tokens > 1 ? static_cast<double>(t) / static_cast<double>(tokens - 1) : 0;
      a[bin(r.first_token_s + share * (r.last_token_s - r.first_token_s))] += 1 / width;
    }
  }
  Series first = series(Series::Kind::area, prompts ? "computed" : "", kMain),
         second = series(Series::Kind::area, "from the cache", kSecond);
  first.stepped = second.stepped = true;
  a.back() = a[bins - 1], b.back() = b[bins - 1];
  for (int i = 0; i <= bins; ++i) {
    add(first, i * width, a[static_cast<size_t>(i)]);
    add(second, i * width, b[static_cast<size_t>(i)]);
  }
  plot.series = {first};
  if (prompts) plot.series.push_back(second);
  return plot;
}

Plot ttft_over_time(const LoadResult& result) {
  Plot plot;
  plot.title = "Time to first token over time";
  plot.x = axis("start of the request", Unit::seconds);
  plot.x.min = 0, plot.x.max = result.duration_s;
  plot.y = axis("TTFT (failed: time to the failure)", Unit::seconds, true);
  Series ok = series(Series::Kind::scatter, "answered", kMain), bad = series(Series::Kind::scatter, "failed", kBad);
  bad.marker = Marker::cross;
  for (const RequestResult& r : result.requests) {
    if (r.ok()) add(ok, r.start_s, seconds(r.ttft_s()));
    if (!r.ok() && r.outcome != Outcome::cancelled) add(bad, r.start_s, seconds(r.e2e_s()));
  }
  keep_filled(plot, {ok, bad});
  return plot;
}

Plot ttft_by_length(const LoadResult& result) {
  Plot plot;
  plot.title = "Time to first token by prompt length";
  plot.x = axis("prompt tokens", Unit::count, true);
  plot.y = axis("TTFT", Unit::seconds, true);
  Series cold = series(Series::Kind::scatter, "less than half cached", kMain),
         warm = series(Series::Kind::scatter, "half or more cached", kSecond),
         unknown = series(Series::Kind::scatter, "cache not told", kGrey);
  for (const RequestResult& r : result.requests) {
    if (!r.ok()) continue;
    const int64_t tokens = r.prompt_tokens >= 0 ? r.prompt_tokens : r.input_tokens;
    Series& s = r.cached_tokens < 0 ? unknown : 2 * r.cached_tokens >= tokens ? warm : cold;
    add(s, static_cast<double>(tokens), seconds(r.ttft_s()));
  }
  keep_filled(plot, {cold, warm, unknown});
  return plot;
}

Series distribution(std::string name, int colour, std::vector<double> values) {
  Series out = series(Series::Kind::line, std::move(name), colour);
  std::sort(values.begin(), values.end());
  const size_t every = std::max<size_t>(1, values.size() / 1500);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % every != 0 && i + 1 != values.size()) continue;
    add(out, seconds(values[i]), values.size() > 1 ? static_cast<double>(i) / static_cast<double>(values.size() - 1) : 1);
  }
  if (values.size() == 1) out.marker = Marker::dot;
  return out;
}

Plot distribution_plot(std::string title, std::vector<Series> all) {
  Plot plot;
  plot.title = std::move(title);
  plot.x = axis("latency", Unit::seconds, true);
  plot.y = axis("share of them that is at most this", Unit::percent);
  plot.y.min = 0, plot.y.max = 1;
  keep_filled(plot, std::move(all));
  return plot;
}

Plot turns_plot(const LoadResult& result) {
  Plot plot;
  plot.title = "Prompt tokens by turn of the session";
  plot.note = "Mean of a request: what the cache saved, and what had to be computed.";
  plot.x.label = "turn";
  plot.y = axis("tokens", Unit::count);
  plot.stacked_bars = true;
  std::map<int64_t, std::array<double, 3>> turns;  // cached, computed, requests
  for (const RequestResult& r : result.requests) {
    if (!r.ok() || r.cached_tokens < 0 || r.prompt_tokens < 0 || r.turn >= kMostTurns) continue;
    auto& turn = turns[r.turn];
    turn[0] += static_cast<double>(r.cached_tokens);
    turn[1] += static_cast<double>(r.prompt_tokens - r.cached_tokens);
    turn[2] += 1;
  }
  Series cached = series(Series::Kind::bars, "from the cache", kSecond),
         computed = series(Series::Kind::bars, "computed", kMain);
  for (const auto& [turn, sums] : turns) {
    const auto place = static_cast<double>(plot.x.categories.size());
    plot.x.categories.push_back(fmt::format("{}", turn));
    add(computed, place, sums[1] / sums[2]);
    add(cached, place, sums[0] / sums[2]);
  }
  plot.series = {computed, cached};
  return plot;
}

std::vector<double> values_of(const LoadResult& result, double (RequestResult::*what)() const) {
  std::vector<double> out;
  for (const RequestResult& r : result.requests) {
    if (r.ok() && (r.*what)() >= 0) out.push_back((r.*what)());
  }
  return out;
}

std::string time(double value) { return unit_text(value, Unit::seconds); }

ReportTable latency_table(const LoadSummary& s) {
  ReportTable table{"Latency", {"", "count", "mean", "p50", "p90", "p95", "p99", "max"}, {}, 1, false};
  const auto row = [&](const char* name, const Spread& x) {
    table.rows.push_back(
        {name, format_grouped(x.count), time(x.mean), time(x.p50), time(x.p90), time(x.p95), time(x.p99), time(x.max)});
  };
  row("TTFT: to the first token", s.ttft_s);
  row("TPOT: per further token", s.tpot_s);
  row("Gap between frames", s.gap_s);
  row("End to end", s.e2e_s);
  row("Start behind the plan", s.lag_s);
  return table;
}

ReportTable request_table(const LoadResult& result) {
  const size_t rows = std::min(result.requests.size(), kMostRows);
  ReportTable table{
      rows < result.requests.size() ? fmt::format("The first {} of {} requests", rows, result.requests.size())
                                    : "All requests",
      {"outcome", "request", "session", "turn", "start", "TTFT", "TPOT", "end to end", "prompt", "cached", "output"},
      {},
      1,
      true};
  const auto count = [](int64_t value) { return value < 0 ? std::string("\xE2\x80\x93") : format_grouped(value); };
  for (size_t i = 0; i < rows; ++i) {
    const RequestResult& r = result.requests[i];
    table.rows.push_back({error_kind(r), count(r.index), count(r.session), count(r.turn), fmt::format("{:.3f} s", r.start_s),
                          r.first_token_s < 0 ? "\xE2\x80\x93" : time(r.ttft_s()),
                          r.tpot_s() < 0 ? "\xE2\x80\x93" : time(r.tpot_s()), time(r.e2e_s()),
                          count(r.prompt_tokens >= 0 ? r.prompt_tokens : r.input_tokens), count(r.cached_tokens),
                          count(r.output_tokens)});
  }
  return table;
}

std::vector<Tile> tiles(const LoadSummary& s) {
  const bool told = !std::isnan(s.hit_rate());
  return {
      {"TTFT p50", time(s.ttft_s.p50), "p99 " + time(s.ttft_s.p99)},
      {"TPOT p50", time(s.tpot_s.p50), "p99 " + time(s.tpot_s.p99)},
      {"End to end p50", time(s.e2e_s.p50), "p99 " + time(s.e2e_s.p99)},
      {"Output tokens/s", unit_text(s.output_per_s(), Unit::count), fmt::format("{:.3g} requests/s", s.requests_per_s())},
      {"Prompt tokens/s", unit_text(s.prompt_per_s(), Unit::count), "cached ones included"},
      {"Hit rate", told ? unit_text(s.hit_rate(), Unit::percent) : "not told",
       told ? "of prompt tokens" : "no cached_tokens in usage"},
      {"Succeeded", format_grouped(s.ok), fmt::format("of {} sent", format_grouped(s.sent))},
      {"Failed", format_grouped(s.failed), s.retries > 0 ? fmt::format("{} retries", s.retries) : "no retries"}};
}

}  // namespace

std::string load_html(const LoadResult& result, const LoadSummary& s, const Settings& settings, const std::string& title) {
  std::string subtitle = fmt::format("{} requests in {}, at most {} at once", format_grouped(s.sent),
                                     format_seconds(s.duration_s), s.peak_running);
  if (result.interrupted) subtitle += "; interrupted: this is what was measured until then";
  HtmlReport page(title, subtitle);
  page.tiles(tiles(s));
  if (!s.errors.empty()) {
    ReportTable errors{"Failures", {"kind", "first message", "count"}, {}, 2, false};
    for (const ErrorCount& error : s.errors)
      errors.rows.push_back({error.kind, error.first.substr(0, 160), format_grouped(error.count)});
    page.table(errors);
  }
  page.table(latency_table(s));
  page.heading("Over time");
  page.plot(running_plot(result));
  page.plot(rate_plot(result, true));
  page.plot(rate_plot(result, false));
  page.plot(ttft_over_time(result));
  page.plot(ttft_by_length(result));
  page.heading("Distributions");
  page.plot(distribution_plot("Time to first token, end to end",
                              {distribution("TTFT", kMain, values_of(result, &RequestResult::ttft_s)),
                               distribution("end to end", kBad, values_of(result, &RequestResult::e2e_s))}));
  page.plot(
      distribution_plot("Time per output token, gaps between frames",
                        {distribution("TPOT of a request", kMain, values_of(result, &RequestResult::tpot_s)),
                         distribution("gap between two frames", kThird, {result.gaps_s.begin(), result.gaps_s.end()})}));
  const bool sessions = std::any_of(result.requests.begin(), result.requests.end(),
                                    [](const RequestResult& r) { return r.turn > 0 && r.cached_tokens >= 0; });
  if (sessions) page.plot(turns_plot(result));
  page.heading("How it was run");
  ReportTable table{"", {"setting", "value"}, {}, 2, false};
  for (const auto& [name, value] : settings) table.rows.push_back({name, value});
  page.table(table);
  page.table(request_table(result));
  return page.html();
}

}  // namespace k3::server
