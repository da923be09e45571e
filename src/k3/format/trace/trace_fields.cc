#include "k3/format/trace/trace_fields.h"

#include <charconv>
#include <chrono>
#include <cmath>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

template <class... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::invalid_argument, format, std::forward<Args>(args)...);
}

// Takes exactly `digits` digits off the front.
bool take_digits(std::string_view& text, size_t digits, int& out) {
  if (text.size() < digits) return false;
  out = 0;
  for (size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    out = out * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return true;
}

bool take(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text[0]) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// ".6805900": as many digits as the file has.
bool take_fraction(std::string_view& text, double& out) {
  out = 0;
  if (!take(text, ".")) return true;
  size_t digits = 0;
  for (double unit = 0.1; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; unit /= 10, ++digits) {
    out += unit * (text[digits] - '0');
  }
  text.remove_prefix(digits);
  return digits > 0;
}

bool take_zone(std::string_view& text, int& minutes) {
  minutes = 0;
  if (text.empty() || take(text, "Z")) return text.empty();
  const int sign = text[0] == '-' ? -1 : 1;
  int hour = 0, minute = 0;
  if (!take(text, "+-") || !take_digits(text, 2, hour) || !take(text, ":") || !take_digits(text, 2, minute)) return false;
  minutes = sign * (hour * 60 + minute);
  return text.empty() && hour < 24 && minute < 60;
}

}  // namespace

std::string trace_excerpt(std::string_view text) {
  std::string out = utf8_repair(text.substr(0, 40));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.size() > 40 ? out + "..." : out;
}

Result<int64_t> trace_integer(std::string_view text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
    return wrong("'{}' is no whole number", trace_excerpt(text));
  }
  if (error == std::errc::result_out_of_range || value < least || value > most) {
    return wrong("{} is not between {} and {}", trace_excerpt(text), least, most);
  }
  return value;
}

Result<double> trace_number(std::string_view text, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return wrong("'{}' is no number", trace_excerpt(text));
  }
  if (value < 0) return wrong("{} is below 0", trace_excerpt(text));
  if (value > most) return wrong("{} is above {}", trace_excerpt(text), most);
  return value;
}

Result<double> trace_calendar_time(std::string_view text) {
  const std::string_view whole = text;
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, zone_minutes = 0;
  double fraction = 0;
  const bool well_formed = take_digits(text, 4, year) && take(text, "-") && take_digits(text, 2, month) && take(text, "-") &&
                           take_digits(text, 2, day) && take(text, " T") && take_digits(text, 2, hour) && take(text, ":") &&
                           take_digits(text, 2, minute) && take(text, ":") && take_digits(text, 2, second) &&
                           take_fraction(text, fraction) && take_zone(text, zone_minutes);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!well_formed || !date.ok() || hour > 23 || minute > 59 || second > 60) {
    return wrong("'{}' is no time like 2023-11-16 18:15:46.68", trace_excerpt(whole));
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days * 86400 + hour * 3600 + (minute - zone_minutes) * 60 + second) + fraction;
}

Result<std::vector<std::string>> csv_row(std::string_view line) {
  std::vector<std::string> cells(1);
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == ',') {
      cells.emplace_back();
      continue;
    }
    if (line[i] != '"') {
      cells.back() += line[i];
      continue;
    }
    if (!cells.back().empty()) return wrong("a quote inside a cell, column {}", cells.size());
    for (++i;; ++i) {
      if (i >= line.size()) return wrong("a quote that is not closed, column {}", cells.size());
      if (line[i] == '"' && (i + 1 >= line.size() || line[i + 1] != '"')) break;
      if (line[i] == '"') ++i;
      cells.back() += line[i];
    }
    if (i + 1 < line.size() && line[i + 1] != ',') return wrong("text behind a closed quote, column {}", cells.size());
  }
  return cells;
}

}  // namespace k3
