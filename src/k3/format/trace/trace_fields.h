// Purpose:  the cells of traces: numbers of JSON and CSV, calendar times, rows of CSV.
// Shapes:   none.
// Units:    seconds since 1970-01-01 (calendar times without a zone are taken as UTC).
// Memory:   cells without quotes point into the line.
// Threads:  pure functions.
// Errors:   a text that says what is wrong, for the caller to put file, line and field before.
// Source:   RFC 4180 (CSV); the formats named in trace.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

inline constexpr int64_t kMostTraceTokens = int64_t{1} << 40;
// 31 years: longer than anything recorded, and short enough that microseconds of a step do not vanish in rounding. Times of
// a trace may count from 1970, so what is written may be ten times as much.
inline constexpr double kMostTraceSeconds = 1e9, kMostTraceClock = 10 * kMostTraceSeconds;

Result<int64_t> trace_integer(std::string_view text, int64_t least, int64_t most);
Result<double> trace_number(std::string_view text, double most = std::numeric_limits<double>::max());  // from 0 on

// "2023-11-16 18:15:46.6805900", with T for the blank, and Z or +hh:mm behind if they like.
Result<double> trace_calendar_time(std::string_view text);

// Cells in quotes may hold commas and doubled quotes, not line ends.
Result<std::vector<std::string>> csv_row(std::string_view line);

// A text of the file for a message: at most 40 bytes, on one line.
std::string trace_excerpt(std::string_view text);

}  // namespace k3
